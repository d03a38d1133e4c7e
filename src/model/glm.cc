// SPDX-License-Identifier: Apache-2.0
// GLM-4: half of each head rotates in interleaved pairs; the 0414 models add norms after attention and MLP.
#include "model/family.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"

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

constexpr PartName kGlm4Names[] = {
    {Part::kPostAttentionNorm, "model.layers.{}.post_self_attn_layernorm", "blk.{}.post_attention_norm"},
    {Part::kPostMlpNorm, "model.layers.{}.post_mlp_layernorm", "blk.{}.post_ffw_norm"},
};
constexpr const char* kGlmHf[] = {"GlmForCausalLM"};
constexpr const char* kGlmGguf[] = {"chatglm"};
constexpr const char* kGlm4Hf[] = {"Glm4ForCausalLM"};
constexpr const char* kGlm4Gguf[] = {"glm4"};

}  // namespace

const Family kGlmFamily = {"glm", kGlmHf, kGlmGguf, glm_from_hf, glm_from_gguf};
const Family kGlm4Family = {"glm4", kGlm4Hf, kGlm4Gguf, glm4_from_hf, glm4_from_gguf, kGlm4Names};

}  // namespace quire::model
