// SPDX-License-Identifier: Apache-2.0
// EAGLE-3 layers, which draft for a dense model (AheadConfig::eagle).
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

Status read_taps(const json::Value& config, DecoderConfig& out) {
  const json::Value* nested = config.find("eagle_config");
  const json::Value* taps =
      (nested != nullptr && nested->is_object() ? *nested : config).find("eagle_aux_hidden_state_layer_ids");
  if (taps == nullptr || taps->is_null()) return {};
  const bool list = taps->is_array() && !taps->as_array().empty() && taps->as_array().size() <= 16;
  if (!list) return invalid_argument("field 'eagle_aux_hidden_state_layer_ids' must be a list of up to 16 layers");
  for (const json::Value& layer : taps->as_array()) {
    if (!layer.is_int() || layer.as_int() < 0 || layer.as_int() > 4096) {
      return invalid_argument("field 'eagle_aux_hidden_state_layer_ids' must hold numbers of layers");
    }
    out.ahead.taps.push_back(layer.as_int());
  }
  return {};
}

Result<DecoderConfig> eagle_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  constexpr std::string_view kHandled[] = {"attention_bias", "mlp_bias"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  QUIRE_ASSIGN(out.mlp_bias, json::get_bool_or(config, "mlp_bias", false));
  if (out.layers != 1) return unsupported("field 'num_hidden_layers' must be 1 for EAGLE-3");
  out.ahead.layers = 1;
  out.ahead.is_layer = out.ahead.eagle = true;
  QUIRE_ASSIGN(out.ahead.draft_vocab, json::get_int_or(config, "draft_vocab_size", out.vocab_size, 1, out.vocab_size));
  QUIRE_TRY(read_taps(config, out));
  return out;
}

constexpr PartName kEagleNames[] = {
    {Part::kEmbedding, "embed_tokens", ""},
    {Part::kFinalNorm, "norm", ""},
    {Part::kHead, "lm_head", ""},
    {Part::kAttentionNorm, "midlayer.input_layernorm", ""},
    {Part::kMlpNorm, "midlayer.post_attention_layernorm", ""},
    {Part::kQ, "midlayer.self_attn.q_proj", ""},
    {Part::kK, "midlayer.self_attn.k_proj", ""},
    {Part::kV, "midlayer.self_attn.v_proj", ""},
    {Part::kO, "midlayer.self_attn.o_proj", ""},
    {Part::kGate, "midlayer.mlp.gate_proj", ""},
    {Part::kUp, "midlayer.mlp.up_proj", ""},
    {Part::kDown, "midlayer.mlp.down_proj", ""},
    {Part::kAheadProjection, "fc", ""},
    {Part::kAheadHiddenNorm, "midlayer.hidden_norm", ""},
};

}  // namespace

const Family kEagle3Family = {
    "eagle3", {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"}, {}, eagle_from_hf, nullptr, kEagleNames};

}  // namespace quire::model
