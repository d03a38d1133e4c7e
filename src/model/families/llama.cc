// SPDX-License-Identifier: Apache-2.0
// Llama 2 and 3.x, TinyLlama, SmolLM2; and SmolLM3, which has no positions in every fourth layer.
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

Result<DecoderConfig> llama_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  constexpr std::string_view kHandled[] = {"attention_bias", "mlp_bias", "partial_rotary_factor"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  QUIRE_ASSIGN(out.mlp_bias, json::get_bool_or(config, "mlp_bias", false));
  return out;
}

// Mixtral's files are "llama" too; they have experts.
Result<DecoderConfig> llama_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kHandled[] = {"expert_count"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandled));
  out.gguf_permuted = true;
  QUIRE_ASSIGN(const int64_t experts, metadata.get_int_or(std::string(architecture) + ".expert_count", 0, 0, 1 << 16));
  if (experts > 0) {
    QUIRE_TRY(read_gguf_experts(metadata, architecture, out));
    out.moe.normalise = true;
  }
  return out;
}

Result<DecoderConfig> smollm3_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.rope_theta = 2000000.0, .tied = true}));
  constexpr std::string_view kHandled[] = {"attention_bias",         "mlp_bias",       "no_rope_layers",
                                           "no_rope_layer_interval", "sliding_window", "use_sliding_window"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(const bool slides, json::get_bool_or(config, "use_sliding_window", false));
  if (slides) return unsupported("field 'use_sliding_window' is true, which quire does not have for SmolLM3");
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  QUIRE_ASSIGN(out.mlp_bias, json::get_bool_or(config, "mlp_bias", false));
  const json::Value* layers = config.find("no_rope_layers");
  if (layers != nullptr && !layers->is_null()) {  // 1 means that the layer has positions, despite the name
    if (!layers->is_array() || layers->as_array().size() != static_cast<size_t>(out.layers)) {
      return invalid_argument("field 'no_rope_layers' must be a list with a number for each layer");
    }
    for (const json::Value& has_rope : layers->as_array()) {
      if (!has_rope.is_int()) return invalid_argument("field 'no_rope_layers' must hold 0 and 1");
      out.rope_layers.push_back(has_rope.as_int() != 0 ? 1 : 0);
    }
    return out;
  }
  QUIRE_ASSIGN(const int64_t interval, json::get_int_or(config, "no_rope_layer_interval", 4, 1, 4096));
  for (int64_t i = 0; i < out.layers; ++i) out.rope_layers.push_back((i + 1) % interval != 0 ? 1 : 0);
  return out;
}

Result<DecoderConfig> smollm3_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, llama_from_gguf(metadata, architecture));
  for (int64_t i = 0; i < out.layers; ++i) out.rope_layers.push_back((i + 1) % 4 != 0 ? 1 : 0);
  return out;
}

}  // namespace

const Family kLlamaFamily = {"llama", {"LlamaForCausalLM"}, {"llama"}, llama_from_hf, llama_from_gguf};
const Family kSmolLm3Family = {"smollm3", {"SmolLM3ForCausalLM"}, {"smollm3"}, smollm3_from_hf, smollm3_from_gguf};

}  // namespace quire::model
