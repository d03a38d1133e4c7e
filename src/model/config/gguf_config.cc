// SPDX-License-Identifier: Apache-2.0
// GGUF metadata into a DecoderConfig.
#include "model/config/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace quire::model {
namespace {

using weights::GgufMetadata;
using weights::GgufValue;

// Keys (without "{architecture}.") that change the results, with their neutral values.
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
    {"attention.causal", 1},         {"attention.shared_kv_layers", 0},
    {"moe_latent_size", 0},          {"embedding_length_per_layer_input", 0},
};

Status refuse_unknown_keys(const GgufMetadata& metadata, const std::string& prefix,
                           std::span<const std::string_view> handled) {
  for (const MathKey& key : kMathKeys) {
    const GgufValue* value = metadata.find(prefix + std::string(key.key));
    if (value == nullptr) continue;
    if (std::find(handled.begin(), handled.end(), key.key) != handled.end()) continue;
    const double number = value->is_real() ? value->real : static_cast<double>(value->integer);
    const bool plain = value->is_real() || value->is_integer() || value->kind == weights::GgufKind::kBool;
    if (plain && number == key.neutral) continue;
    return unsupported({"key '", prefix, std::string(key.key),
                        "' changes the arithmetic in a way quire does not have for this architecture"});
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
    return invalid_argument({"key '", prefix, "rope.freq_base' must be a positive number"});
  }
  QUIRE_ASSIGN(rope.rot_dim, metadata.get_int_or(prefix + "rope.dimension_count", out.head_dim, 2, 4096));
  if (rope.rot_dim % 2 != 0 || rope.rot_dim > out.head_dim) {
    return invalid_argument(
        {"key '", prefix, "rope.dimension_count' must be even and at most the head size ", out.head_dim});
  }
  // M-RoPE: text has the same position on every axis, so a text-only model may ignore it.
  if (metadata.contains(prefix + "rope.dimension_sections") && !contains(handled, "rope.dimension_sections")) {
    return unsupported({"key '", prefix, "rope.dimension_sections' asks for M-RoPE, which quire does not have yet"});
  }
  // As in llama.cpp: a factor without a type is that of linear scaling, older files call it scale_linear, and 0 is
  // none.
  QUIRE_ASSIGN(const double older, metadata.get_double_or(prefix + "rope.scale_linear", 1.0));
  QUIRE_ASSIGN(rope.factor, metadata.get_double_or(prefix + "rope.scaling.factor", older));
  if (rope.factor == 0) rope.factor = 1.0;
  const char* untyped = rope.factor == 1.0 ? "none" : "linear";
  QUIRE_ASSIGN(const std::string_view type, metadata.get_string_or(prefix + "rope.scaling.type", untyped));
  QUIRE_ASSIGN(rope.original_max_position, metadata.get_int_or(prefix + "rope.scaling.original_context_length",
                                                               out.max_position, 1, kMaxPositions));
  QUIRE_ASSIGN(rope.attention_factor, metadata.get_double_or(prefix + "rope.scaling.attn_factor", 0.0));
  if (!(rope.factor > 0) || !(rope.attention_factor >= 0)) {
    return invalid_argument({"keys '", prefix, "rope.scaling.*' must be positive numbers"});
  }
  if (type == "linear") {
    rope.type = RopeType::kLinear;
  } else if (type == "yarn") {
    rope.type = RopeType::kYarn;
    QUIRE_ASSIGN(rope.beta_fast, metadata.get_double_or(prefix + "rope.scaling.yarn_beta_fast", 32.0));
    QUIRE_ASSIGN(rope.beta_slow, metadata.get_double_or(prefix + "rope.scaling.yarn_beta_slow", 1.0));
    if (!(rope.beta_fast > 0) || !(rope.beta_slow > 0)) {
      return invalid_argument({"keys '", prefix, "rope.scaling.yarn_beta_*' must be positive numbers"});
    }
    // ggml multiplies 1 + 0.1 ln(factor) by attn_factor; attention_factor here is the product.
    if (rope.attention_factor > 0) rope.attention_factor *= 0.1 * std::log(std::max(rope.factor, 1.0)) + 1.0;
  } else if (type == "longrope") {
    rope.type = RopeType::kLongRope;  // its factors are tensors; open_model reads them
  } else if (type != "none") {
    return unsupported(
        {"key '", prefix, "rope.scaling.type' is '", type, "'; quire knows none, linear, yarn and longrope"});
  }
  return {};
}

// Sets a number of a layer in per_layer, -1 for 0.
void note_per_layer(const std::vector<int64_t>& numbers, int64_t LayerConfig::*field, DecoderConfig& out) {
  if (out.per_layer.empty()) out.per_layer.assign(numbers.size(), LayerConfig{});
  for (size_t i = 0; i < numbers.size(); ++i) out.per_layer[i].*field = numbers[i] == 0 ? -1 : numbers[i];
}

Status refuse_mixed(const std::vector<int64_t>& numbers, const std::string& key) {
  if (std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == numbers[0]; })) return {};
  return unsupported({"key '", key, "' differs between layers, which quire does not have for this architecture"});
}

Status read_heads(const GgufMetadata& metadata, const std::string& prefix, std::span<const std::string_view> handled,
                  DecoderConfig& out) {
  QUIRE_ASSIGN(out.heads, metadata.get_int(prefix + "attention.head_count", 1, kMaxSize));
  if (metadata.contains(prefix + "attention.head_count_kv")) {
    QUIRE_ASSIGN(const std::vector<int64_t> per_layer,
                 metadata.get_ints_per(prefix + "attention.head_count_kv", static_cast<size_t>(out.layers)));
    for (const int64_t count : per_layer) {
      if (count < 0 || count > kMaxSize) {
        return invalid_argument({"key '", prefix, "attention.head_count_kv' is out of range"});
      }
    }
    if (contains(handled, "attention.head_count_kv")) {
      note_per_layer(per_layer, &LayerConfig::kv_heads, out);
    } else {
      QUIRE_TRY(refuse_mixed(per_layer, prefix + "attention.head_count_kv"));
    }
    out.kv_heads = *std::max_element(per_layer.begin(), per_layer.end());
  } else {
    out.kv_heads = out.heads;
  }
  if (out.kv_heads < 1 || out.heads % out.kv_heads != 0) {
    return invalid_argument({"key '", prefix, "attention.head_count' must be a multiple of 'attention.head_count_kv'"});
  }
  const int64_t even = out.hidden % out.heads == 0 ? out.hidden / out.heads : 0;
  QUIRE_ASSIGN(out.head_dim, metadata.get_int_or(prefix + "attention.key_length", even, 0, 4096));
  out.head_dim_given = out.head_dim > 0;
  QUIRE_ASSIGN(const int64_t value_length,
               metadata.get_int_or(prefix + "attention.value_length", out.head_dim, 0, 4096));
  if (value_length != out.head_dim && !contains(handled, "attention.value_length")) {
    return unsupported({"keys '", prefix,
                        "attention.key_length' and 'value_length' differ, which quire does not have for this "
                        "architecture"});
  }
  if (out.head_dim < 1) {
    return invalid_argument({"key '", prefix,
                             "embedding_length' is no multiple of 'attention.head_count', and there is no "
                             "'attention.key_length'"});
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
  const auto [least, most] = std::minmax_element(ffn.begin(), ffn.end());
  if (*least < 0 || *most < 1 || *most > kMaxSize) {
    return invalid_argument({"key '", prefix, "feed_forward_length' is out of range"});
  }
  if (contains(handled, "feed_forward_length")) {
    note_per_layer(ffn, &LayerConfig::intermediate, out);
  } else {
    QUIRE_TRY(refuse_mixed(ffn, prefix + "feed_forward_length"));
  }
  out.intermediate = *most;
  QUIRE_ASSIGN(out.max_position, metadata.get_int_or(prefix + "context_length", 2048, 1, kMaxPositions));
  QUIRE_TRY(read_heads(metadata, prefix, handled, out));
  QUIRE_ASSIGN(const double eps, metadata.get_double_or(prefix + "attention.layer_norm_rms_epsilon", 1e-5));
  if (!(eps >= 0) || !(eps < 1)) {
    return invalid_argument({"key '", prefix, "attention.layer_norm_rms_epsilon' must be from 0 to below 1"});
  }
  out.norm_eps = static_cast<float>(eps);
  QUIRE_TRY(read_rope(metadata, prefix, handled, out));
  QUIRE_TRY(refuse_unknown_keys(metadata, prefix, handled));
  if (metadata.contains("tokenizer.ggml.eos_token_id")) {
    QUIRE_ASSIGN(const int64_t eos, metadata.get_int("tokenizer.ggml.eos_token_id", -1, kMaxSize));
    if (eos >= 0) out.eos_token_ids.push_back(eos);
  }
  QUIRE_ASSIGN(out.bos_token_id, metadata.get_int_or("tokenizer.ggml.bos_token_id", -1, -1, kMaxSize));
  // The size of the vocabulary is that of the embedding; open_model sets it, and compares it with the key if there is
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
  for (int64_t i = first; i < out.layers; ++i) out.per_layer[static_cast<size_t>(i)].feed_forward = FeedForward::kMoe;
  return {};
}

Result<float> read_gguf_factor(const GgufMetadata& metadata, const std::string& key, double fallback) {
  QUIRE_ASSIGN(const double value, metadata.get_double_or(key, fallback));
  const float rounded = static_cast<float>(value);
  if (!(rounded > 0) || !std::isfinite(rounded)) return invalid_argument({"key '", key, "' must be a positive number"});
  return rounded;
}

namespace {

// llama.cpp's numbers for the scoring function of a router.
Status read_gating(const GgufMetadata& metadata, const std::string& prefix, MoeConfig& out) {
  constexpr int64_t kSoftmax = 1, kSigmoid = 2;
  QUIRE_ASSIGN(const int64_t gating, metadata.get_int_or(prefix + "expert_gating_func", kSoftmax, 0, 100));
  if (gating == kSigmoid) {
    out.score = MoeScore::kSigmoid;
    out.group_score = MoeGroupScore::kTopTwoSum;
    out.choice_bias = true;
    out.sum_epsilon = 1e-20f;
  } else if (gating > kSoftmax) {
    return unsupported(
        {"key '", prefix, "expert_gating_func' is ", gating, "; quire knows 1 (softmax) and 2 (sigmoid)"});
  }
  return {};
}

}  // namespace

Status read_gguf_routing(const GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out) {
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_ASSIGN(const int64_t first, metadata.get_int_or(prefix + "leading_dense_block_count", 0, 0, kMaxSize));
  QUIRE_TRY(read_gguf_experts(metadata, architecture, out, first));
  MoeConfig& c = out.moe;
  QUIRE_TRY(read_gating(metadata, prefix, c));
  QUIRE_ASSIGN(c.normalise, metadata.get_bool_or(prefix + "expert_weights_norm", false));
  QUIRE_ASSIGN(const double scale, metadata.get_double_or(prefix + "expert_weights_scale", 0.0));
  if (scale != 0) {  // 0: none
    QUIRE_ASSIGN(c.scale, read_gguf_factor(metadata, prefix + "expert_weights_scale", 1.0));
  }
  QUIRE_ASSIGN(const int64_t groups, metadata.get_int_or(prefix + "expert_group_count", 0, 0, 1 << 16));
  QUIRE_ASSIGN(const int64_t kept, metadata.get_int_or(prefix + "expert_group_used_count", 0, 0, 1 << 16));
  if (groups > 1) c.groups = groups, c.groups_kept = kept;  // complete() checks that they are consistent
  QUIRE_ASSIGN(const int64_t shared, metadata.get_int_or(prefix + "expert_shared_count", 0, 0, 1024));
  QUIRE_ASSIGN(c.shared_intermediate,
               metadata.get_int_or(prefix + "expert_shared_feed_forward_length", shared * c.intermediate, 0, kMaxSize));
  return {};
}

Status read_gguf_windows(const GgufMetadata& metadata, std::string_view architecture, int64_t full_every,
                         DecoderConfig& out) {
  const std::string prefix = std::string(architecture) + ".";
  const std::string pattern = prefix + "attention.sliding_window_pattern";
  QUIRE_ASSIGN(const int64_t window, metadata.get_int_or(prefix + "attention.sliding_window", 0, 0, kMaxPositions));
  const auto layers = static_cast<size_t>(out.layers);
  std::vector<bool> windowed(layers);
  const GgufValue* value = metadata.find(pattern);
  if (value != nullptr && value->kind == weights::GgufKind::kArray) {
    QUIRE_ASSIGN(windowed, metadata.get_bools(pattern));
    if (windowed.size() < layers) {
      return invalid_argument({"key '", pattern, "' has ", windowed.size(), " entries for ", layers, " layers"});
    }
  } else {
    QUIRE_ASSIGN(const int64_t every, metadata.get_int_or(pattern, full_every, 1, 4096));
    for (size_t i = 0; i < layers; ++i) windowed[i] = (i + 1) % static_cast<size_t>(every) != 0;
  }
  if (out.per_layer.empty()) out.per_layer.assign(layers, LayerConfig{});
  for (size_t i = 0; i < layers; ++i) {
    if (windowed[i]) out.per_layer[i].window = window;
  }
  return {};
}

Status read_gguf_local_rope(const GgufMetadata& metadata, std::string_view architecture, double theta,
                            DecoderConfig& out) {
  const std::string key = std::string(architecture) + ".rope.freq_base_swa";
  QUIRE_ASSIGN(out.local_rope.theta, metadata.get_double_or(key, theta));
  if (!(out.local_rope.theta > 0) || !std::isfinite(out.local_rope.theta)) {
    return invalid_argument({"key '", key, "' must be a positive number"});
  }
  out.local_rope.interleaved = out.rope.interleaved;
  for (LayerConfig& layer : out.per_layer) layer.rope = layer.window > 0 ? RopeUse::kLocal : RopeUse::kMain;
  return {};
}

Status read_gguf_mamba2(const GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out) {
  const std::string prefix = std::string(architecture) + ".";
  Mamba2Config& c = out.mamba2;
  QUIRE_ASSIGN(c.heads, metadata.get_int(prefix + "ssm.time_step_rank", 1, 1 << 16));
  QUIRE_ASSIGN(c.groups, metadata.get_int(prefix + "ssm.group_count", 1, 1 << 16));
  QUIRE_ASSIGN(c.state_size, metadata.get_int(prefix + "ssm.state_size", 1, 4096));
  QUIRE_ASSIGN(c.kernel, metadata.get_int(prefix + "ssm.conv_kernel", 1, 64));
  QUIRE_ASSIGN(const int64_t inner, metadata.get_int(prefix + "ssm.inner_size", 1, kMaxSize));
  if (inner % c.heads != 0 || inner % c.groups != 0) {
    return invalid_argument({"key '", prefix, "ssm.inner_size' is no multiple of 'ssm.time_step_rank' (", c.heads,
                             ") and 'ssm.group_count' (", c.groups, ")"});
  }
  c.head_dim = inner / c.heads;
  c.dt_min = 0;
  c.dt_max = std::numeric_limits<float>::infinity();
  return {};
}

Status drop_gguf_layers_ahead(const GgufMetadata& metadata, std::string_view architecture, DecoderConfig& out) {
  QUIRE_ASSIGN(const int64_t ahead,
               metadata.get_int_or(std::string(architecture) + ".nextn_predict_layers", 0, 0, out.layers - 1));
  out.layers -= ahead;
  out.ahead.layers = ahead;
  if (!out.per_layer.empty()) out.per_layer.resize(static_cast<size_t>(out.layers));
  return {};
}

}  // namespace quire::model
