// SPDX-License-Identifier: Apache-2.0
// Nemotron-H: each layer has one norm and one part: Mamba-2, attention without positions, an MLP, or experts.
#include <limits>

#include "base/utf8.h"
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

// layers_block_type, or the pattern in older files: M Mamba-2, * attention, - MLP, E experts.
Result<std::vector<LayerConfig>> read_layers(const json::Value& config) {
  std::vector<LayerConfig> out;
  const json::Value* types = config.find("layers_block_type");
  QUIRE_ASSIGN(const std::string pattern, json::get_string_or(config, "hybrid_override_pattern", ""));
  std::vector<std::string> words;
  if (types != nullptr && types->is_array()) {
    for (const json::Value& type : types->as_array()) {
      if (!type.is_string()) return invalid_argument("field 'layers_block_type' must hold words");
      words.push_back(type.as_string());
    }
  } else {
    for (const char c : pattern) words.emplace_back(1, c);
  }
  for (const std::string& word : words) {
    LayerConfig layer;
    layer.mixer = Mixer::kNone;
    layer.feed_forward = FeedForward::kNone;
    layer.rope = RopeUse::kNone;
    if (word == "linear_attention" || word == "mamba" || word == "M") {
      layer.mixer = Mixer::kMamba2;
    } else if (word == "full_attention" || word == "attention" || word == "*") {
      layer.mixer = Mixer::kAttention;
    } else if (word == "mlp" || word == "-") {
      layer.feed_forward = FeedForward::kPlain;
    } else if (word == "moe" || word == "E") {
      layer.feed_forward = FeedForward::kMoe;
    } else {
      return unsupported({"a layer is of type '", utf8::beginning(word, 40),
                          "'; Nemotron-H has linear_attention, full_attention, mlp and moe"});
    }
    out.push_back(layer);
  }
  if (out.empty() || out.size() > 4096) {
    return invalid_argument("field 'layers_block_type' must list the layers (1 to 4096)");
  }
  return out;
}

Status nemotron_read_mamba(const json::Value& config, DecoderConfig& out) {
  Mamba2Config& c = out.mamba2;
  QUIRE_ASSIGN(c.heads, read_size_or(config, "mamba_num_heads", 128, 1));
  QUIRE_ASSIGN(c.head_dim, read_size_or(config, "mamba_head_dim", 64, 1));
  QUIRE_ASSIGN(c.groups, read_size_or(config, "n_groups", 8, 1));
  QUIRE_ASSIGN(c.state_size, read_size_or(config, "ssm_state_size", 128, 1));
  QUIRE_ASSIGN(c.kernel, json::get_int_or(config, "conv_kernel", 4, 1, 64));
  QUIRE_ASSIGN(c.conv_bias, json::get_bool_or(config, "use_conv_bias", true));
  QUIRE_ASSIGN(c.proj_bias, json::get_bool_or(config, "mamba_proj_bias", false));
  c.norm_group = c.heads * c.head_dim / c.groups;
  return read_time_step_limit(config, c);
}

Status nemotron_read_experts(const json::Value& config, DecoderConfig& out) {
  MoeConfig& c = out.moe;
  QUIRE_ASSIGN(c.experts, read_size_or(config, "n_routed_experts", 0));
  if (c.experts == 0) return {};
  const json::Value* latent = config.find("moe_latent_size");
  if (latent != nullptr && !latent->is_null()) {
    return unsupported("field 'moe_latent_size' is set; quire has Nemotron-H's experts without a latent space");
  }
  QUIRE_ASSIGN(c.k, read_size_or(config, "num_experts_per_tok", 2, 1));
  QUIRE_ASSIGN(c.intermediate, read_size(config, "moe_intermediate_size"));
  QUIRE_ASSIGN(c.shared_intermediate, read_size_or(config, "moe_shared_expert_intermediate_size", 0));
  QUIRE_ASSIGN(c.groups, read_size_or(config, "n_group", 1, 1));
  QUIRE_ASSIGN(c.groups_kept, read_size_or(config, "topk_group", 1, 1));
  QUIRE_ASSIGN(c.scale, read_factor(config, "routed_scaling_factor", 1.0));
  QUIRE_ASSIGN(c.normalise, json::get_bool_or(config, "norm_topk_prob", true));
  c.gated = false;
  c.score = MoeScore::kSigmoid;
  c.group_score = MoeGroupScore::kTopTwoSum;
  c.choice_bias = true;
  c.sum_epsilon = 1e-20f;
  return {};
}

Result<DecoderConfig> nemotron_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(std::vector<LayerConfig> layers, read_layers(config));
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.norm_eps = 1e-5,
                                                          .norm_eps_field = "layer_norm_epsilon",
                                                          .layers = static_cast<int64_t>(layers.size())}));
  constexpr std::string_view kHandled[] = {"n_routed_experts", "moe_intermediate_size", "attention_bias", "mlp_bias"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  out.per_layer = std::move(layers);
  // attention_bias is ignored: the projections never have one.
  QUIRE_ASSIGN(const std::string conv_act, json::get_string_or(config, "mamba_hidden_act", "silu"));
  if (conv_act != "silu") return unsupported({"field 'mamba_hidden_act' is '", conv_act, "'; quire has silu"});
  QUIRE_ASSIGN(out.mlp_bias, json::get_bool_or(config, "mlp_bias", false));
  QUIRE_ASSIGN(const std::string act, json::get_string_or(config, "mlp_hidden_act", "relu2"));
  if (act != "relu2") return unsupported({"field 'mlp_hidden_act' is '", act, "'; quire has relu2 for Nemotron-H"});
  out.activation = Activation::kRelu2;
  QUIRE_TRY(nemotron_read_mamba(config, out));
  QUIRE_TRY(nemotron_read_experts(config, out));
  return out;
}

// A layer with KV heads is attention. One with a width is an MLP, or experts if the width is theirs. The others are
// Mamba-2.
Result<DecoderConfig> nemotron_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kKeys[] = {"expert_count", "ssm.conv_kernel", "nextn_predict_layers",
                                        "attention.head_count_kv", "feed_forward_length"};
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kKeys));
  QUIRE_TRY(drop_gguf_layers_ahead(metadata, architecture, out));
  out.ahead = {};  // of another kind
  QUIRE_TRY(read_gguf_mamba2(metadata, architecture, out));
  out.mamba2.norm_group = out.mamba2.heads * out.mamba2.head_dim / out.mamba2.groups;
  out.activation = Activation::kRelu2;
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_ASSIGN(const int64_t experts, metadata.get_int_or(prefix + "expert_count", 0, 0, 1 << 16));
  const std::vector<LayerConfig> found = out.per_layer;
  if (experts > 0) {
    QUIRE_TRY(read_gguf_routing(metadata, architecture, out));
    out.moe.gated = false;
    out.moe.score = MoeScore::kSigmoid;  // even if the file does not say so
    out.moe.group_score = MoeGroupScore::kTopTwoSum;
    out.moe.choice_bias = true;
    out.moe.sum_epsilon = 1e-20f;
  }
  for (size_t i = 0; i < out.per_layer.size(); ++i) {
    const bool attends = i < found.size() && found[i].kv_heads > 0;
    const int64_t width = i < found.size() ? found[i].intermediate : -1;
    LayerConfig layer;
    layer.rope = RopeUse::kNone;
    layer.feed_forward = width <= 0                                     ? FeedForward::kNone
                         : experts > 0 && width == out.moe.intermediate ? FeedForward::kMoe
                                                                        : FeedForward::kPlain;
    layer.mixer = attends ? Mixer::kAttention : width > 0 ? Mixer::kNone : Mixer::kMamba2;
    if (layer.feed_forward == FeedForward::kPlain) layer.intermediate = width;
    out.per_layer[i] = layer;
  }
  return out;
}

constexpr PartName kNemotronNames[] = {
    {Part::kEmbedding, "backbone.embeddings", "token_embd"},
    {Part::kFinalNorm, "backbone.norm_f", "output_norm"},
    {Part::kAttentionNorm, "backbone.layers.{}.norm", "blk.{}.attn_norm"},
    {Part::kMlpNorm, "backbone.layers.{}.norm", "blk.{}.attn_norm"},
    {Part::kQ, "backbone.layers.{}.mixer.q_proj", "blk.{}.attn_q"},
    {Part::kK, "backbone.layers.{}.mixer.k_proj", "blk.{}.attn_k"},
    {Part::kV, "backbone.layers.{}.mixer.v_proj", "blk.{}.attn_v"},
    {Part::kO, "backbone.layers.{}.mixer.o_proj", "blk.{}.attn_output"},
    {Part::kUp, "backbone.layers.{}.mixer.up_proj", "blk.{}.ffn_up"},
    {Part::kDown, "backbone.layers.{}.mixer.down_proj", "blk.{}.ffn_down"},
    {Part::kConv, "backbone.layers.{}.mixer.conv1d", "blk.{}.ssm_conv1d"},
    {Part::kDecay, "backbone.layers.{}.mixer.A_log", "blk.{}.ssm_a"},
    {Part::kDtBias, "backbone.layers.{}.mixer.dt_bias", "blk.{}.ssm_dt"},
    {Part::kSkip, "backbone.layers.{}.mixer.D", "blk.{}.ssm_d"},
    {Part::kStateIn, "backbone.layers.{}.mixer.in_proj", "blk.{}.ssm_in"},
    {Part::kStateNorm, "backbone.layers.{}.mixer.norm", "blk.{}.ssm_norm"},
    {Part::kStateOut, "backbone.layers.{}.mixer.out_proj", "blk.{}.ssm_out"},
    {Part::kRouter, "backbone.layers.{}.mixer.gate", "blk.{}.ffn_gate_inp"},
    {Part::kChoiceBias, "backbone.layers.{}.mixer.gate.e_score_correction_bias", "blk.{}.exp_probs_b"},
    {Part::kExpertUp, "backbone.layers.{}.mixer.experts.{}.up_proj", ""},
    {Part::kExpertDown, "backbone.layers.{}.mixer.experts.{}.down_proj", ""},
    {Part::kSharedUp, "backbone.layers.{}.mixer.shared_experts.up_proj", "blk.{}.ffn_up_shexp"},
    {Part::kSharedDown, "backbone.layers.{}.mixer.shared_experts.down_proj", "blk.{}.ffn_down_shexp"},
};

}  // namespace

const Family kNemotronHFamily = {"nemotron-h",     {"NemotronHForCausalLM"}, {"nemotron_h", "nemotron_h_moe"},
                                 nemotron_from_hf, nemotron_from_gguf,       kNemotronNames};

}  // namespace quire::model
