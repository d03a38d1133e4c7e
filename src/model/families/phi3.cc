// SPDX-License-Identifier: Apache-2.0
// Phi-3 and Phi-4: q, k, v and gate, up are one tensor each; longrope and partial rotation in some. Phi-MoE: two of
// sixteen experts, chosen by SparseMixer.
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

Result<DecoderConfig> phi3_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  constexpr std::string_view kHandled[] = {"sliding_window", "partial_rotary_factor"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(out.sliding_window, read_sliding_window(config));
  out.fused_qkv = out.fused_gate_up = true;
  return out;
}

Result<DecoderConfig> phi3_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  // Converters write a window into all Phi-3 files, even for models without one; llama.cpp ignores the key too.
  constexpr std::string_view kHandled[] = {"attention.sliding_window"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandled));
  out.fused_qkv = out.fused_gate_up = true;
  return out;
}

Result<DecoderConfig> phimoe_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.rope_theta = 1e6, .norm_eps = 1e-5}));
  constexpr std::string_view kHandled[] = {"sliding_window", "num_local_experts", "attention_bias", "lm_head_bias"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(out.sliding_window, read_sliding_window(config));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  QUIRE_ASSIGN(out.head_bias, json::get_bool_or(config, "lm_head_bias", false));
  out.norm_kind = NormKind::kLayerWithBias;
  QUIRE_ASSIGN(out.moe.experts, read_size_or(config, "num_local_experts", 16, 1));
  QUIRE_ASSIGN(out.moe.k, read_size_or(config, "num_experts_per_tok", 2, 1));
  if (out.moe.k != 2) return unsupported("field 'num_experts_per_tok' must be 2 for Phi-MoE");
  QUIRE_ASSIGN(const double jitter, json::get_double_or(config, "router_jitter_noise", 0.01));
  if (!(jitter >= 0) || !(jitter < 1e6)) return invalid_argument("field 'router_jitter_noise' must not be negative");
  out.moe.jitter = static_cast<float>(jitter);
  out.moe.score = MoeScore::kSparseMixer;
  out.moe.intermediate = out.intermediate;
  LayerConfig layer;
  layer.feed_forward = FeedForward::kMoe;
  layer.window = out.sliding_window;
  out.per_layer.assign(static_cast<size_t>(out.layers), layer);
  return out;
}

// GGUF has no key for the router's noise; the released models have 0.01.
Result<DecoderConfig> phimoe_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kHandled[] = {"attention.sliding_window", "expert_count"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandled));
  QUIRE_TRY(read_gguf_experts(metadata, architecture, out));
  if (out.moe.k != 2) return unsupported("key 'phimoe.expert_used_count' must be 2 for Phi-MoE");
  out.norm_kind = NormKind::kLayerWithBias;
  out.moe.jitter = 0.01f;
  out.moe.score = MoeScore::kSparseMixer;
  return out;
}

constexpr PartName kPhimoeNames[] = {
    {Part::kRouter, "model.layers.{}.block_sparse_moe.gate", "blk.{}.ffn_gate_inp"},
    {Part::kExpertGate, "model.layers.{}.block_sparse_moe.experts.{}.w1", ""},
    {Part::kExpertUp, "model.layers.{}.block_sparse_moe.experts.{}.w3", ""},
    {Part::kExpertDown, "model.layers.{}.block_sparse_moe.experts.{}.w2", ""},
};

}  // namespace

const Family kPhi3Family = {"phi3", {"Phi3ForCausalLM"}, {"phi3"}, phi3_from_hf, phi3_from_gguf};
const Family kPhimoeFamily = {
    "phimoe", {"PhimoeForCausalLM", "PhiMoEForCausalLM"}, {"phimoe"}, phimoe_from_hf, phimoe_from_gguf, kPhimoeNames};

}  // namespace quire::model
