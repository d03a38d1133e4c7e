// SPDX-License-Identifier: Apache-2.0
// Qwen2 and 2.5 (biases on q, k and v), Qwen3 (norms on q and k instead) and Qwen3-MoE.
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

constexpr std::string_view kQwenHandled[] = {"sliding_window",       "use_sliding_window", "attention_bias",
                                             "layer_types",          "num_experts",        "num_local_experts",
                                             "moe_intermediate_size"};
constexpr size_t kDense = 4;  // of them

// use_sliding_window is false in all released files. The first max_window_layers layers have full attention.
Status read_qwen_windows(const json::Value& config, DecoderConfig& out) {
  QUIRE_ASSIGN(const bool slides, json::get_bool_or(config, "use_sliding_window", false));
  QUIRE_TRY(read_windows(config, out, 0));
  if (!slides) {
    for (LayerConfig& layer : out.per_layer) layer.window = 0;
    return {};
  }
  const json::Value* types = config.find("layer_types");
  if (types != nullptr && !types->is_null()) return {};
  QUIRE_ASSIGN(const int64_t full, json::get_int_or(config, "max_window_layers", 28, 0, 4096));
  for (int64_t i = 0; i < std::min(full, out.layers); ++i) out.per_layer[static_cast<size_t>(i)].window = 0;
  return {};
}

Result<DecoderConfig> qwen2_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  QUIRE_TRY(refuse_unknown_maths(config, std::span(kQwenHandled).first(kDense)));
  QUIRE_TRY(read_qwen_windows(config, out));
  out.qkv_bias = true;
  return out;
}

Result<DecoderConfig> qwen2_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture));
  out.qkv_bias = true;
  return out;
}

Result<DecoderConfig> qwen3_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  QUIRE_TRY(refuse_unknown_maths(config, std::span(kQwenHandled).first(kDense)));
  QUIRE_TRY(read_qwen_windows(config, out));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  out.qk_norm = QkNorm::kPerHead;
  return out;
}

Result<DecoderConfig> qwen3_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture));
  out.qk_norm = QkNorm::kPerHead;
  return out;
}

Result<DecoderConfig> qwen3_moe_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  QUIRE_TRY(refuse_unknown_maths(config, kQwenHandled));
  // A window is in all layers, whatever max_window_layers and layer_types say. It is off in all released files.
  QUIRE_ASSIGN(const bool slides, json::get_bool_or(config, "use_sliding_window", false));
  LayerConfig layer;
  if (slides) {
    QUIRE_ASSIGN(layer.window, read_sliding_window(config));
  }
  out.per_layer.assign(static_cast<size_t>(out.layers), layer);
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  out.qk_norm = QkNorm::kPerHead;
  QUIRE_TRY(read_qwen_experts(config, out));
  return out;
}

Result<DecoderConfig> qwen3_moe_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kHandledKeys[] = {"expert_count"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandledKeys));
  out.qk_norm = QkNorm::kPerHead;
  QUIRE_TRY(read_gguf_experts(metadata, architecture, out));
  out.moe.normalise = true;
  return out;
}

}  // namespace

Status read_qwen_experts(const json::Value& config, DecoderConfig& out) {
  QUIRE_ASSIGN(const int64_t newer, read_size_or(config, "num_local_experts", 0));
  QUIRE_ASSIGN(out.moe.experts, read_size_or(config, "num_experts", newer));
  QUIRE_ASSIGN(out.moe.k, read_size_or(config, "num_experts_per_tok", 8, 1));
  QUIRE_ASSIGN(out.moe.intermediate, read_size(config, "moe_intermediate_size"));
  QUIRE_ASSIGN(out.moe.normalise, json::get_bool_or(config, "norm_topk_prob", false));
  QUIRE_ASSIGN(const int64_t step, json::get_int_or(config, "decoder_sparse_step", 1, 1, 4096));
  for (int64_t i = 0; i < out.layers; ++i) {
    if (out.moe.experts > 0 && (i + 1) % step == 0)
      out.per_layer[static_cast<size_t>(i)].feed_forward = FeedForward::kMoe;
  }
  const json::Value* dense = config.find("mlp_only_layers");
  if (dense == nullptr || dense->is_null()) return {};
  if (!dense->is_array()) return invalid_argument("field 'mlp_only_layers' must be a list of layers");
  for (const json::Value& layer : dense->as_array()) {
    if (!layer.is_int() || layer.as_int() < 0 || layer.as_int() >= out.layers) {
      return invalid_argument({"field 'mlp_only_layers' must hold layers from 0 to ", out.layers - 1});
    }
    out.per_layer[static_cast<size_t>(layer.as_int())].feed_forward = FeedForward::kGated;
  }
  return {};
}

const Family kQwen2Family = {"qwen2", {"Qwen2ForCausalLM"}, {"qwen2"}, qwen2_from_hf, qwen2_from_gguf};
const Family kQwen3Family = {"qwen3", {"Qwen3ForCausalLM"}, {"qwen3"}, qwen3_from_hf, qwen3_from_gguf};
const Family kQwen3MoeFamily = {
    "qwen3-moe", {"Qwen3MoeForCausalLM"}, {"qwen3moe"}, qwen3_moe_from_hf, qwen3_moe_from_gguf};

}  // namespace quire::model
