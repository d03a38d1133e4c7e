// SPDX-License-Identifier: Apache-2.0
// Offline benchmarks, directly on the engine: latency of a batch, and throughput over many requests.
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

// Called when rounds or requests are complete; never inside a part that is timed.
using OfflineProgress = std::function<void(const char* what, int64_t done, int64_t total)>;

struct Workload {
  int64_t input_len = 512;
  int64_t output_len = 128;
  int64_t batch_size = 1;
  int64_t num_prompts = 1;
  int64_t num_warmups = 0;
  std::optional<DatasetOptions> dataset;   // nothing: random token ids of input_len
  std::vector<grammar::Spec> constraints;  // of the requests, in turn; empty: none
};

// Facts about a run beside its times.
struct RunFacts {
  std::string model;
  std::string machine;         // "cpu (amx, 2 threads)"
  int64_t weights_bytes = 0;   // in memory
  int64_t kv_bytes = 0;        // the most that the workload uses at once
  int64_t peak_rss_bytes = 0;  // of this process, including loading
};

RunFacts facts_of(const llm::Llm& llm);

// One batch, computed repeatedly. A round has three parts: prefill, from submission until each sequence has its first
// token; decode, the steps in which every sequence of the batch gets one token and nothing else happens; and the rest,
// in which some sequences have finished and others have not. Large batches need several steps to prefill, and sequences
// that started early do not wait, so decode has fewer than output_len - 1 steps.
struct LatencyFigures {
  Workload workload;
  std::vector<double> total_s, prefill_s, decode_s;  // per round
  std::vector<double> step_s;                        // the decode steps of all rounds
  int64_t decode_steps = 0;                          // per round
  int64_t decode_tokens = 0;                         // in the decode steps of all rounds
  RunFacts facts;

  double prefill_rate() const;                // tok/s, median over the rounds
  std::optional<double> decode_rate() const;  // nothing: no step decoded the whole batch
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
  std::vector<double> latency_s;   // per request, from the start of the run to its last token
  std::vector<std::string> notes;  // one line each, for standard error
  RunFacts facts;
  json::Value to_json() const;
  std::string to_text() const;
};
// Submits all requests at once. `side` is the model's tokenizer and template; only datasets need it.
Result<ThroughputFigures> throughput(llm::Llm& llm, const Workload& workload, const llm::TextSide& side,
                                     const OfflineProgress& progress = {});

}  // namespace quire::bench
