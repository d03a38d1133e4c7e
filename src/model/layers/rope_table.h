// SPDX-License-Identifier: Apache-2.0
// RopeTable: the cosines and sines of all positions of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "model/config/decoder_config.h"

namespace quire::model {

// The frequency of each pair, [rot_dim/2], and the factor of cosine and sine. They depend on `max_model_len` for
// RopeType::kDynamic (NTK scaling for that length) and kLongRope (long factors beyond the original length).
struct RopeFrequencies {
  std::vector<float> inv_freq;
  float attention_factor = 1.0f;
};
RopeFrequencies rope_frequencies(const RopeConfig& config, int64_t max_model_len);

// The table grows when positions are first used, so that a long max_model_len costs no memory until then. Row p depends
// on p alone. Owned by a model and used on the engine's thread.
class RopeTable {
 public:
  RopeTable(RopeFrequencies frequencies, int64_t max_model_len);

  // Makes the rows of all positions below `end` valid.
  void grow_to(int64_t end);
  // Puts the rows of all positions into the backend's memory.
  Status place(Backend& backend);
  const float* cosines() const { return placed_cos_.empty() ? cos_.data() : placed_cos_.data(); }  // [positions, rot/2]
  const float* sines() const { return placed_sin_.empty() ? sin_.data() : placed_sin_.data(); }

 private:
  RopeFrequencies frequencies_;
  int64_t max_model_len_;
  int64_t reached_ = 0;
  std::vector<float> cos_, sin_;
  Floats placed_cos_, placed_sin_;
};

}  // namespace quire::model
