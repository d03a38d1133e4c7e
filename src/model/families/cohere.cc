// SPDX-License-Identifier: Apache-2.0
// Cohere (Command R) and Cohere 2 (Command R7B): attention and MLP in parallel after one norm, scaled logits.
// In Cohere 2, layers with a sliding window have positions and full layers have none.
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

constexpr std::string_view kCohereHandled[] = {"logit_scale", "attention_bias", "use_qk_norm", "sliding_window",
                                               "layer_types"};

void cohere_set_common(DecoderConfig& out) {
  out.norm_kind = NormKind::kLayer;
  out.norms = NormPlacement::kParallel;
  out.rope.interleaved = true;
}

Result<DecoderConfig> cohere_common_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(
      DecoderConfig out,
      read_common_hf(config,
                     {.rope_interleaved = true, .tied = true, .norm_eps = 1e-5, .norm_eps_field = "layer_norm_eps"}));
  QUIRE_TRY(refuse_unknown_maths(config, kCohereHandled));
  QUIRE_ASSIGN(out.logits_scale, read_factor(config, "logit_scale", 0.0625));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  cohere_set_common(out);
  return out;
}

Result<DecoderConfig> cohere_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, cohere_common_from_hf(config));
  QUIRE_ASSIGN(const bool norm, json::get_bool_or(config, "use_qk_norm", false));
  if (norm) out.qk_norm = QkNorm::kPerHeadWeights;
  return out;
}

void leave_out_positions(DecoderConfig& out) {
  for (LayerConfig& layer : out.per_layer) layer.rope = layer.window > 0 ? RopeUse::kMain : RopeUse::kNone;
}

Result<DecoderConfig> cohere2_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, cohere_common_from_hf(config));
  QUIRE_ASSIGN(const int64_t pattern, json::get_int_or(config, "sliding_window_pattern", 4, 1, 4096));
  QUIRE_TRY(read_windows(config, out, pattern));
  leave_out_positions(out);
  return out;
}

Result<DecoderConfig> cohere_common_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kKeys[] = {"logit_scale", "attention.sliding_window"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kKeys));
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_ASSIGN(const double scale, metadata.get_double_or(prefix + "logit_scale", 0.0625));
  QUIRE_ASSIGN(const double eps, metadata.get_double_or(prefix + "attention.layer_norm_epsilon", 1e-5));
  if (!(scale > 0) || !(scale < 1e9) || !(eps >= 0) || !(eps < 1)) {
    return invalid_argument({"keys '", prefix, "logit_scale' and 'attention.layer_norm_epsilon' are out of range"});
  }
  out.logits_scale = static_cast<float>(scale);
  out.norm_eps = static_cast<float>(eps);
  cohere_set_common(out);
  return out;
}

Result<DecoderConfig> cohere2_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, cohere_common_from_gguf(metadata, architecture));
  QUIRE_ASSIGN(const int64_t window, metadata.get_int("cohere2.attention.sliding_window", 1, 1 << 30));
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  for (size_t i = 0; i < out.per_layer.size(); ++i) {
    if ((i + 1) % 4 != 0) out.per_layer[i].window = window;
  }
  leave_out_positions(out);
  return out;
}

}  // namespace

const Family kCohereFamily = {"cohere", {"CohereForCausalLM"}, {"command-r"}, cohere_from_hf, cohere_common_from_gguf};
const Family kCohere2Family = {"cohere2", {"Cohere2ForCausalLM"}, {"cohere2"}, cohere2_from_hf, cohere2_from_gguf};

}  // namespace quire::model
