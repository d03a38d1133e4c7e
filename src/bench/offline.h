// SPDX-License-Identifier: Apache-2.0
// Offline benchmarks: latency of a batch, and throughput over many requests, straight on the engine.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/datasets.h"
#include "llm/llm.h"

namespace quire::bench {

// Told of rounds or requests as they end; never while something is timed closely.
using OfflineProgress = std::function<void(const char* what, int64_t done, int64_t total)>;

struct Workload {
  int64_t input_len = 512;
  int64_t output_len = 128;
  int64_t batch_size = 1;
  int64_t num_prompts = 1;
  int64_t num_warmups = 0;
  std::optional<DatasetOptions> dataset;  // nothing: random token ids of input_len
};

// What a run says of itself beside its times.
struct RunFacts {
  std::string model;
  std::string machine;         // "cpu (amx, 2 threads)"
  int64_t weights_bytes = 0;   // as they lie in memory
  int64_t kv_bytes = 0;        // of the most pages that the workload holds at once
  int64_t peak_rss_bytes = 0;  // of this process, loading included
};

// One batch, computed again and again. A round has three parts: prefill, from submission until each sequence has its
// first token; decode, the steps in which every sequence of the batch gets one more token and nothing else happens; and
// what is left, when the first sequences have ended and others have not. Long batches take several steps to prefill,
// and sequences that began early do not wait, so decode has fewer steps than output_len - 1.
struct LatencyFigures {
  Workload workload;
  std::vector<double> total_s, prefill_s, decode_s;  // one a round
  std::vector<double> step_s;                        // each decode step of all rounds
  int64_t decode_steps = 0;                          // of one round
  RunFacts facts;

  double prefill_rate() const;                // tokens a second, median over the rounds
  std::optional<double> decode_rate() const;  // nothing: the batch never decoded together
  json::Value to_json() const;
  std::string to_text() const;
};
Result<LatencyFigures> latency(llm::Llm& llm, const Workload& workload, int64_t warmup, int64_t iters,
                               const OfflineProgress& progress = {});

struct ThroughputFigures {
  int64_t requests = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  double elapsed_s = 0;
  std::vector<double> latency_s;   // of each request: from the start, when all were given, to its last token
  std::vector<std::string> notes;  // one line each, for standard error
  RunFacts facts;
  json::Value to_json() const;
  std::string to_text() const;
};
// All requests given at once. `side` is the model's tokenizer and template; only datasets look at it.
Result<ThroughputFigures> throughput(llm::Llm& llm, const Workload& workload, const llm::TextSide& side,
                                     const OfflineProgress& progress = {});

}  // namespace quire::bench
