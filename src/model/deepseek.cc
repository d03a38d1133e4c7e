// SPDX-License-Identifier: Apache-2.0
// Families with latent attention: DeepSeek V2 and V3, GLM-4-MoE-Lite (GLM-4.7-Flash), MiniCPM3.
#include <cmath>

#include "model/family.h"
#include "model/gguf_config.h"
#include "model/hf_config.h"

namespace quire::model {
namespace {

constexpr std::string_view kHandled[] = {"kv_lora_rank",   "q_lora_rank", "n_routed_experts", "moe_intermediate_size",
                                         "attention_bias", "mlp_bias",    "layer_types"};

// Head sizes and ranks; every layer is latent. YaRN scales the scores once more by mscale_all_dim.
Status read_mla(const json::Value& config, DecoderConfig& out) {
  MlaConfig& c = out.mla;
  QUIRE_ASSIGN(c.q_rank, read_size_or(config, "q_lora_rank", 0));
  QUIRE_ASSIGN(c.kv_rank, read_size(config, "kv_lora_rank"));
  QUIRE_ASSIGN(c.nope_dim, read_size(config, "qk_nope_head_dim"));
  QUIRE_ASSIGN(c.rope_dim, read_size(config, "qk_rope_head_dim"));
  QUIRE_ASSIGN(c.v_dim, read_size(config, "v_head_dim"));
  const double dim = static_cast<double>(c.nope_dim + c.rope_dim);
  double scale = 1.0 / std::sqrt(dim);
  if (out.rope.type != RopeType::kDefault && out.rope.mscale_all_dim != 0 && out.rope.factor > 1) {
    const double mscale = 0.1 * out.rope.mscale_all_dim * std::log(out.rope.factor) + 1.0;
    scale *= mscale * mscale;
  }
  out.attention_scale = static_cast<float>(scale);
  out.rope.partial = 1.0;  // the rotated part is a part of its own
  out.head_dim = c.nope_dim + c.rope_dim;
  out.head_dim_given = true;
  out.kv_heads = out.heads;
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  LayerConfig layer;
  layer.mixer = Mixer::kMla;
  out.per_layer.assign(static_cast<size_t>(out.layers), layer);
  return {};
}

// n_routed_experts from layer first_k_dense_replace on, n_shared_experts of the same width beside them.
Status read_experts(const json::Value& config, DecoderConfig& out) {
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
    if (sparse) out.per_layer[at].feed = Feed::kMoe;
  }
  return {};
}

Result<DecoderConfig> v2_from_hf(const json::Value& config) {
  HfDefaults defaults;
  defaults.rope_interleaved = true;
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, defaults));
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_TRY(read_mla(config, out));
  QUIRE_TRY(read_experts(config, out));
  QUIRE_ASSIGN(const std::string method, json::get_string_or(config, "topk_method", "greedy"));
  if (method == "greedy") {
    out.moe.groups = out.moe.groups_kept = 1;
  } else if (method != "group_limited_greedy") {
    return unsupported("field 'topk_method' is '" + method + "'; quire has greedy and group_limited_greedy");
  }
  QUIRE_ASSIGN(out.mlp_bias, json::get_bool_or(config, "mlp_bias", false));
  return out;
}

}  // namespace

Status read_sigmoid_experts(const json::Value& config, DecoderConfig& out) {
  QUIRE_TRY(read_experts(config, out));
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
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_TRY(read_mla(config, out));
  QUIRE_TRY(read_sigmoid_experts(config, out));
  return out;
}

Result<DecoderConfig> minicpm3_from_hf(const json::Value& config) {
  HfDefaults defaults;
  defaults.norm_eps = 1e-5;
  defaults.tied = true;
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, defaults));
  constexpr std::string_view kMiniCpm[] = {"kv_lora_rank", "q_lora_rank", "attention_bias",
                                           "scale_emb",    "scale_depth", "dim_model_base"};
  QUIRE_TRY(refuse_unknown_maths(config, kMiniCpm));
  QUIRE_TRY(read_mla(config, out));
  QUIRE_ASSIGN(out.embedding_scale, read_factor(config, "scale_emb", 1.0));
  QUIRE_ASSIGN(const float depth, read_factor(config, "scale_depth", 1.0));
  QUIRE_ASSIGN(const int64_t base, read_size_or(config, "dim_model_base", out.hidden, 1));
  out.residual_scale = static_cast<float>(static_cast<double>(depth) / std::sqrt(static_cast<double>(out.layers)));
  out.logits_scale = static_cast<float>(static_cast<double>(base) / static_cast<double>(out.hidden));
  return out;
}

Result<DecoderConfig> no_gguf(const weights::GgufMetadata&, std::string_view) {
  return unsupported("quire reads this family from Hugging Face folders, not from GGUF");
}

constexpr const char* kV2Hf[] = {"DeepseekV2ForCausalLM"};
constexpr const char* kV3Hf[] = {"DeepseekV3ForCausalLM"};
constexpr const char* kLiteHf[] = {"Glm4MoeLiteForCausalLM"};
constexpr const char* kMiniCpm3Hf[] = {"MiniCPM3ForCausalLM"};

}  // namespace

const Family kDeepseekV2Family = {"deepseek-v2", kV2Hf, {}, v2_from_hf, no_gguf};
const Family kDeepseekV3Family = {"deepseek-v3", kV3Hf, {}, v3_from_hf, no_gguf};
const Family kGlm4MoeLiteFamily = {"glm4-moe-lite", kLiteHf, {}, v3_from_hf, no_gguf};
const Family kMiniCpm3Family = {"minicpm3", kMiniCpm3Hf, {}, minicpm3_from_hf, no_gguf};

}  // namespace quire::model
