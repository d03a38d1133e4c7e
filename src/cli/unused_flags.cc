// SPDX-License-Identifier: Apache-2.0
// The table of flags without a use.
#include "cli/unused_flags.h"

#include <algorithm>
#include <string>

#include "base/log.h"

namespace quire::cli {
namespace {

constexpr const char* kOneProcess =
    "one process answers the requests of a server; run several servers behind a gateway";
constexpr const char* kNotYet = "quire does not support that yet";
constexpr const char* kNoOffload = "quire does not offload weights; choose a smaller model or a smaller weight type";
constexpr const char* kNoCompiler = "kernels are compiled ahead of time, and decode steps are recorded automatically";
constexpr const char* kNoPython = "quire runs no Python";
constexpr const char* kPull = "download the files with quire pull and give their folder as MODEL";

const UnusedFlag kUnused[] = {
    {"--trust-remote-code", "", "quire never runs code that comes with a model", Treatment::kIgnoredSwitch},
    {"--enforce-eager", "", kNoCompiler, Treatment::kIgnoredSwitch},
    {"--max-seq-len-to-capture", "", kNoCompiler, Treatment::kIgnoredNumber},
    {"--swap-space", "0", "pages are not swapped out: preempted requests are recomputed", Treatment::kIgnoredNumber},
    {"--disable-custom-all-reduce", "", "quire chooses itself how ranks exchange data", Treatment::kIgnoredSwitch},
    {"--disable-log-requests", "", "requests are not logged unless --enable-log-requests is given",
     Treatment::kIgnoredSwitch},
    {"--enable-offline-docs", "", "/docs needs no internet access anyway", Treatment::kIgnoredSwitch},
    {"--api-server-count", "1", kOneProcess},
    {"--headless", "", kOneProcess},
    {"--cpu-offload-gb", "0", kNoOffload},
    {"--compilation-config", "", kNoCompiler},
    {"--performance-mode", "balanced", "set --max-num-seqs and --max-num-batched-tokens"},
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
};

// What vLLM's --task means in --runner and --convert.
struct Task {
  std::string_view name;
  const char* runner;
  const char* convert;
};
constexpr Task kTasks[] = {
    {"generate", "generate", "auto"},    {"embed", "pooling", "embed"}, {"embedding", "pooling", "embed"},
    {"classify", "pooling", "classify"}, {"score", "pooling", "auto"},  {"reward", "pooling", "auto"},
};

}  // namespace

std::span<const UnusedFlag> unused_flags() {
  return kUnused;
}

void warn_unused(std::string_view name, std::string_view why) {
  log_warn("{} has no effect: {}", name, why);
}

Status apply_task(std::string_view task, llm::Options& options) {
  if (task == "auto") return {};
  const auto found =
      std::find_if(std::begin(kTasks), std::end(kTasks), [&](const Task& one) { return task == one.name; });
  if (found == std::end(kTasks)) {
    return invalid_argument(
        {"--task is '", task,
         "'; choose auto, generate, embed, classify, score or reward, or use --runner and --convert"});
  }
  if (options.runner != "auto" || options.convert != "auto") {
    return invalid_argument("--task says the same as --runner and --convert; leave one or the other out");
  }
  options.runner = found->runner;
  options.convert = found->convert;
  return {};
}

}  // namespace quire::cli
