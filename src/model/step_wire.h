// SPDX-License-Identifier: Apache-2.0
// A StepBatch as bytes, for the other ranks of a model.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/step_batch.h"

namespace quire::model {

// What a rank may read from a step: a message that names anything outside of it was damaged.
struct StepLimits {
  int64_t max_tokens = 0;
  int64_t vocab_size = 0;
  size_t groups = 0;
  int64_t num_pages = 0;
};

// Appends the batch, with the ids of its adapters.
void write_step(const StepBatch& batch, std::vector<std::byte>& to);
// Reads what write_step() wrote into `batch`, whose memory is used again, and the ids of its adapters. An Error says
// what is wrong.
Status read_step(std::span<const std::byte> from, const StepLimits& limits, StepBatch& batch,
                 std::vector<uint64_t>& adapters);

}  // namespace quire::model
