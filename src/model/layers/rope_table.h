// SPDX-License-Identifier: Apache-2.0
// RopeTable: cosines and sines of every position a model may see; frequencies are fixed at load.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "model/config/decoder_config.h"

namespace quire::model {

// The frequencies of each pair, [rot_dim/2], and the factor that multiplies cosine and sine. `max_model_len` decides
// for dynamic (NTK by that length) and longrope (long factors when it is past the original length).
struct RopeFrequencies {
  std::vector<float> inv_freq;
  float attention_factor = 1.0f;
};
RopeFrequencies rope_frequencies(const RopeConfig& config, int64_t max_model_len);

// The table, grown in steps as positions are first used, so that a long max_model_len costs nothing until it is needed.
// Owned by a model, used on the engine's thread. Row p depends on p alone.
class RopeTable {
 public:
  RopeTable(RopeFrequencies frequencies, int64_t max_model_len);

  // Makes the rows of all positions below `end` valid.
  void reach(int64_t end);
  // Puts the rows of all positions into the backend's memory, where they stay.
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
