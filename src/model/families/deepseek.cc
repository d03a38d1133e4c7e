// SPDX-License-Identifier: Apache-2.0
// Families with latent attention: DeepSeek V2 and V3, GLM-4-MoE-Lite (GLM-4.7-Flash), MiniCPM3.
#include <cmath>

#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

constexpr std::string_view kDeepseekHandled[] = {
    "kv_lora_rank",   "q_lora_rank", "n_routed_experts", "moe_intermediate_size",
    "attention_bias", "mlp_bias",    "layer_types"};

// All layers have latent attention. YaRN also scales the scores, by mscale_all_dim.
void set_latent(DecoderConfig& out) {
  const MlaConfig& c = out.mla;
  const double dim = static_cast<double>(c.nope_dim + c.rope_dim);
  double scale = 1.0 / std::sqrt(dim);
  if (out.rope.type != RopeType::kDefault && out.rope.mscale_all_dim != 0 && out.rope.factor > 1) {
    const double mscale = 0.1 * out.rope.mscale_all_dim * std::log(out.rope.factor) + 1.0;
    scale *= mscale * mscale;
  }
  out.attention_scale = static_cast<float>(scale);
  out.rope.partial = 1.0;  // rope_dim is separate from the rest of the head
  out.head_dim = c.nope_dim + c.rope_dim;
  out.head_dim_given = true;
  out.kv_heads = out.heads;
  LayerConfig layer;
  layer.mixer = Mixer::kMla;
  out.per_layer.assign(static_cast<size_t>(out.layers), layer);
}

// Head sizes and ranks. v_dim: that of a file without it; 0: it must be there.
Status read_mla(const json::Value& config, DecoderConfig& out, int64_t v_dim = 0) {
  MlaConfig& c = out.mla;
  QUIRE_ASSIGN(c.q_rank, read_size_or(config, "q_lora_rank", 0));
  QUIRE_ASSIGN(c.kv_rank, read_size(config, "kv_lora_rank"));
  QUIRE_ASSIGN(c.nope_dim, read_size(config, "qk_nope_head_dim"));
  QUIRE_ASSIGN(c.rope_dim, read_size(config, "qk_rope_head_dim"));
  QUIRE_ASSIGN(c.v_dim, v_dim > 0 ? read_size_or(config, "v_head_dim", v_dim, 1) : read_size(config, "v_head_dim"));
  set_latent(out);
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  return {};
}

// Layers from first_k_dense_replace on have n_routed_experts experts, and n_shared_experts of the same width.
Status deepseek_read_experts(const json::Value& config, DecoderConfig& out) {
  QUIRE_ASSIGN(out.moe.experts, read_size_or(config, "n_routed_experts", 0));
  if (out.moe.experts == 0) return {};
  QUIRE_ASSIGN(out.moe.k, read_size_or(config, "num_experts_per_tok", 1, 1));
  QUIRE_ASSIGN(out.moe.intermediate, read_size(config, "moe_intermediate_size"));
  QUIRE_ASSIGN(const int64_t shared, json::get_int_or(config, "n_shared_experts", 0, 0, 1024));
  out.moe.shared_intermediate = shared * out.moe.intermediate;
  QUIRE_ASSIGN(out.moe.scale, read_factor(config, "routed_scaling_factor", 1.0));
  QUIRE_ASSIGN(out.moe.groups, read_size_or(config, "n_group", 1, 1));
  QUIRE_ASSIGN(out.moe.groups_kept, read_size_or(config, "topk_group", 1, 1));
  QUIRE_ASSIGN(const int64_t first, json::get_int_or(config, "first_k_dense_replace", 0, 0, 1 << 20));
  QUIRE_ASSIGN(const int64_t every, json::get_int_or(config, "moe_layer_freq", 1, 1, 4096));
  QUIRE_ASSIGN(const std::vector<std::string> types, read_layer_types(config, out.layers, "mlp_layer_types"));
  for (int64_t i = 0; i < out.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool sparse = types.empty() ? i >= first && i % every == 0 : types[at] == "sparse";
    if (sparse) out.per_layer[at].feed_forward = FeedForward::kMoe;
  }
  return {};
}

Result<DecoderConfig> v2_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.rope_interleaved = true}));
  QUIRE_TRY(refuse_unknown_maths(config, kDeepseekHandled));
  QUIRE_TRY(read_mla(config, out));
  QUIRE_TRY(deepseek_read_experts(config, out));
  QUIRE_ASSIGN(const std::string method, json::get_string_or(config, "topk_method", "greedy"));
  if (method == "greedy") {
    out.moe.groups = out.moe.groups_kept = 1;
  } else if (method != "group_limited_greedy") {
    return unsupported({"field 'topk_method' is '", method, "'; quire has greedy and group_limited_greedy"});
  }
  QUIRE_ASSIGN(out.mlp_bias, json::get_bool_or(config, "mlp_bias", false));
  return out;
}

}  // namespace

Status read_sigmoid_experts(const json::Value& config, DecoderConfig& out) {
  QUIRE_TRY(deepseek_read_experts(config, out));
  out.moe.score = MoeScore::kSigmoid;
  out.moe.group_score = MoeGroupScore::kTopTwoSum;
  out.moe.choice_bias = true;
  QUIRE_ASSIGN(out.moe.normalise, json::get_bool_or(config, "norm_topk_prob", true));
  out.moe.sum_epsilon = 1e-20f;
  return {};
}

namespace {

Result<DecoderConfig> v3_from_hf(const json::Value& config) {
  HfDefaults defaults;
  QUIRE_ASSIGN(defaults.rope_interleaved, json::get_bool_or(config, "rope_interleave", true));
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, defaults));
  QUIRE_TRY(refuse_unknown_maths(config, kDeepseekHandled));
  QUIRE_TRY(read_mla(config, out));
  QUIRE_TRY(read_sigmoid_experts(config, out));
  QUIRE_TRY(read_layers_ahead(config, out));
  return out;
}

Result<DecoderConfig> minicpm3_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.tied = true, .norm_eps = 1e-5}));
  constexpr std::string_view kMiniCpm[] = {"kv_lora_rank", "q_lora_rank", "attention_bias",
                                           "scale_emb",    "scale_depth", "dim_model_base"};
  QUIRE_TRY(refuse_unknown_maths(config, kMiniCpm));
  QUIRE_TRY(read_mla(config, out, out.hidden / out.heads));  // the released model has no v_head_dim
  QUIRE_ASSIGN(out.embedding_scale, read_factor(config, "scale_emb", 1.0));
  QUIRE_ASSIGN(const float depth, read_factor(config, "scale_depth", 1.0));
  QUIRE_ASSIGN(const int64_t base, read_size_or(config, "dim_model_base", out.hidden, 1));
  out.residual_scale = static_cast<float>(static_cast<double>(depth) / std::sqrt(static_cast<double>(out.layers)));
  out.logits_scale = static_cast<float>(static_cast<double>(base) / static_cast<double>(out.hidden));
  return out;
}

// Newer files describe the latent vector as one KV head, and the heads made from it under *_mla; older files and those
// of MiniCPM3 describe only the heads.
Status read_gguf_mla(const weights::GgufMetadata& metadata, const std::string& prefix, DecoderConfig& out) {
  constexpr int64_t kMost = 1 << 16;
  MlaConfig& c = out.mla;
  QUIRE_ASSIGN(c.q_rank, metadata.get_int_or(prefix + "attention.q_lora_rank", 0, 0, kMost));
  QUIRE_ASSIGN(c.kv_rank, metadata.get_int(prefix + "attention.kv_lora_rank", 1, kMost));
  QUIRE_ASSIGN(const int64_t value_length,
               metadata.get_int_or(prefix + "attention.value_length", out.hidden / out.heads, 0, 4096));
  QUIRE_ASSIGN(const int64_t key, metadata.get_int_or(prefix + "attention.key_length_mla", out.head_dim, 1, 4096));
  QUIRE_ASSIGN(c.v_dim, metadata.get_int_or(prefix + "attention.value_length_mla", value_length, 1, 4096));
  c.rope_dim = out.rope.rot_dim;
  c.nope_dim = key - c.rope_dim;
  if (c.nope_dim < 1 || c.v_dim < 1) {
    return invalid_argument({"keys '", prefix, "attention.key_length*' (", key, ") and '", prefix,
                             "attention.value_length*' (", c.v_dim, ") leave no room beside the rotated part of ",
                             c.rope_dim});
  }
  set_latent(out);
  return {};
}

// DeepSeek V2 and V3, and GLM-4-MoE-Lite: they differ in the scores of the router.
Result<DecoderConfig> deepseek_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kKeys[] = {"attention.kv_lora_rank", "attention.value_length", "expert_count",
                                        "nextn_predict_layers"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kKeys));
  QUIRE_TRY(drop_gguf_layers_ahead(metadata, architecture, out));
  out.ahead.zero_first = true;
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_ASSIGN(const double log_multiplier, metadata.get_double_or(prefix + "rope.scaling.yarn_log_multiplier", 0.0));
  if (!(log_multiplier >= 0) || !(log_multiplier < 1e6)) {
    return invalid_argument({"key '", prefix, "rope.scaling.yarn_log_multiplier' must not be negative"});
  }
  out.rope.mscale = out.rope.mscale_all_dim = 10 * log_multiplier;  // files of this architecture hold a tenth of it
  out.rope.interleaved = true;
  QUIRE_TRY(read_gguf_mla(metadata, prefix, out));
  QUIRE_ASSIGN(const int64_t experts, metadata.get_int_or(prefix + "expert_count", 0, 0, 1 << 16));
  if (experts > 0) QUIRE_TRY(read_gguf_routing(metadata, architecture, out));
  return out;
}

// GGUF has no keys for the multipliers; these are those of the released model.
Result<DecoderConfig> minicpm3_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kKeys[] = {"attention.kv_lora_rank", "attention.value_length"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kKeys));
  QUIRE_TRY(read_gguf_mla(metadata, std::string(architecture) + ".", out));
  out.embedding_scale = 12.0f;
  out.residual_scale = static_cast<float>(1.4 / std::sqrt(static_cast<double>(out.layers)));
  out.logits_scale = static_cast<float>(256.0 / static_cast<double>(out.hidden));
  return out;
}

}  // namespace

const Family kDeepseekV2Family = {
    "deepseek-v2", {"DeepseekV2ForCausalLM"}, {"deepseek2"}, v2_from_hf, deepseek_from_gguf};
const Family kDeepseekV3Family = {"deepseek-v3", {"DeepseekV3ForCausalLM"}, {}, v3_from_hf, deepseek_from_gguf};
const Family kGlm4MoeLiteFamily = {"glm4-moe-lite", {"Glm4MoeLiteForCausalLM"}, {}, v3_from_hf, deepseek_from_gguf};
const Family kMiniCpm3Family = {
    "minicpm3", {"MiniCPM3ForCausalLM"}, {"minicpm3"}, minicpm3_from_hf, minicpm3_from_gguf};

}  // namespace quire::model
