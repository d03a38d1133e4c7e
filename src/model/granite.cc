// SPDX-License-Identifier: Apache-2.0
// Granite 3.x: Llama with four multipliers.
#include <cmath>

#include "model/family.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"

namespace quire::model {
namespace {

Result<float> multiplier(double value, const char* field) {
  const float rounded = static_cast<float>(value);
  if (!(rounded > 0) || !std::isfinite(rounded)) {
    return invalid_argument("'" + std::string(field) + "' must be a positive number");
  }
  return rounded;
}

Result<DecoderConfig> from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  constexpr std::string_view kHandled[] = {"attention_bias",       "mlp_bias",
                                           "embedding_multiplier", "residual_multiplier",
                                           "attention_multiplier", "logits_scaling"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  QUIRE_ASSIGN(out.mlp_bias, json::get_bool_or(config, "mlp_bias", false));
  QUIRE_ASSIGN(const double embedding, json::get_double_or(config, "embedding_multiplier", 1.0));
  QUIRE_ASSIGN(const double attention, json::get_double_or(config, "attention_multiplier", 1.0));
  QUIRE_ASSIGN(const double residual, json::get_double_or(config, "residual_multiplier", 1.0));
  QUIRE_ASSIGN(const double logits, json::get_double_or(config, "logits_scaling", 1.0));
  QUIRE_ASSIGN(out.embedding_scale, multiplier(embedding, "embedding_multiplier"));
  QUIRE_ASSIGN(out.attention_scale, multiplier(attention, "attention_multiplier"));
  QUIRE_ASSIGN(out.residual_scale, multiplier(residual, "residual_multiplier"));
  QUIRE_ASSIGN(out.logits_scale, multiplier(1.0 / logits, "logits_scaling"));
  return out;
}

Result<DecoderConfig> from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kHandled[] = {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandled));
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_ASSIGN(const double attention, metadata.get_double_or(prefix + "attention.scale", 0.0));
  QUIRE_ASSIGN(const double embedding, metadata.get_double_or(prefix + "embedding_scale", 1.0));
  QUIRE_ASSIGN(const double residual, metadata.get_double_or(prefix + "residual_scale", 1.0));
  QUIRE_ASSIGN(const double logits, metadata.get_double_or(prefix + "logit_scale", 1.0));
  if (attention != 0) {
    QUIRE_ASSIGN(out.attention_scale, multiplier(attention, "attention.scale"));
  }
  QUIRE_ASSIGN(out.embedding_scale, multiplier(embedding, "embedding_scale"));
  QUIRE_ASSIGN(out.residual_scale, multiplier(residual, "residual_scale"));
  QUIRE_ASSIGN(out.logits_scale, multiplier(1.0 / logits, "logit_scale"));
  out.gguf_permuted = true;
  return out;
}

constexpr const char* kHf[] = {"GraniteForCausalLM"};
constexpr const char* kGguf[] = {"granite"};

}  // namespace

const Family kGraniteFamily = {"granite", kHf, kGguf, from_hf, from_gguf};

}  // namespace quire::model
