// SPDX-License-Identifier: Apache-2.0
// Reading config.json: the fields that all decoder families share, rope in both spellings, and the guard against
// unknown maths.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "model/config/decoder_config.h"

namespace quire::model {

struct HfDefaults {
  double rope_theta = 10000.0;
  double partial_rotary = 1.0;
  bool rope_interleaved = false;
  bool tied = false;
  double norm_eps = 1e-6;
  std::string_view norm_eps_field = "rms_norm_eps";
  bool has_intermediate = true;  // false: the family reads it under another name
  int64_t layers = 0;            // > 0: the family knows, num_hidden_layers is not read
};

// A size from the file: at least `least`, and sane.
Result<int64_t> read_size(const json::Value& config, std::string_view field, int64_t least = 1);
Result<int64_t> read_size_or(const json::Value& config, std::string_view field, int64_t fallback, int64_t least = 0);
// A finite number, 0 excluded.
Result<float> read_factor(const json::Value& config, std::string_view field, double fallback);
// 'layer_types' (or `field`), one word a layer; empty when the file has none.
Result<std::vector<std::string>> read_layer_types(const json::Value& config, int64_t layers,
                                                  std::string_view field = "layer_types");
// Fills per_layer with windows: where layer_types says sliding_attention, else in all layers but every `full_every`th
// (0: in all).
Status read_windows(const json::Value& config, DecoderConfig& out, int64_t full_every);
// The rope of one layer type where the file has several, into out.local_rope.
Status read_local_rope(const json::Value& config, std::string_view layer_type, double default_theta,
                       DecoderConfig& out);

// Mamba-2's time_step_limit: two numbers, the second of which may be infinite.
Status read_time_step_limit(const json::Value& config, Mamba2Config& out);
// DeepSeek V3's experts, which others took over (deepseek.cc).
Status read_sigmoid_experts(const json::Value& config, DecoderConfig& out);
// Families whose convolutions take hidden_act too: they have silu.
Status require_silu(const DecoderConfig& config);
// Qwen's experts: how many, which layers have them (qwen.cc).
Status read_qwen_experts(const json::Value& config, DecoderConfig& out);

// Sizes, norms, activation, rope, dtype and token ids. Every number is checked for range.
Result<DecoderConfig> read_common_hf(const json::Value& config, const HfDefaults& defaults);

// Fails when a field that changes the maths is present with a value that is not neutral, unless the family handles it.
Status refuse_unknown_maths(const json::Value& config, std::span<const std::string_view> handled);

// sliding_window as Mistral, Phi-3 and Qwen2 write it: 0 when absent, null, or switched off.
Result<int64_t> read_sliding_window(const json::Value& config);

}  // namespace quire::model
