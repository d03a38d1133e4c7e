// SPDX-License-Identifier: Apache-2.0
// DeviceRows: the rows of a step for a backend that samples (ops/sampling.h): settings, edits of tokens, masks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.h"
#include "sampling/params.h"
#include "sampling/sampler.h"

namespace quire::sampling {

// Whether the settings depend on the tokens of the sequence so far, and not only on their number.
bool looks_at_history(const SamplingParams& params);
// Whether a backend that samples can make the requested logprobs.
bool has_device_logprobs(const SamplingParams& params);

// Collects rows; reused for each step to keep its memory. Engine thread.
class DeviceRows {
 public:
  void clear();
  // Adds a row that samples the token at `position`, after num_output tokens of output. Logprobs that the backend
  // cannot make are left out. REQUIRES: params passed validate(); if looks_at_history(params), history has all tokens
  // before `position`. A grammar_mask is as in sample_row(). `digest`: of the row of logits (SampleRow).
  void add(const SamplingParams& params, const History& history, int64_t num_output, uint64_t seed, int64_t position,
           int64_t vocab, std::span<const uint32_t> grammar_mask = {}, bool digest = false);
  // Adds a row whose token nobody reads.
  void add_unused() { rows_.emplace_back(); }

  std::span<const SampleRow> rows() const { return rows_; }
  std::span<const TokenEdit> edits() const { return edits_; }
  std::span<const uint32_t> masks() const { return masks_; }

 private:
  TokenEdit* edit(int32_t token);
  void add_edits(const SamplingParams& params, const History& history, int64_t num_output,
                 std::span<const uint32_t> grammar_mask);
  void add_masks(const SamplingParams& params, int64_t vocab, std::span<const uint32_t> grammar_mask);

  std::vector<SampleRow> rows_;
  std::vector<TokenEdit> edits_;
  std::vector<uint32_t> masks_;
  std::vector<int32_t> place_;  // the index in edits_ of each token that the current row edits; else -1
};

}  // namespace quire::sampling
