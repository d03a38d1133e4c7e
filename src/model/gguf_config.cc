// SPDX-License-Identifier: Apache-2.0
// GGUF metadata into a DecoderConfig.
#include "model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace quire::model {
namespace {

using weights::GgufMetadata;
using weights::GgufValue;

constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 30;

// Keys (after "{architecture}.") that change the maths, with the number that changes nothing.
struct MathKey {
  std::string_view key;
  double neutral;
};
constexpr MathKey kMathKeys[] = {
    {"attention.sliding_window", 0}, {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},  {"expert_count", 0},
    {"attention.scale", 0},          {"embedding_scale", 1},
    {"residual_scale", 1},           {"logit_scale", 1},
    {"attention.clamp_kqv", 0},      {"attention.max_alibi_bias", 0},
    {"attention.kv_lora_rank", 0},   {"attention.temperature_scale", 0},
    {"use_parallel_residual", 0},    {"nextn_predict_layers", 0},
    {"ssm.conv_kernel", 0},          {"full_attention_interval", 0},
    {"attention.causal", 1},
};

Status refuse_unknown_maths(const GgufMetadata& metadata, const std::string& prefix,
                            std::span<const std::string_view> handled) {
  for (const MathKey& key : kMathKeys) {
    const GgufValue* value = metadata.find(prefix + std::string(key.key));
    if (value == nullptr) continue;
    if (std::find(handled.begin(), handled.end(), key.key) != handled.end()) continue;
    const double number = value->is_real() ? value->real : static_cast<double>(value->integer);
    const bool plain = value->is_real() || value->is_integer() || value->kind == weights::GgufKind::kBool;
    if (plain && number == key.neutral) continue;
    return unsupported("key '" + prefix + std::string(key.key) +
                       "' changes the arithmetic in a way quire does not have for this architecture");
  }
  return {};
}

bool contains(std::span<const std::string_view> list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

Status read_rope(const GgufMetadata& metadata, const std::string& prefix, std::span<const std::string_view> handled,
                 DecoderConfig& out) {
  RopeConfig& rope = out.rope;
  QUIRE_ASSIGN(rope.theta, metadata.get_double_or(prefix + "rope.freq_base", 10000.0));
  if (!(rope.theta > 0) || !std::isfinite(rope.theta)) {
    return invalid_argument("key '" + prefix + "rope.freq_base' must be a positive number");
  }
  QUIRE_ASSIGN(rope.rot_dim, metadata.get_int_or(prefix + "rope.dimension_count", out.head_dim, 2, 4096));
  if (rope.rot_dim % 2 != 0 || rope.rot_dim > out.head_dim) {
    return invalid_argument("key '" + prefix + "rope.dimension_count' must be even and at most the head size " +
                            std::to_string(out.head_dim));
  }
  // M-RoPE: text has the same position on every axis, so a family that is read for its text alone may take it.
  if (metadata.contains(prefix + "rope.dimension_sections") && !contains(handled, "rope.dimension_sections")) {
    return unsupported("key '" + prefix + "rope.dimension_sections' asks for M-RoPE, which quire does not have yet");
  }
  QUIRE_ASSIGN(const std::string_view type, metadata.get_string_or(prefix + "rope.scaling.type", "none"));
  QUIRE_ASSIGN(rope.factor, metadata.get_double_or(prefix + "rope.scaling.factor", 1.0));
  QUIRE_ASSIGN(rope.original_max_position, metadata.get_int_or(prefix + "rope.scaling.original_context_length",
                                                               out.max_position, 1, kMaxPositions));
  QUIRE_ASSIGN(rope.attention_factor, metadata.get_double_or(prefix + "rope.scaling.attn_factor", 0.0));
  if (!(rope.factor > 0) || !(rope.attention_factor >= 0)) {
    return invalid_argument("keys '" + prefix + "rope.scaling.*' must be positive numbers");
  }
  if (type == "linear") {
    rope.type = RopeType::kLinear;
  } else if (type == "yarn") {
    rope.type = RopeType::kYarn;
    QUIRE_ASSIGN(rope.beta_fast, metadata.get_double_or(prefix + "rope.scaling.yarn_beta_fast", 32.0));
    QUIRE_ASSIGN(rope.beta_slow, metadata.get_double_or(prefix + "rope.scaling.yarn_beta_slow", 1.0));
    if (!(rope.beta_fast > 0) || !(rope.beta_slow > 0)) {
      return invalid_argument("keys '" + prefix + "rope.scaling.yarn_beta_*' must be positive numbers");
    }
    // ggml multiplies its own 1 + 0.1 ln(factor) by attn_factor; here attention_factor is the whole.
    if (rope.attention_factor > 0) rope.attention_factor *= 0.1 * std::log(std::max(rope.factor, 1.0)) + 1.0;
  } else if (type == "longrope") {
    rope.type = RopeType::kLongRope;  // its factors are tensors; the loader brings them
  } else if (type != "none") {
    return unsupported("key '" + prefix + "rope.scaling.type' is '" + std::string(type) +
                       "'; quire knows none, linear, yarn and longrope");
  }
  return {};
}

// A layer without keys has 0 of their heads; a family that knows such layers finds them marked with -1.
Status read_heads(const GgufMetadata& metadata, const std::string& prefix, std::span<const std::string_view> handled,
                  DecoderConfig& out) {
  QUIRE_ASSIGN(out.heads, metadata.get_int(prefix + "attention.head_count", 1, kMaxSize));
  if (metadata.contains(prefix + "attention.head_count_kv")) {
    QUIRE_ASSIGN(const std::vector<int64_t> per_layer,
                 metadata.get_ints_per(prefix + "attention.head_count_kv", static_cast<size_t>(out.layers)));
    const auto most = std::max_element(per_layer.begin(), per_layer.end());
    const bool mixed = contains(handled, "attention.head_count_kv");
    if (mixed) out.per_layer.assign(per_layer.size(), LayerConfig{});
    for (size_t i = 0; i < per_layer.size(); ++i) {
      if (per_layer[i] == *most) continue;
      if (!mixed || per_layer[i] != 0) {
        return unsupported("key '" + prefix +
                           "attention.head_count_kv' differs between layers, which quire does not have for this "
                           "architecture");
      }
      out.per_layer[i].kv_heads = -1;
    }
    out.kv_heads = per_layer.empty() ? out.heads : *most;
  } else {
    out.kv_heads = out.heads;
  }
  if (out.kv_heads < 1 || out.heads % out.kv_heads != 0) {
    return invalid_argument("key '" + prefix + "attention.head_count' must be a multiple of 'attention.head_count_kv'");
  }
  const int64_t even = out.hidden % out.heads == 0 ? out.hidden / out.heads : 0;
  QUIRE_ASSIGN(out.head_dim, metadata.get_int_or(prefix + "attention.key_length", even, 0, 4096));
  out.head_dim_given = out.head_dim > 0;
  QUIRE_ASSIGN(const int64_t value_length,
               metadata.get_int_or(prefix + "attention.value_length", out.head_dim, 0, 4096));
  if (value_length != out.head_dim) {
    return unsupported("keys '" + prefix +
                       "attention.key_length' and 'value_length' differ, which quire does not have yet");
  }
  if (out.head_dim < 1) {
    return invalid_argument("key '" + prefix +
                            "embedding_length' is no multiple of 'attention.head_count', and there is no "
                            "'attention.key_length'");
  }
  return {};
}

}  // namespace

Result<DecoderConfig> read_common_gguf(const GgufMetadata& metadata, std::string_view architecture,
                                       std::span<const std::string_view> handled) {
  const std::string prefix = std::string(architecture) + ".";
  DecoderConfig out;
  out.architecture = architecture;
  QUIRE_ASSIGN(out.hidden, metadata.get_int(prefix + "embedding_length", 1, kMaxSize));
  QUIRE_ASSIGN(out.layers, metadata.get_int(prefix + "block_count", 1, 4096));
  QUIRE_ASSIGN(const std::vector<int64_t> ffn,
               metadata.get_ints_per(prefix + "feed_forward_length", static_cast<size_t>(out.layers)));
  if (!std::all_of(ffn.begin(), ffn.end(), [&](int64_t n) { return n == ffn[0]; })) {
    return unsupported("key '" + prefix + "feed_forward_length' differs between layers, which quire does not have yet");
  }
  out.intermediate = ffn.at(0);
  if (out.intermediate < 1 || out.intermediate > kMaxSize) {
    return invalid_argument("key '" + prefix + "feed_forward_length' is out of range");
  }
  QUIRE_ASSIGN(out.max_position, metadata.get_int_or(prefix + "context_length", 2048, 1, kMaxPositions));
  QUIRE_TRY(read_heads(metadata, prefix, handled, out));
  QUIRE_ASSIGN(const double eps, metadata.get_double_or(prefix + "attention.layer_norm_rms_epsilon", 1e-5));
  if (!(eps >= 0) || !(eps < 1)) {
    return invalid_argument("key '" + prefix + "attention.layer_norm_rms_epsilon' must be from 0 to below 1");
  }
  out.norm_eps = static_cast<float>(eps);
  QUIRE_TRY(read_rope(metadata, prefix, handled, out));
  QUIRE_TRY(refuse_unknown_maths(metadata, prefix, handled));
  if (metadata.contains("tokenizer.ggml.eos_token_id")) {
    QUIRE_ASSIGN(const int64_t eos, metadata.get_int("tokenizer.ggml.eos_token_id", -1, kMaxSize));
    if (eos >= 0) out.eos_token_ids.push_back(eos);
  }
  QUIRE_ASSIGN(out.bos_token_id, metadata.get_int_or("tokenizer.ggml.bos_token_id", -1, -1, kMaxSize));
  // The vocabulary's size is the embedding table's; the loader sets it, and checks it against the config where there is
  // one.
  QUIRE_ASSIGN(out.vocab_size, metadata.get_int_or(prefix + "vocab_size", 0, 0, kMaxSize));
  return out;
}

Status read_gguf_experts(const GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out,
                         int64_t first) {
  const std::string prefix = std::string(architecture) + ".";
  constexpr int64_t kMaxExperts = 1 << 16;
  QUIRE_ASSIGN(out.moe.experts, metadata.get_int(prefix + "expert_count", 1, kMaxExperts));
  QUIRE_ASSIGN(out.moe.k, metadata.get_int(prefix + "expert_used_count", 1, kMaxExperts));
  QUIRE_ASSIGN(out.moe.intermediate,
               metadata.get_int_or(prefix + "expert_feed_forward_length", out.intermediate, 1, kMaxSize));
  if (out.per_layer.empty()) out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  for (int64_t i = first; i < out.layers; ++i) out.per_layer[static_cast<size_t>(i)].feed = Feed::kMoe;
  return {};
}

}  // namespace quire::model
