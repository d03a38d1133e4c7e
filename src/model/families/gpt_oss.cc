// SPDX-License-Identifier: Apache-2.0
// GPT-OSS: attention sinks, a sliding window in every other layer, biases everywhere, experts with a clamped
// activation.
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

void gpt_oss_set_common(DecoderConfig& out) {
  out.qkv_bias = out.o_bias = true;
  out.sinks = true;
  out.moe.intermediate = out.intermediate;
  out.moe.score = MoeScore::kSoftmaxOfChosen;
  out.moe.router_bias = out.moe.expert_bias = true;
  for (LayerConfig& layer : out.per_layer) layer.feed_forward = FeedForward::kMoe;
}

Result<DecoderConfig> gpt_oss_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.rope_theta = 150000.0, .norm_eps = 1e-5}));
  constexpr std::string_view kHandled[] = {"sliding_window", "layer_types", "num_local_experts", "attention_bias"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_TRY(read_windows(config, out, 2));
  QUIRE_ASSIGN(out.moe.experts, read_size_or(config, "num_local_experts", 128, 1));
  QUIRE_ASSIGN(out.moe.k, read_size_or(config, "num_experts_per_tok", 4, 1));
  QUIRE_ASSIGN(out.moe.limit, read_factor(config, "swiglu_limit", 7.0));
  QUIRE_ASSIGN(const double alpha, json::get_double_or(config, "swiglu_alpha", 1.702));
  if (alpha != 1.702) return unsupported("field 'swiglu_alpha' is not 1.702, the only value quire has");
  gpt_oss_set_common(out);
  return out;
}

Result<DecoderConfig> gpt_oss_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kHandled[] = {"attention.sliding_window", "expert_count"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandled));
  QUIRE_ASSIGN(const int64_t window, metadata.get_int_or("gpt-oss.attention.sliding_window", 128, 0, 1 << 30));
  QUIRE_ASSIGN(out.moe.experts, metadata.get_int("gpt-oss.expert_count", 1, 1 << 16));
  QUIRE_ASSIGN(out.moe.k, metadata.get_int("gpt-oss.expert_used_count", 1, 1 << 16));
  QUIRE_ASSIGN(out.intermediate,
               metadata.get_int_or("gpt-oss.expert_feed_forward_length", out.intermediate, 1, 1 << 24));
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  for (size_t i = 0; i < out.per_layer.size(); i += 2) out.per_layer[i].window = window;
  out.rope.truncate = false;
  out.moe.limit = 7.0f;
  gpt_oss_set_common(out);
  return out;
}

constexpr PartName kGptOssNames[] = {
    {Part::kMlpNorm, "model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"},
    {Part::kRouter, "model.layers.{}.mlp.router", "blk.{}.ffn_gate_inp"},
};

}  // namespace

const Family kGptOssFamily = {"gpt-oss",         {"GptOssForCausalLM"}, {"gpt-oss"},         gpt_oss_from_hf,
                              gpt_oss_from_gguf, kGptOssNames,          {.transposed = true}};

}  // namespace quire::model
