// SPDX-License-Identifier: Apache-2.0
// GLM-4 and GLM-4-MoE: half of each head rotates in interleaved pairs; the 0414 models add norms after attention and
// MLP.
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

constexpr HfDefaults kDefaults = {.partial_rotary = 0.5, .rope_interleaved = true, .norm_eps = 1.5625e-7};

Result<DecoderConfig> glm_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, kDefaults));
  constexpr std::string_view kHandled[] = {"attention_bias", "partial_rotary_factor"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(out.qkv_bias, json::get_bool_or(config, "attention_bias", true));
  out.fused_gate_up = true;
  return out;
}

Result<DecoderConfig> glm4_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, glm_from_hf(config));
  out.norms = NormPlacement::kSandwich;
  return out;
}

Result<DecoderConfig> glm_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture));
  out.rope.interleaved = true;
  out.fused_gate_up = true;
  return out;
}

Result<DecoderConfig> glm4_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, glm_from_gguf(metadata, architecture));
  out.norms = NormPlacement::kSandwich;
  return out;
}

// GLM-4.5, 4.6 and 4.7: experts after the first layers; rotated pairs are half a head apart.
Result<DecoderConfig> glm4_moe_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.partial_rotary = 0.5, .norm_eps = 1e-5}));
  constexpr std::string_view kHandled[] = {"attention_bias",   "partial_rotary_factor", "use_qk_norm",
                                           "n_routed_experts", "moe_intermediate_size", "layer_types"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(out.qkv_bias, json::get_bool_or(config, "attention_bias", false));
  QUIRE_ASSIGN(const bool norm, json::get_bool_or(config, "use_qk_norm", false));
  if (norm) out.qk_norm = QkNorm::kPerHead;
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  QUIRE_TRY(read_sigmoid_experts(config, out));
  QUIRE_TRY(read_layers_ahead(config, out));
  return out;
}

// open_model finds out whether q and k have norms; those of the largest model do.
Result<DecoderConfig> glm4_moe_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kHandled[] = {"expert_count", "nextn_predict_layers"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandled));
  QUIRE_TRY(drop_gguf_layers_ahead(metadata, architecture, out));
  out.ahead.zero_first = true;
  QUIRE_TRY(read_gguf_routing(metadata, architecture, out));
  return out;
}

constexpr PartName kGlm4Names[] = {
    {Part::kPostAttentionNorm, "model.layers.{}.post_self_attn_layernorm", "blk.{}.post_attention_norm"},
    {Part::kPostMlpNorm, "model.layers.{}.post_mlp_layernorm", "blk.{}.post_ffw_norm"},
};
constexpr PartName kGlm4MoeNames[] = {
    {Part::kMlpNorm, "model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"},
};

}  // namespace

const Family kGlmFamily = {"glm", {"GlmForCausalLM"}, {"chatglm"}, glm_from_hf, glm_from_gguf};
const Family kGlm4Family = {"glm4", {"Glm4ForCausalLM"}, {"glm4"}, glm4_from_hf, glm4_from_gguf, kGlm4Names};
const Family kGlm4MoeFamily = {"glm4-moe",       {"Glm4MoeForCausalLM"}, {"glm4moe"},
                               glm4_moe_from_hf, glm4_moe_from_gguf,     kGlm4MoeNames};

}  // namespace quire::model
