// SPDX-License-Identifier: Apache-2.0
// A step's rows as a backend that samples takes them (ops/sampling.h): settings, edits of tokens, masks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.h"
#include "sampling/params.h"
#include "sampling/sampler.h"

namespace quire::sampling {

// Do the settings look at the tokens that the sequence has so far? (Not at their number alone.)
bool looks_at_history(const SamplingParams& params);
// Can a backend give the logprobs that are asked for?
bool has_device_logprobs(const SamplingParams& params);

// Collects rows; owned by the engine, used on its thread, kept for its memory.
class DeviceRows {
 public:
  void clear();
  // A row that samples the token at `position`, after num_output tokens of the answer. `history` must be up to date
  // where looks_at_history(). Logprobs that a backend cannot give are left out.
  void add(const SamplingParams& params, const History& history, int64_t num_output, uint64_t seed, int64_t position,
           int64_t vocab);
  // A row whose token nobody wants.
  void add_unused() { rows_.emplace_back(); }

  std::span<const SampleRow> rows() const { return rows_; }
  std::span<const TokenEdit> edits() const { return edits_; }
  std::span<const uint32_t> masks() const { return masks_; }

 private:
  TokenEdit* edit(int32_t token);
  void forbid(int32_t token);
  void add_edits(const SamplingParams& params, const History& history, int64_t num_output);
  void add_mask(const std::vector<int32_t>& allowed, int64_t vocab);

  std::vector<SampleRow> rows_;
  std::vector<TokenEdit> edits_;
  std::vector<uint32_t> masks_;
  std::vector<int32_t> place_;  // of a token among the edits of the row that is being made, or -1
};

}  // namespace quire::sampling
