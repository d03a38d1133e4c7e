// SPDX-License-Identifier: Apache-2.0
// quire bench speculation: the same answers with and without drafts, what became of the drafts, and the time they save.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/offline.h"
#include "llm/llm.h"

namespace quire::bench {

struct SpeculationBench {
  int64_t rounds = 3;
  int64_t batch_size = 1;    // requests at a time, all with the same prompt
  int64_t output_len = 256;  // tokens per answer, at most
  double acceptance = 0;     // in place of a draft model's tokens, right ones with this probability; 0: its own
  std::string prompt;        // the only task; "": those that are built in
};

// One task, in turn without and with drafts.
struct SpeculationTask {
  std::string name;
  std::vector<double> without_s, with_s;  // per round
  int64_t output_tokens = 0;              // per round
  engine::SpeculationStats stats;         // of all rounds with drafts
  bool same = true;                       // all answers have the same tokens, and logprobs of the same bits

  double rate_without() const;  // tokens per second, the median over the rounds
  double rate_with() const;
  double gain() const { return rate_with() / rate_without(); }
  double tokens_per_step() const;  // of one sequence
};

// The time of a step of one sequence with so many rows: its last token and drafts that are all right.
struct RowCost {
  int64_t rows = 0;
  double seconds = 0;  // the 10th percentile: what else runs on the machine only adds to it
};

struct SpeculationFigures {
  int64_t batch_size = 1;
  std::vector<SpeculationTask> tasks;
  std::vector<RowCost> rows;
  RunFacts facts;
  bool same() const;
  json::Value to_json() const;
  std::string to_text() const;
};

// REQUIRES: the model was loaded with speculation.
Result<SpeculationFigures> speculation(llm::Llm& llm, const SpeculationBench& options,
                                       const OfflineProgress& progress = {});

}  // namespace quire::bench
