// SPDX-License-Identifier: Apache-2.0
// Offline benchmarks: latency of a batch, and throughput over many requests, straight on the engine.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "llm/llm.h"

namespace quire::bench {

struct Workload {
  int64_t input_len = 512;
  int64_t output_len = 128;
  int64_t batch_size = 1;
  int64_t num_prompts = 1;
  std::string dataset;  // "": random token ids
};

// Medians over the rounds. Prefill is from submission to the last sequence's first token, decode from there to the end.
struct LatencyFigures {
  Workload workload;
  std::vector<double> total_s, prefill_s, decode_s;  // one a round
  std::string machine;                               // what it ran on
  json::Value to_json() const;
  std::string to_text() const;
};
Result<LatencyFigures> latency(llm::Llm& llm, const Workload& workload, int64_t warmup, int64_t iters);

struct ThroughputFigures {
  int64_t requests = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  double elapsed_s = 0;
  std::string machine;
  json::Value to_json() const;
  std::string to_text() const;
};
Result<ThroughputFigures> throughput(llm::Llm& llm, const Workload& workload);

}  // namespace quire::bench
