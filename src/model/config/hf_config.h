// SPDX-License-Identifier: Apache-2.0
// Reading config.json: the fields that all decoder families share, rope in both notations, and the check for unknown
// fields that change the results.
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
  bool has_intermediate = true;       // false: the family reads it from another field
  int64_t layers = 0;                 // > 0: set by the family; num_hidden_layers is not read
  int64_t vocab_size = 0, heads = 0;  // 0: the file must have them
  int64_t kv_heads = 0;               // 0: as many as heads
  int64_t head_dim = 0;               // 0: complete() derives it
  int64_t max_position = 2048;
};

// A size: at least `least`, and within sane limits.
Result<int64_t> read_size(const json::Value& config, std::string_view field, int64_t least = 1);
Result<int64_t> read_size_or(const json::Value& config, std::string_view field, int64_t fallback, int64_t least = 0);
// A finite number other than 0.
Result<float> read_factor(const json::Value& config, std::string_view field, double fallback);
// 'layer_types' (or `field`), one word per layer; empty if the file has none.
Result<std::vector<std::string>> read_layer_types(const json::Value& config, int64_t layers,
                                                  std::string_view field = "layer_types");
// Sets the window of the layers whose layer_types say sliding_attention; without layer_types, of all layers except
// every `full_every`-th (0: of all layers).
Status read_windows(const json::Value& config, DecoderConfig& out, int64_t full_every);
// Reads the rope of one layer type into out.local_rope, if the file has several.
Status read_local_rope(const json::Value& config, std::string_view layer_type, double default_theta,
                       DecoderConfig& out);

// Mamba-2's time_step_limit: two numbers, the second of which may be infinite.
Status read_time_step_limit(const json::Value& config, Mamba2Config& out);
// Experts as in DeepSeek V3, which other families use too (deepseek.cc).
Status read_sigmoid_experts(const json::Value& config, DecoderConfig& out);
// DeepSeek's and GLM's layers for multi-token prediction.
Status read_layers_ahead(const json::Value& config, DecoderConfig& out);
// For families whose convolutions use hidden_act too: fails if it is not silu.
Status require_silu(const DecoderConfig& config);
// Qwen's experts: their number, and which layers have them (qwen.cc).
Status read_qwen_experts(const json::Value& config, DecoderConfig& out);

// Reads sizes, norms, activation, rope, dtype and token ids, and checks the range of every number.
Result<DecoderConfig> read_common_hf(const json::Value& config, const HfDefaults& defaults);

// Fails if a field that changes the results has a value that is not neutral, unless it is in `handled`.
Status refuse_unknown_maths(const json::Value& config, std::span<const std::string_view> handled);

// sliding_window as Mistral, Phi-3 and Qwen2 write it: 0 if it is missing, null or disabled.
Result<int64_t> read_sliding_window(const json::Value& config);

}  // namespace quire::model
