// SPDX-License-Identifier: Apache-2.0
// Mistral ("llama" in GGUF), Ministral with a sliding window in some layers, Ministral 3 with attention temperature
// tuning, and Mixtral.
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

constexpr std::string_view kMistralHandled[] = {"sliding_window", "layer_types", "num_local_experts"};

Result<DecoderConfig> mistral_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  QUIRE_TRY(refuse_unknown_maths(config, std::span(kMistralHandled).first(2)));
  QUIRE_TRY(read_windows(config, out, 0));
  return out;
}

// Models with vision have the class Mistral3ForConditionalGeneration, whichever of the two their text part is.
Result<DecoderConfig> ministral3_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(const std::string model_type, json::get_string_or(config, "model_type", ""));
  if (model_type == "mistral") return mistral_from_hf(config);
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.norm_eps = 1e-5}));
  QUIRE_TRY(refuse_unknown_maths(config, std::span(kMistralHandled).first(2)));
  QUIRE_TRY(read_windows(config, out, 0));
  const json::Value* rope = config.find("rope_parameters");
  if (rope == nullptr || !rope->is_object()) return invalid_argument("field 'rope_parameters' must be an object");
  QUIRE_ASSIGN(const double beta, json::get_double_or(*rope, "llama_4_scaling_beta", 0.0));
  if (!(beta >= 0) || !(beta < 1e6)) return invalid_argument("field 'llama_4_scaling_beta' must not be negative");
  out.attention_temperature = static_cast<float>(beta);
  out.attention_temperature_length = out.rope.original_max_position;
  if (beta > 0 && out.attention_temperature_length < 1) {
    return invalid_argument("field 'llama_4_scaling_beta' needs 'original_max_position_embeddings'");
  }
  return out;
}

Result<DecoderConfig> mixtral_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.rope_theta = 1e6, .norm_eps = 1e-5}));
  QUIRE_TRY(refuse_unknown_maths(config, kMistralHandled));
  QUIRE_TRY(read_windows(config, out, 0));
  QUIRE_ASSIGN(out.moe.experts, read_size_or(config, "num_local_experts", 8, 1));
  QUIRE_ASSIGN(out.moe.k, read_size_or(config, "num_experts_per_tok", 2, 1));
  out.moe.intermediate = out.intermediate;
  out.moe.normalise = true;
  for (LayerConfig& layer : out.per_layer) layer.feed_forward = FeedForward::kMoe;
  return out;
}

Result<DecoderConfig> mistral_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kKeys[] = {"attention.temperature_scale"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kKeys));
  out.gguf_permuted = true;
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_ASSIGN(const double beta, metadata.get_double_or(prefix + "attention.temperature_scale", 0.0));
  QUIRE_ASSIGN(const double mscale, metadata.get_double_or(prefix + "rope.scaling.yarn_log_multiplier", 0.0));
  if (!(beta >= 0) || !(beta < 1e6) || !(mscale >= 0) || !(mscale < 1e6)) {
    return invalid_argument(
        {"keys '", prefix, "attention.temperature_scale' and 'rope.scaling.yarn_log_multiplier' must not be negative"});
  }
  out.attention_temperature = static_cast<float>(beta);
  out.attention_temperature_length = out.rope.original_max_position;
  out.rope.mscale = out.rope.mscale_all_dim = mscale;
  return out;
}

constexpr PartName kMixtralNames[] = {
    {Part::kRouter, "model.layers.{}.block_sparse_moe.gate", "blk.{}.ffn_gate_inp"},
    {Part::kExpertGate, "model.layers.{}.block_sparse_moe.experts.{}.w1", ""},
    {Part::kExpertUp, "model.layers.{}.block_sparse_moe.experts.{}.w3", ""},
    {Part::kExpertDown, "model.layers.{}.block_sparse_moe.experts.{}.w2", ""},
};

}  // namespace

const Family kMistralFamily = {"mistral", {"MistralForCausalLM"}, {}, mistral_from_hf, mistral_from_gguf};
const Family kMinistralFamily = {"ministral", {"MinistralForCausalLM"}, {}, mistral_from_hf, mistral_from_gguf};
const Family kMinistral3Family = {"ministral3",
                                  {"Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"},
                                  {"mistral3"},
                                  ministral3_from_hf,
                                  mistral_from_gguf};
const Family kMixtralFamily = {"mixtral",       {"MixtralForCausalLM"}, {},
                               mixtral_from_hf, mistral_from_gguf,      kMixtralNames};

}  // namespace quire::model
