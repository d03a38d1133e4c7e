// SPDX-License-Identifier: Apache-2.0
// LFM2: short convolutions with a few layers of attention; LFM2-MoE with experts after the first layers.
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

constexpr std::string_view kLfmHandled[] = {"layer_types", "num_experts", "moe_intermediate_size"};

Result<DecoderConfig> lfm_common_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(const int64_t width, read_size_or(config, "block_ff_dim", 0));  // wins over intermediate_size
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.rope_theta = 1e6,
                                                          .tied = true,
                                                          .norm_eps = 1e-5,
                                                          .norm_eps_field = "norm_eps",
                                                          .has_intermediate = width == 0}));
  if (width > 0) out.intermediate = width;
  const json::Value* tied = config.find("tie_embedding");  // the name in the first files
  if (tied != nullptr && tied->is_bool()) out.tied_embeddings = tied->as_bool();
  QUIRE_TRY(refuse_unknown_maths(config, kLfmHandled));
  QUIRE_ASSIGN(out.short_conv.kernel, json::get_int_or(config, "conv_L_cache", 3, 2, 64));
  QUIRE_ASSIGN(out.short_conv.bias, json::get_bool_or(config, "conv_bias", false));
  out.qk_norm = QkNorm::kPerHead;
  QUIRE_ASSIGN(const std::vector<std::string> types, read_layer_types(config, out.layers));
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  if (!types.empty()) {
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] == "conv") {
        out.per_layer[i].mixer = Mixer::kShortConv;
      } else if (types[i] != "full_attention") {
        return unsupported({"field 'layer_types' names '", types[i], "'; this family has conv and full_attention"});
      }
    }
    return out;
  }
  const json::Value* full = config.find("full_attn_idxs");
  if (full == nullptr || !full->is_array()) return invalid_argument("field 'layer_types' is missing");
  for (LayerConfig& layer : out.per_layer) layer.mixer = Mixer::kShortConv;
  for (const json::Value& index : full->as_array()) {
    if (!index.is_int() || index.as_int() < 0 || index.as_int() >= out.layers) {
      return invalid_argument("field 'full_attn_idxs' must hold layers");
    }
    out.per_layer[static_cast<size_t>(index.as_int())].mixer = Mixer::kAttention;
  }
  return out;
}

Result<DecoderConfig> lfm2_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, lfm_common_from_hf(config));
  QUIRE_ASSIGN(const bool adjust, json::get_bool_or(config, "block_auto_adjust_ff_dim", true));
  if (!adjust) return out;
  QUIRE_ASSIGN(const double multiplier, json::get_double_or(config, "block_ffn_dim_multiplier", 1.0));
  QUIRE_ASSIGN(const int64_t multiple, json::get_int_or(config, "block_multiple_of", 256, 1, 1 << 20));
  if (!(multiplier > 0) || !(multiplier < 1000)) {
    return invalid_argument("field 'block_ffn_dim_multiplier' must be a positive number");
  }
  const auto width = static_cast<int64_t>(multiplier * static_cast<double>(2 * out.intermediate / 3));
  out.intermediate = (width + multiple - 1) / multiple * multiple;
  return out;
}

Result<DecoderConfig> lfm2_moe_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, lfm_common_from_hf(config));
  QUIRE_ASSIGN(out.moe.experts, read_size(config, "num_experts"));
  QUIRE_ASSIGN(out.moe.k, read_size_or(config, "num_experts_per_tok", 4, 1));
  QUIRE_ASSIGN(out.moe.intermediate, read_size(config, "moe_intermediate_size"));
  QUIRE_ASSIGN(out.moe.normalise, json::get_bool_or(config, "norm_topk_prob", true));
  QUIRE_ASSIGN(out.moe.choice_bias, json::get_bool_or(config, "use_expert_bias", true));
  QUIRE_ASSIGN(out.moe.scale, read_factor(config, "routed_scaling_factor", 1.0));
  out.moe.score = MoeScore::kSigmoid;
  out.moe.sum_epsilon = 1e-6f;
  QUIRE_ASSIGN(const int64_t dense, json::get_int_or(config, "num_dense_layers", 2, 0, 4096));
  for (int64_t i = dense; i < out.layers; ++i) out.per_layer[static_cast<size_t>(i)].feed_forward = FeedForward::kMoe;
  return out;
}

// Layers without KV heads are convolutions.
Result<DecoderConfig> lfm2_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kKeys[] = {"attention.head_count_kv", "expert_count"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kKeys));
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_ASSIGN(out.short_conv.kernel, metadata.get_int(prefix + "shortconv.l_cache", 2, 64));
  out.qk_norm = QkNorm::kPerHead;
  for (LayerConfig& layer : out.per_layer) {
    if (layer.kv_heads < 0) layer.mixer = Mixer::kShortConv, layer.kv_heads = 0;
  }
  return out;
}

Result<DecoderConfig> lfm2_moe_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, lfm2_from_gguf(metadata, architecture));
  QUIRE_TRY(read_gguf_routing(metadata, architecture, out));
  out.moe.normalise = true;
  out.moe.sum_epsilon = 1e-6f;
  return out;
}

constexpr PartName kLfmNames[] = {
    {Part::kFinalNorm, "model.embedding_norm", "token_embd_norm"},
    {Part::kAttentionNorm, "model.layers.{}.operator_norm", "blk.{}.attn_norm"},
    {Part::kMlpNorm, "model.layers.{}.ffn_norm", "blk.{}.ffn_norm"},
    {Part::kO, "model.layers.{}.self_attn.out_proj", "blk.{}.attn_output"},
    {Part::kQNorm, "model.layers.{}.self_attn.q_layernorm", "blk.{}.attn_q_norm"},
    {Part::kKNorm, "model.layers.{}.self_attn.k_layernorm", "blk.{}.attn_k_norm"},
    {Part::kStateIn, "model.layers.{}.conv.in_proj", "blk.{}.shortconv.in_proj"},
    {Part::kConv, "model.layers.{}.conv.conv", "blk.{}.shortconv.conv"},
    {Part::kStateOut, "model.layers.{}.conv.out_proj", "blk.{}.shortconv.out_proj"},
    {Part::kGate, "model.layers.{}.feed_forward.w1", "blk.{}.ffn_gate"},
    {Part::kUp, "model.layers.{}.feed_forward.w3", "blk.{}.ffn_up"},
    {Part::kDown, "model.layers.{}.feed_forward.w2", "blk.{}.ffn_down"},
    {Part::kRouter, "model.layers.{}.feed_forward.gate", "blk.{}.ffn_gate_inp"},
    {Part::kChoiceBias, "model.layers.{}.feed_forward.expert_bias", "blk.{}.exp_probs_b"},
    {Part::kExpertGate, "model.layers.{}.feed_forward.experts.{}.w1", ""},
    {Part::kExpertUp, "model.layers.{}.feed_forward.experts.{}.w3", ""},
    {Part::kExpertDown, "model.layers.{}.feed_forward.experts.{}.w2", ""},
};

}  // namespace

const Family kLfm2Family = {"lfm2", {"Lfm2ForCausalLM"}, {"lfm2"}, lfm2_from_hf, lfm2_from_gguf, kLfmNames};
const Family kLfm2MoeFamily = {"lfm2-moe",       {"Lfm2MoeForCausalLM"}, {"lfm2moe"},
                               lfm2_moe_from_hf, lfm2_moe_from_gguf,     kLfmNames};

}  // namespace quire::model
