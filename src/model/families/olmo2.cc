// SPDX-License-Identifier: Apache-2.0
// OLMo-2: norms of the outputs of attention and MLP instead of the inputs, and norms of all of q and k. OLMo-3 adds a
// sliding window in three of four layers.
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

Result<DecoderConfig> olmo2_common_from_hf(const json::Value& config, std::span<const std::string_view> handled) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.norm_eps = 1e-5}));
  QUIRE_TRY(refuse_unknown_maths(config, handled));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  out.qk_norm = QkNorm::kWhole;
  out.norms = NormPlacement::kPost;
  return out;
}

constexpr std::string_view kOlmo2Handled[] = {"attention_bias", "sliding_window", "layer_types"};

Result<DecoderConfig> olmo2_from_hf(const json::Value& config) {
  return olmo2_common_from_hf(config, std::span(kOlmo2Handled).first(1));
}

// Only the full layers have rope scaling.
Result<DecoderConfig> olmo3_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, olmo2_common_from_hf(config, kOlmo2Handled));
  QUIRE_TRY(read_windows(config, out, 4));
  QUIRE_TRY(read_local_rope(config, "sliding_attention", out.rope.theta, out));
  for (LayerConfig& layer : out.per_layer) layer.rope = layer.window > 0 ? RopeUse::kLocal : RopeUse::kMain;
  return out;
}

Result<DecoderConfig> olmo2_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kOlmo2Handled[] = {"attention.sliding_window"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kOlmo2Handled));
  out.qk_norm = QkNorm::kWhole;
  out.norms = NormPlacement::kPost;
  if (metadata.contains(std::string(architecture) + ".attention.sliding_window")) {  // OLMo-3
    QUIRE_TRY(read_gguf_windows(metadata, architecture, 4, out));
    QUIRE_TRY(read_gguf_local_rope(metadata, architecture, out.rope.theta, out));
  }
  return out;
}

}  // namespace

const Family kOlmo2Family = {"olmo2", {"Olmo2ForCausalLM"}, {"olmo2"}, olmo2_from_hf, olmo2_from_gguf};
const Family kOlmo3Family = {"olmo3", {"Olmo3ForCausalLM"}, {}, olmo3_from_hf, olmo2_from_gguf};

}  // namespace quire::model
