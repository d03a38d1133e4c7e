// SPDX-License-Identifier: Apache-2.0
// A step in parts, one after another: while a stage of a pipeline computes one, the next stage computes the one before.
#pragma once

#include "model/step_batch.h"

namespace quire::model {

// In how many parts a pipeline of `stages` computes the step: 1 if it is too small, or cannot be divided.
int64_t num_parts(const StepBatch& batch, int64_t stages);
// Tokens [part * tokens / parts, (part + 1) * tokens / parts). A sequence whose tokens are in two parts goes on in the
// second where the first ended, as if they were steps.
void take_part(const StepBatch& batch, int64_t part, int64_t parts, StepBatch& out);

}  // namespace quire::model
