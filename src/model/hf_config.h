// SPDX-License-Identifier: Apache-2.0
// Reading config.json: the fields that all decoder families share, rope in both spellings, and the guard against
// unknown maths.
#pragma once

#include <span>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "model/config.h"

namespace quire::model {

struct HfDefaults {
  double rope_theta = 10000.0;
  double partial_rotary = 1.0;
  bool rope_interleaved = false;
  bool tied = false;
  double norm_eps = 1e-6;
};

// Sizes, norms, activation, rope, dtype and token ids. Every number is checked for range.
Result<DecoderConfig> read_common_hf(const json::Value& config, const HfDefaults& defaults);

// Fails when a field that changes the maths is present with a value that is not neutral, unless the family handles it.
Status refuse_unknown_maths(const json::Value& config, std::span<const std::string_view> handled);

// sliding_window as Mistral, Phi-3 and Qwen2 write it: 0 when absent, null, or switched off.
Result<int64_t> read_sliding_window(const json::Value& config);

}  // namespace quire::model
