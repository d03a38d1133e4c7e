// SPDX-License-Identifier: Apache-2.0
// The table of refused flags.
#include "cli/refused_flags.h"

namespace quire::cli {
namespace {

constexpr const char* kOneProcess =
    "one process answers the requests of a server; run several servers behind a gateway";
constexpr const char* kNotYet = "quire does not support that yet";
constexpr const char* kNoOffload = "quire does not offload weights; choose a smaller model or a smaller weight type";
constexpr const char* kNoCompiler = "kernels are compiled ahead of time, and decode steps are recorded automatically";
constexpr const char* kNoPython = "quire runs no Python";
constexpr const char* kPull = "download the files with quire pull and give their folder as MODEL";

const RefusedFlag kRefused[] = {
    {"--api-server-count", "1", kOneProcess},
    {"--headless", "", kOneProcess},
    {"--swap-space", "0", "pages are not swapped out: preempted requests are recomputed"},
    {"--cpu-offload-gb", "0", kNoOffload},
    {"--enforce-eager", "", kNoCompiler},
    {"--compilation-config", "", kNoCompiler},
    {"--performance-mode", "balanced", "set --max-num-seqs and --max-num-batched-tokens"},
    {"--task", "auto", "use --runner and --convert"},
    {"--disable-log-requests", "", "requests are not logged unless --enable-log-requests is given"},
    {"--max-num-scheduled-tokens", "", "use --max-num-batched-tokens"},
    {"--max-num-active-seqs", "", "use --max-num-seqs"},
    {"--watermark", "0.0", kNotYet},
    {"--prefill-schedule-interval", "1", kNotYet},
    {"--prefix-caching-hash-algo", "sha256", "quire has one hash of 128 bits, and compares token ids on a hit"},
    {"--tokenizer-mode", "auto", "the tokenizer is read from its files"},
    {"--skip-tokenizer-init", "", "a model without a tokenizer is served with token ids automatically"},
    {"--revision", "", kPull},
    {"--tokenizer-revision", "", kPull},
    {"--download-dir", "", kPull},
    {"--hf-token", "", kPull},
    {"--trust-remote-code", "", kNoPython},
    {"--tool-parser-plugin", "", kNoPython},
    {"--middleware", "[]", kNoPython},
    {"--logits-processors", "", kNoPython},
    {"--worker-cls", "auto", kNoPython},
    {"--logprobs-mode", "raw_logprobs", kNotYet},
    {"--tool-strict-level", "auto", kNotYet},
    {"--structured-outputs-config", "{}", "there is one backend for structured outputs, and it has no settings"},
    {"--fully-sharded-loras", "", kOneProcess},
    {"--enable-tower-connector-lora", "", kNotYet},
    {"--default-mm-loras", "", kNotYet},
    {"--enable-mixed-moe-lora-format", "", kNotYet},
    {"--limit-mm-per-prompt", "", kNotYet},
    {"--mm-processor-kwargs", "", kNotYet},
    {"--allowed-local-media-path", "", kNotYet},
    {"--allowed-media-domains", "", kNotYet},
    {"--trust-request-mm-kwargs", "", kNotYet},
    {"--enable-prompt-embeds", "", kNotYet},
    {"--enable-per-request-metrics", "", kNotYet},
    {"--sse-keep-alive-interval", "0", kNotYet},
    {"--kv-cache-metrics", "", kNotYet},
    {"--enable-mfu-metrics", "", kNotYet},
    {"--kv-transfer-config", "", kNotYet},
    {"--collect-detailed-traces", "", "each span of --otlp-traces-endpoint has the times of its request already"},
    {"--enable-scale-out", "", kNotYet},
    {"--tokens-only", "", kNotYet},
    {"--enable-fault-tolerance", "", kNotYet},
    {"--enable-sleep-mode", "", kNotYet},
    {"--additional-config", "{}", "there are no platform plugins"},
    {"--enable-offline-docs", "", "/docs needs no internet access anyway"},
};

}  // namespace

std::span<const RefusedFlag> refused_flags() {
  return kRefused;
}

}  // namespace quire::cli
