// SPDX-License-Identifier: Apache-2.0
// Gemma 2 (a sliding window in every other layer, soft caps), Gemma 3 (five layers with a window per full layer, two
// ropes, norms of q and k) and the text part of Gemma 4 (shared K and V, a small embedding in each layer).
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

float root(int64_t n) {
  return static_cast<float>(std::sqrt(static_cast<double>(n)));
}

// What all three have in common.
Result<DecoderConfig> gemma_common_from_hf(const json::Value& config, const HfDefaults& defaults,
                                           std::span<const std::string_view> handled) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, defaults));
  QUIRE_TRY(refuse_unknown_maths(config, handled));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  if (config.find("hidden_activation") == nullptr && config.find("hidden_act") == nullptr) {
    out.activation = Activation::kGeluTanh;
  }
  out.norms = NormPlacement::kSandwich;
  out.norm_plus_one = true;
  out.embedding_scale = root(out.hidden);
  return out;
}

Status read_query_scale(const json::Value& config, DecoderConfig& out) {
  QUIRE_ASSIGN(const double scalar, json::get_double_or(config, "query_pre_attn_scalar", 256.0));
  if (!(scalar > 0) || !(scalar < 1e9)) return invalid_argument("field 'query_pre_attn_scalar' must be positive");
  out.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  return {};
}

Result<float> soft_cap(const json::Value& config, std::string_view field, double fallback) {
  const json::Value* value = config.find(field);
  if (value != nullptr && value->is_null()) return 0.0f;
  QUIRE_ASSIGN(const double cap, json::get_double_or(config, field, fallback));
  if (!(cap >= 0) || !(cap < 1e30)) return invalid_argument({"field '", field, "' must not be negative"});
  return static_cast<float>(cap);
}

constexpr std::string_view kHandled2[] = {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window",
                                          "query_pre_attn_scalar",  "attention_bias",          "layer_types"};

Result<DecoderConfig> gemma2_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, gemma_common_from_hf(config, {.tied = true}, kHandled2));
  QUIRE_ASSIGN(out.attention_soft_cap, soft_cap(config, "attn_logit_softcapping", 50.0));
  QUIRE_ASSIGN(out.logits_soft_cap, soft_cap(config, "final_logit_softcapping", 30.0));
  QUIRE_TRY(read_query_scale(config, out));
  QUIRE_TRY(read_windows(config, out, 2));
  return out;
}

// EmbeddingGemma: every token sees half of the window on both sides.
void make_bidirectional(DecoderConfig& out) {
  out.encoder.on = true;
  out.has_head = false;
  for (LayerConfig& layer : out.per_layer) {
    if (layer.window > 0) layer.window = layer.window / 2 + 1;
  }
}

Result<DecoderConfig> gemma3_from_hf(const json::Value& config) {
  // The released models with vision leave out what their class has by default.
  constexpr HfDefaults kDefaults = {.rope_theta = 1e6,
                                    .tied = true,
                                    .vocab_size = 262208,
                                    .heads = 8,
                                    .kv_heads = 4,
                                    .head_dim = 256,
                                    .max_position = 131072};
  QUIRE_ASSIGN(DecoderConfig out, gemma_common_from_hf(config, kDefaults, kHandled2));
  QUIRE_ASSIGN(out.attention_soft_cap, soft_cap(config, "attn_logit_softcapping", 0.0));
  QUIRE_ASSIGN(out.logits_soft_cap, soft_cap(config, "final_logit_softcapping", 0.0));
  QUIRE_TRY(read_query_scale(config, out));
  QUIRE_ASSIGN(const int64_t fresh_pattern, json::get_int_or(config, "_sliding_window_pattern", 6, 1, 4096));
  QUIRE_ASSIGN(const int64_t pattern, json::get_int_or(config, "sliding_window_pattern", fresh_pattern, 1, 4096));
  QUIRE_TRY(read_windows(config, out, pattern));
  QUIRE_ASSIGN(const double local, json::get_double_or(config, "rope_local_base_freq", 10000.0));
  QUIRE_TRY(read_local_rope(config, "sliding_attention", local, out));
  for (LayerConfig& layer : out.per_layer) layer.rope = layer.window > 0 ? RopeUse::kLocal : RopeUse::kMain;
  out.qk_norm = QkNorm::kPerHead;
  out.extend_context = false;
  QUIRE_ASSIGN(out.encoder.on, json::get_bool_or(config, "use_bidirectional_attention", false));
  if (out.encoder.on) make_bidirectional(out);
  return out;
}

// Sizes that differ between layers: in per_layer_config, or in older fields.
Status read_gemma4_layers(const json::Value& config, DecoderConfig& out) {
  QUIRE_ASSIGN(const int64_t global_dim, json::get_int_or(config, "global_head_dim", 0, 0, 4096));
  QUIRE_ASSIGN(const bool v_is_k, json::get_bool_or(config, "attention_k_eq_v", false));
  QUIRE_ASSIGN(const int64_t global_kv, read_size_or(config, "num_global_key_value_heads", 0));
  const json::Value* sizes = config.find("per_layer_config");
  for (size_t i = 0; i < out.per_layer.size(); ++i) {
    LayerConfig& layer = out.per_layer[i];
    const bool full = layer.window == 0;
    layer.rope = full ? RopeUse::kMain : RopeUse::kLocal;
    layer.v_is_k = full && v_is_k;
    if (full && global_dim > 0) layer.head_dim = global_dim;
    if (full && v_is_k && global_kv > 0) layer.kv_heads = global_kv;
    const json::Value* own = sizes != nullptr && sizes->is_object() ? sizes->find(std::to_string(i)) : nullptr;
    if (own == nullptr || !own->is_object()) continue;
    QUIRE_ASSIGN(layer.head_dim, json::get_int_or(*own, "head_dim", layer.head_dim, 0, 4096));
    QUIRE_ASSIGN(layer.kv_heads, read_size_or(*own, "num_key_value_heads", layer.kv_heads));
    QUIRE_ASSIGN(layer.intermediate, read_size_or(*own, "intermediate_size", layer.intermediate));
  }
  return {};
}

// The last `shared` layers read the K and V of the last earlier layer of their kind (full or window).
Status share_keys(int64_t shared, DecoderConfig& out) {
  const auto first = static_cast<size_t>(out.layers - shared);
  for (size_t i = first; i < out.per_layer.size(); ++i) {
    LayerConfig& layer = out.per_layer[i];
    for (size_t j = 0; j < first; ++j) {
      if ((out.per_layer[j].window > 0) == (layer.window > 0)) layer.shared_with = static_cast<int64_t>(j);
    }
    if (layer.shared_with < 0) {
      return invalid_argument({"sharing keys in the last ", shared, " layers leaves layer ", i,
                               " without a layer of its kind to share with"});
    }
    layer.v_is_k = false;
  }
  return {};
}

Status read_shared_layers(const json::Value& config, DecoderConfig& out) {
  QUIRE_ASSIGN(const int64_t shared, json::get_int_or(config, "num_kv_shared_layers", 0, 0, out.layers));
  QUIRE_ASSIGN(const bool wide, json::get_bool_or(config, "use_double_wide_mlp", false));
  QUIRE_TRY(share_keys(shared, out));
  for (size_t i = static_cast<size_t>(out.layers - shared); wide && i < out.per_layer.size(); ++i) {
    out.per_layer[i].intermediate = 2 * out.intermediate_of(out.per_layer[i]);
  }
  return {};
}

constexpr std::string_view kHandled4[] = {
    "final_logit_softcapping", "sliding_window", "attention_bias",       "layer_types",
    "query_pre_attn_scalar",   "num_experts",    "moe_intermediate_size"};

Result<DecoderConfig> gemma4_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, gemma_common_from_hf(config, {.rope_theta = 1e6, .tied = true}, kHandled4));
  QUIRE_ASSIGN(const bool moe, json::get_bool_or(config, "enable_moe_block", false));
  if (moe) {
    QUIRE_ASSIGN(out.moe.experts, read_size(config, "num_experts"));
    QUIRE_ASSIGN(out.moe.k, read_size(config, "top_k_experts"));
    QUIRE_ASSIGN(out.moe.intermediate, read_size(config, "moe_intermediate_size"));
    out.moe.normalise = out.moe.beside_mlp = true;
  }
  QUIRE_ASSIGN(out.logits_soft_cap, soft_cap(config, "final_logit_softcapping", 0.0));
  out.norm_plus_one = false;
  out.attention_scale = 1.0f;
  out.qk_norm = QkNorm::kPerHead;
  out.v_norm = true;
  out.layer_scalars = true;
  QUIRE_TRY(read_windows(config, out, 6));
  QUIRE_TRY(read_local_rope(config, "sliding_attention", 10000.0, out));
  QUIRE_TRY(read_gemma4_layers(config, out));
  QUIRE_TRY(read_shared_layers(config, out));
  QUIRE_ASSIGN(out.per_layer_input.dim, read_size_or(config, "hidden_size_per_layer_input", 0));
  QUIRE_ASSIGN(out.per_layer_input.vocab_size, read_size_or(config, "vocab_size_per_layer_input", out.vocab_size, 1));
  if (out.per_layer_input.dim > 0 && out.per_layer_input.vocab_size < out.vocab_size) {
    return invalid_argument("field 'vocab_size_per_layer_input' is smaller than 'vocab_size'");
  }
  out.extend_context = false;
  return out;
}

constexpr std::string_view kHandledKeys[] = {"attention.sliding_window",
                                             "attn_logit_softcapping",
                                             "final_logit_softcapping",
                                             "attention.head_count_kv",
                                             "feed_forward_length",
                                             "attention.shared_kv_layers",
                                             "embedding_length_per_layer_input",
                                             "expert_count"};
constexpr size_t kBefore4 = 3;  // of them

Result<DecoderConfig> gemma_common_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture,
                                             std::span<const std::string_view> handled) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, handled));
  out.norms = NormPlacement::kSandwich;
  out.activation = Activation::kGeluTanh;
  out.embedding_scale = root(out.hidden);
  return out;
}

Result<float> read_soft_cap(const weights::GgufMetadata& metadata, const std::string& key, double fallback) {
  QUIRE_ASSIGN(const double cap, metadata.get_double_or(key, fallback));
  if (!(cap >= 0) || !(cap < 1e30)) return invalid_argument({"key '", key, "' must not be negative"});
  return static_cast<float>(cap);
}

Result<DecoderConfig> gemma2_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out,
               gemma_common_from_gguf(metadata, architecture, std::span(kHandledKeys).first(kBefore4)));
  QUIRE_TRY(read_gguf_windows(metadata, architecture, 2, out));
  QUIRE_ASSIGN(out.attention_soft_cap, read_soft_cap(metadata, "gemma2.attn_logit_softcapping", 50.0));
  QUIRE_ASSIGN(out.logits_soft_cap, read_soft_cap(metadata, "gemma2.final_logit_softcapping", 30.0));
  // GGUF has no key for the scale of queries: 27B (46 layers) uses hidden / heads, the others the head size.
  if (out.layers == 46) out.attention_scale = 1.0f / root(out.hidden / out.heads);
  return out;
}

Result<DecoderConfig> gemma3_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  const std::string prefix = std::string(architecture) + ".";
  const bool embeds = architecture == "gemma-embedding";
  std::vector<std::string_view> handled(kHandledKeys, kHandledKeys + kBefore4);
  if (embeds) handled.push_back("attention.causal");
  QUIRE_ASSIGN(DecoderConfig out, gemma_common_from_gguf(metadata, architecture, handled));
  QUIRE_TRY(read_gguf_windows(metadata, architecture, 6, out));
  QUIRE_TRY(read_gguf_local_rope(metadata, architecture, 10000.0, out));
  QUIRE_ASSIGN(out.logits_soft_cap, read_soft_cap(metadata, prefix + "final_logit_softcapping", 0.0));
  if (!metadata.contains(prefix + "rope.freq_base")) out.rope.theta = 1e6;
  if (embeds) make_bidirectional(out);
  out.qk_norm = QkNorm::kPerHead;
  out.extend_context = false;
  // As above: 27B has 62 layers.
  if (out.layers == 62) out.attention_scale = 1.0f / root(out.hidden / out.heads);
  return out;
}

// key_length belongs to the full layers, which rotate by the tensor rope_freqs; key_length_swa to the others. The
// tensors show whether V is K, and whether layers have scalars.
Result<DecoderConfig> gemma4_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, gemma_common_from_gguf(metadata, architecture, kHandledKeys));
  QUIRE_TRY(read_gguf_windows(metadata, architecture, 6, out));
  QUIRE_TRY(read_gguf_local_rope(metadata, architecture, 10000.0, out));
  QUIRE_ASSIGN(const int64_t local_dim, metadata.get_int_or("gemma4.attention.key_length_swa", out.head_dim, 1, 4096));
  QUIRE_ASSIGN(out.local_rope.rot_dim, metadata.get_int_or("gemma4.rope.dimension_count_swa", local_dim, 2, 4096));
  QUIRE_ASSIGN(out.logits_soft_cap, read_soft_cap(metadata, "gemma4.final_logit_softcapping", 0.0));
  for (LayerConfig& layer : out.per_layer) {
    if (layer.window > 0) layer.head_dim = local_dim;
    if (layer.kv_heads < 0 || layer.intermediate < 0) {
      return unsupported("keys 'gemma4.attention.head_count_kv' and 'gemma4.feed_forward_length' must not hold 0");
    }
  }
  QUIRE_ASSIGN(const int64_t shared, metadata.get_int_or("gemma4.attention.shared_kv_layers", 0, 0, out.layers));
  QUIRE_TRY(share_keys(shared, out));
  QUIRE_ASSIGN(out.per_layer_input.dim, metadata.get_int_or("gemma4.embedding_length_per_layer_input", 0, 0, 1 << 24));
  QUIRE_ASSIGN(out.moe.experts, metadata.get_int_or("gemma4.expert_count", 0, 0, 1 << 16));
  if (out.moe.experts > 0) {
    QUIRE_ASSIGN(out.moe.k, metadata.get_int("gemma4.expert_used_count", 1, 1 << 16));
    QUIRE_ASSIGN(out.moe.intermediate, metadata.get_int("gemma4.expert_feed_forward_length", 1, 1 << 24));
    out.moe.normalise = out.moe.beside_mlp = true;
  }
  out.attention_scale = 1.0f;
  out.qk_norm = QkNorm::kPerHead;
  out.v_norm = true;
  out.extend_context = false;
  return out;
}

constexpr PartName kGemmaNames[] = {
    {Part::kMlpNorm, "model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"},
};

constexpr PartName kGemma4Names[] = {
    {Part::kMlpNorm, "model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"},
    {Part::kRouter, "model.layers.{}.router.proj", "blk.{}.ffn_gate_inp"},
    {Part::kExpertsGateUp, "model.layers.{}.experts.gate_up_proj", "blk.{}.ffn_gate_up_exps"},
    {Part::kExpertsDown, "model.layers.{}.experts.down_proj", "blk.{}.ffn_down_exps"},
};
constexpr ExpertTensors kGemma4Experts = {.fused_gate_up = true, .bare_names = true};

}  // namespace

const Family kGemma2Family = {"gemma2",       {"Gemma2ForCausalLM"}, {"gemma2"},
                              gemma2_from_hf, gemma2_from_gguf,      kGemmaNames};
const Family kGemma3Family = {"gemma3",
                              {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
                              {"gemma3", "gemma-embedding"},
                              gemma3_from_hf,
                              gemma3_from_gguf,
                              kGemmaNames};
const Family kGemma4Family = {"gemma4",         {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"},
                              {"gemma4"},       gemma4_from_hf,
                              gemma4_from_gguf, kGemma4Names,
                              kGemma4Experts};

}  // namespace quire::model
