// SPDX-License-Identifier: Apache-2.0
// quire bench lengths: the output lengths at different --max-num-seqs, which must all be equal.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "llm/llm.h"

namespace quire::bench {

struct LengthsOptions {
  std::string dataset_path;  // ShareGPT
  int64_t num_prompts = 100;
  int64_t seed = 0;          // for choosing prompts; request i samples with seed + i
  int64_t output_len = 256;  // maximum tokens per output
  std::optional<double> temperature;
  std::vector<int64_t> max_num_seqs = {1, 8, 32};
};

struct LengthsRow {
  int64_t max_num_seqs = 0;
  int64_t count = 0;
  double mean = 0;
  double deviation = 0;  // standard deviation of the population
  int64_t steps = 0;
  int64_t peak_running = 0;  // maximum number of sequences in one step
  double seconds = 0;
};

struct LengthsFigures {
  std::vector<LengthsRow> rows;
  // Describes the first request whose tokens or logprobs differ between two rows; empty if all outputs have the same
  // bits.
  std::string difference;
  json::Value to_json() const;
  std::string to_text() const;
};

// Loads the model again for each row, with that --max-num-seqs.
using LoadWithSeqs = std::function<Result<std::unique_ptr<llm::Llm>>(int64_t max_num_seqs)>;
// Called when outputs of a row are complete.
using LengthsProgress = std::function<void(int64_t max_num_seqs, int64_t done, int64_t total)>;
Result<LengthsFigures> lengths(const LengthsOptions& options, const LoadWithSeqs& load,
                               const LengthsProgress& progress = {});

}  // namespace quire::bench
