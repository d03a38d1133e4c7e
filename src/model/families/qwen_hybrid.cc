// SPDX-License-Identifier: Apache-2.0
// Qwen3-Next, Qwen3.5 and Qwen3.5-MoE: three layers with gated delta net per layer with gated softmax attention.
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

constexpr std::string_view kQwenHybridHandled[] = {
    "attention_bias",        "layer_types",           "num_experts",         "num_local_experts",
    "moe_intermediate_size", "partial_rotary_factor", "linear_num_key_heads"};

Status read_gated_delta_net(const json::Value& config, DecoderConfig& out) {
  GatedDeltaNetConfig& c = out.gdn;
  QUIRE_ASSIGN(c.key_heads, read_size_or(config, "linear_num_key_heads", 16, 1));
  QUIRE_ASSIGN(c.value_heads, read_size_or(config, "linear_num_value_heads", 32, 1));
  QUIRE_ASSIGN(c.dk, read_size_or(config, "linear_key_head_dim", 128, 1));
  QUIRE_ASSIGN(c.dv, read_size_or(config, "linear_value_head_dim", 128, 1));
  QUIRE_ASSIGN(c.kernel, json::get_int_or(config, "linear_conv_kernel_dim", 4, 1, 64));
  QUIRE_ASSIGN(const std::vector<std::string> types, read_layer_types(config, out.layers));
  QUIRE_ASSIGN(const int64_t every, json::get_int_or(config, "full_attention_interval", 4, 1, 4096));
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  for (size_t i = 0; i < out.per_layer.size(); ++i) {
    bool full = (i + 1) % static_cast<size_t>(every) == 0;
    if (!types.empty()) {
      full = types[i] == "full_attention";
      if (!full && types[i] != "linear_attention") {
        return unsupported(
            {"field 'layer_types' names '", types[i], "'; this family has linear_attention and full_attention"});
      }
    }
    if (!full) out.per_layer[i].mixer = Mixer::kGatedDeltaNet;
  }
  return {};
}

void qwen_hybrid_set_common(DecoderConfig& out) {
  out.qk_norm = QkNorm::kPerHead;
  out.norm_plus_one = true;
  out.output_gate = true;
}

Result<DecoderConfig> qwen_hybrid_common_from_hf(const json::Value& config, bool has_intermediate) {
  QUIRE_ASSIGN(DecoderConfig out,
               read_common_hf(config, {.partial_rotary = 0.25, .has_intermediate = has_intermediate}));
  QUIRE_TRY(refuse_unknown_maths(config, kQwenHybridHandled));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  QUIRE_TRY(require_silu(out));
  QUIRE_TRY(read_gated_delta_net(config, out));
  QUIRE_ASSIGN(const bool own_embedding, json::get_bool_or(config, "mtp_use_dedicated_embeddings", false));
  if (!own_embedding) {  // Qwen3-Next has one such layer, which its config does not mention
    QUIRE_ASSIGN(out.ahead.layers, json::get_int_or(config, "mtp_num_hidden_layers", 1, 0, 64));
  }
  qwen_hybrid_set_common(out);
  return out;
}

Status qwen_hybrid_read_experts(const json::Value& config, DecoderConfig& out) {
  QUIRE_TRY(read_qwen_experts(config, out));
  QUIRE_ASSIGN(out.moe.shared_intermediate, read_size_or(config, "shared_expert_intermediate_size", 512, 1));
  out.moe.shared_gate = true;
  if (out.intermediate == 0) out.intermediate = out.moe.intermediate;
  return {};
}

Result<DecoderConfig> next_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, qwen_hybrid_common_from_hf(config, true));
  QUIRE_TRY(qwen_hybrid_read_experts(config, out));
  const json::Value* normalise = config.find("norm_topk_prob");
  if (normalise == nullptr) out.moe.normalise = true;
  out.gdn.by_key_head = true;
  return out;
}

Result<DecoderConfig> qwen35_from_hf(const json::Value& config) {
  return qwen_hybrid_common_from_hf(config, true);
}

Result<DecoderConfig> qwen35_moe_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, qwen_hybrid_common_from_hf(config, config.find("intermediate_size") != nullptr));
  QUIRE_TRY(qwen_hybrid_read_experts(config, out));
  out.moe.normalise = true;
  return out;
}

Result<DecoderConfig> qwen_hybrid_common_from_gguf(const weights::GgufMetadata& metadata,
                                                   std::string_view architecture) {
  constexpr std::string_view kKeys[] = {"expert_count", "ssm.conv_kernel", "full_attention_interval",
                                        "nextn_predict_layers", "rope.dimension_sections"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kKeys));
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_TRY(drop_gguf_layers_ahead(metadata, architecture, out));
  GatedDeltaNetConfig& c = out.gdn;
  QUIRE_ASSIGN(c.key_heads, metadata.get_int(prefix + "ssm.group_count", 1, 1 << 16));
  QUIRE_ASSIGN(c.value_heads, metadata.get_int(prefix + "ssm.time_step_rank", 1, 1 << 16));
  QUIRE_ASSIGN(c.dk, metadata.get_int(prefix + "ssm.state_size", 1, 4096));
  QUIRE_ASSIGN(const int64_t inner, metadata.get_int(prefix + "ssm.inner_size", 1, 1 << 24));
  QUIRE_ASSIGN(c.kernel, metadata.get_int(prefix + "ssm.conv_kernel", 1, 64));
  if (inner % c.value_heads != 0) return invalid_argument({"key '", prefix, "ssm.inner_size' does not fit the heads"});
  c.dv = inner / c.value_heads;
  QUIRE_ASSIGN(const int64_t every, metadata.get_int_or(prefix + "full_attention_interval", 4, 1, 4096));
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  std::vector<bool> recurrent;
  if (metadata.contains(prefix + "attention.recurrent_layers")) {
    QUIRE_ASSIGN(recurrent, metadata.get_bools(prefix + "attention.recurrent_layers"));
  } else {
    for (int64_t i = 0; i < out.layers; ++i) recurrent.push_back((i + 1) % every != 0);
  }
  if (recurrent.size() < out.per_layer.size()) {
    return invalid_argument({"key '", prefix, "attention.recurrent_layers' must have an entry for each layer"});
  }
  for (size_t i = 0; i < out.per_layer.size(); ++i) {
    if (recurrent[i]) out.per_layer[i].mixer = Mixer::kGatedDeltaNet;
  }
  qwen_hybrid_set_common(out);
  return out;
}

Result<DecoderConfig> qwen35_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, qwen_hybrid_common_from_gguf(metadata, architecture));
  out.gdn.tiled_value_heads = true;
  return out;
}

Result<DecoderConfig> moe_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, qwen_hybrid_common_from_gguf(metadata, architecture));
  QUIRE_TRY(read_gguf_experts(metadata, architecture, out));
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_ASSIGN(out.moe.shared_intermediate, metadata.get_int(prefix + "expert_shared_feed_forward_length", 1, 1 << 24));
  out.moe.shared_gate = out.moe.normalise = true;
  return out;
}

Result<DecoderConfig> next_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, moe_from_gguf(metadata, architecture));
  out.gdn.by_key_head = true;
  return out;
}

Result<DecoderConfig> qwen35_moe_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, moe_from_gguf(metadata, architecture));
  out.gdn.tiled_value_heads = true;
  return out;
}

constexpr PartName kQwenHybridNames[] = {
    {Part::kMlpNorm, "model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"},
    {Part::kSharedGate, "model.layers.{}.mlp.shared_expert.gate_proj", "blk.{}.ffn_gate_shexp"},
    {Part::kSharedUp, "model.layers.{}.mlp.shared_expert.up_proj", "blk.{}.ffn_up_shexp"},
    {Part::kSharedDown, "model.layers.{}.mlp.shared_expert.down_proj", "blk.{}.ffn_down_shexp"},
    {Part::kAheadProjection, "mtp.fc", "blk.{}.nextn.eh_proj"},
    {Part::kAheadEmbeddingNorm, "mtp.pre_fc_norm_embedding", "blk.{}.nextn.enorm"},
    {Part::kAheadHiddenNorm, "mtp.pre_fc_norm_hidden", "blk.{}.nextn.hnorm"},
    {Part::kAheadNorm, "mtp.norm", "blk.{}.nextn.shared_head_norm"},
};

}  // namespace

const Family kQwen3NextFamily = {"qwen3-next", {"Qwen3NextForCausalLM"}, {"qwen3next"},
                                 next_from_hf, next_from_gguf,           kQwenHybridNames};
const Family kQwen35Family = {"qwen3.5",        {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"},
                              {"qwen35"},       qwen35_from_hf,
                              qwen35_from_gguf, kQwenHybridNames};
const Family kQwen35MoeFamily = {"qwen3.5-moe",        {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"},
                                 {"qwen35moe"},        qwen35_moe_from_hf,
                                 qwen35_moe_from_gguf, kQwenHybridNames};

}  // namespace quire::model
