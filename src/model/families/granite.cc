// SPDX-License-Identifier: Apache-2.0
// Granite 3.x: Llama with four multipliers. Granite 4 (GraniteMoeHybrid): the same with Mamba-2 layers, and experts in
// some sizes.
#include <cmath>

#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

Result<float> multiplier(double value, const char* field) {
  const float rounded = static_cast<float>(value);
  if (!(rounded > 0) || !std::isfinite(rounded)) {
    return invalid_argument({"'", field, "' must be a positive number"});
  }
  return rounded;
}

Status read_multipliers(const json::Value& config, DecoderConfig& out) {
  QUIRE_ASSIGN(const double embedding, json::get_double_or(config, "embedding_multiplier", 1.0));
  QUIRE_ASSIGN(const double attention, json::get_double_or(config, "attention_multiplier", 1.0));
  QUIRE_ASSIGN(const double residual, json::get_double_or(config, "residual_multiplier", 1.0));
  QUIRE_ASSIGN(const double logits, json::get_double_or(config, "logits_scaling", 1.0));
  QUIRE_ASSIGN(out.embedding_scale, multiplier(embedding, "embedding_multiplier"));
  QUIRE_ASSIGN(out.attention_scale, multiplier(attention, "attention_multiplier"));
  QUIRE_ASSIGN(out.residual_scale, multiplier(residual, "residual_multiplier"));
  QUIRE_ASSIGN(out.logits_scale, multiplier(1.0 / logits, "logits_scaling"));
  return {};
}

Result<DecoderConfig> granite_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  constexpr std::string_view kHandled[] = {"attention_bias",       "mlp_bias",
                                           "embedding_multiplier", "residual_multiplier",
                                           "attention_multiplier", "logits_scaling"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  QUIRE_ASSIGN(out.mlp_bias, json::get_bool_or(config, "mlp_bias", false));
  QUIRE_TRY(read_multipliers(config, out));
  return out;
}

Status read_gguf_multipliers(const weights::GgufMetadata& metadata, const std::string& prefix, DecoderConfig& out) {
  QUIRE_ASSIGN(const double attention, metadata.get_double_or(prefix + "attention.scale", 0.0));
  QUIRE_ASSIGN(const double logits, metadata.get_double_or(prefix + "logit_scale", 1.0));
  if (attention != 0) {
    QUIRE_ASSIGN(out.attention_scale, multiplier(attention, "attention.scale"));
  }
  QUIRE_ASSIGN(out.embedding_scale, read_gguf_factor(metadata, prefix + "embedding_scale", 1.0));
  QUIRE_ASSIGN(out.residual_scale, read_gguf_factor(metadata, prefix + "residual_scale", 1.0));
  QUIRE_ASSIGN(out.logits_scale, multiplier(1.0 / logits, "logit_scale"));
  return {};
}

Result<DecoderConfig> granite_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kHandled[] = {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandled));
  QUIRE_TRY(read_gguf_multipliers(metadata, std::string(architecture) + ".", out));
  out.gguf_permuted = true;
  return out;
}

Status granite_read_mamba(const json::Value& config, DecoderConfig& out) {
  Mamba2Config& c = out.mamba2;
  QUIRE_ASSIGN(c.heads, read_size_or(config, "mamba_n_heads", 128, 1));
  QUIRE_ASSIGN(const int64_t expand, json::get_int_or(config, "mamba_expand", 2, 1, 64));
  const json::Value* head = config.find("mamba_d_head");
  if (head != nullptr && head->is_int()) {
    QUIRE_ASSIGN(c.head_dim, read_size(config, "mamba_d_head"));
  } else {  // "auto"
    c.head_dim = expand * out.hidden / c.heads;
  }
  QUIRE_ASSIGN(c.groups, read_size_or(config, "mamba_n_groups", 1, 1));
  QUIRE_ASSIGN(c.state_size, read_size_or(config, "mamba_d_state", 256, 1));
  QUIRE_ASSIGN(c.kernel, json::get_int_or(config, "mamba_d_conv", 4, 1, 64));
  QUIRE_ASSIGN(c.conv_bias, json::get_bool_or(config, "mamba_conv_bias", true));
  QUIRE_ASSIGN(c.proj_bias, json::get_bool_or(config, "mamba_proj_bias", false));
  return read_time_step_limit(config, c);
}

// Every layer has the shared MLP; in models with experts it is their shared expert.
Status read_feed(const json::Value& config, DecoderConfig& out) {
  QUIRE_ASSIGN(const int64_t shared, read_size_or(config, "shared_intermediate_size", 1024, 1));
  QUIRE_ASSIGN(out.moe.experts, read_size_or(config, "num_local_experts", 8));
  if (out.moe.experts == 0) {
    out.intermediate = shared;
    out.fused_gate_up = true;
    return {};
  }
  QUIRE_ASSIGN(out.moe.k, read_size_or(config, "num_experts_per_tok", 2, 1));
  out.moe.intermediate = out.intermediate;
  out.moe.shared_intermediate = shared;
  out.moe.score = MoeScore::kSoftmaxOfChosen;
  for (LayerConfig& layer : out.per_layer) layer.feed_forward = FeedForward::kMoe;
  return {};
}

Result<DecoderConfig> hybrid_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {}));
  constexpr std::string_view kHandled[] = {"attention_bias",       "embedding_multiplier", "residual_multiplier",
                                           "attention_multiplier", "logits_scaling",       "num_local_experts",
                                           "mamba_d_state",        "layer_types"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  QUIRE_TRY(read_multipliers(config, out));
  QUIRE_ASSIGN(std::vector<std::string> types, read_layer_types(config, out.layers));
  if (types.empty()) {
    QUIRE_ASSIGN(types, read_layer_types(config, out.layers, "layers_block_type"));
  }
  const json::Value* positions = config.find("position_embedding_type");
  const bool rope = positions != nullptr && positions->is_string() && positions->as_string() == "rope";
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  for (size_t i = 0; i < out.per_layer.size(); ++i) {
    LayerConfig& layer = out.per_layer[i];
    layer.rope = rope ? RopeUse::kMain : RopeUse::kNone;
    const std::string type = types.empty() ? "mamba" : types[i];
    if (type == "mamba" || type == "linear_attention") {
      layer.mixer = Mixer::kMamba2;
    } else if (type != "attention" && type != "full_attention") {
      return unsupported({"field 'layer_types' names '", type, "'; this family has mamba and attention"});
    }
  }
  QUIRE_TRY(require_silu(out));
  QUIRE_TRY(granite_read_mamba(config, out));
  QUIRE_TRY(read_feed(config, out));
  return out;
}

// Layers without KV heads are Mamba-2. rope.scaling.finetuned says whether the others rotate.
Result<DecoderConfig> hybrid_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kKeys[] = {"attention.scale", "embedding_scale", "residual_scale",         "logit_scale",
                                        "expert_count",    "ssm.conv_kernel", "attention.head_count_kv"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kKeys));
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_TRY(read_gguf_multipliers(metadata, prefix, out));
  QUIRE_TRY(read_gguf_mamba2(metadata, architecture, out));
  QUIRE_ASSIGN(const bool rope, metadata.get_bool_or(prefix + "rope.scaling.finetuned", true));
  if (out.per_layer.empty()) out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  for (LayerConfig& layer : out.per_layer) {
    layer.rope = rope ? RopeUse::kMain : RopeUse::kNone;
    if (layer.kv_heads < 0) layer.mixer = Mixer::kMamba2, layer.kv_heads = 0;
  }
  out.gguf_permuted = true;
  QUIRE_ASSIGN(const int64_t experts, metadata.get_int_or(prefix + "expert_count", 0, 0, 1 << 16));
  if (experts > 0) {
    QUIRE_TRY(read_gguf_experts(metadata, architecture, out));
    QUIRE_ASSIGN(out.moe.shared_intermediate,
                 metadata.get_int_or(prefix + "expert_shared_feed_forward_length", 0, 0, 1 << 24));
    out.moe.score = MoeScore::kSoftmaxOfChosen;
  }
  return out;
}

constexpr PartName kHybridNames[] = {
    {Part::kConv, "model.layers.{}.mamba.conv1d", "blk.{}.ssm_conv1d"},
    {Part::kDecay, "model.layers.{}.mamba.A_log", "blk.{}.ssm_a"},
    {Part::kDtBias, "model.layers.{}.mamba.dt_bias", "blk.{}.ssm_dt"},
    {Part::kStateNorm, "model.layers.{}.mamba.norm", "blk.{}.ssm_norm"},
    {Part::kStateOut, "model.layers.{}.mamba.out_proj", "blk.{}.ssm_out"},
    {Part::kRouter, "model.layers.{}.block_sparse_moe.router.layer", "blk.{}.ffn_gate_inp"},
    {Part::kExpertsGateUp, "model.layers.{}.block_sparse_moe.input_linear", "blk.{}.ffn_gate_up_exps"},
    {Part::kExpertsDown, "model.layers.{}.block_sparse_moe.output_linear", "blk.{}.ffn_down_exps"},
    {Part::kSharedGateUp, "model.layers.{}.shared_mlp.input_linear", ""},
    {Part::kSharedDown, "model.layers.{}.shared_mlp.output_linear", "blk.{}.ffn_down_shexp"},
    {Part::kGateUp, "model.layers.{}.shared_mlp.input_linear", ""},
    {Part::kDown, "model.layers.{}.shared_mlp.output_linear", "blk.{}.ffn_down"},
};
constexpr ExpertTensors kHybridExperts = {.fused_gate_up = true, .fused_shared = true};

}  // namespace

const Family kGraniteFamily = {"granite", {"GraniteForCausalLM"}, {"granite"}, granite_from_hf, granite_from_gguf};
const Family kGraniteHybridFamily = {"granite-hybrid",  {"GraniteMoeHybridForCausalLM"},
                                     {"granitehybrid"}, hybrid_from_hf,
                                     hybrid_from_gguf,  kHybridNames,
                                     kHybridExperts};

}  // namespace quire::model
