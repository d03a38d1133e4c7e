// SPDX-License-Identifier: Apache-2.0
// ModernBERT: an encoder with norms before each part, rope with two bases, and a window in two of three layers.
#include "base/utf8.h"
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

constexpr PartName kModernbertNames[] = {
    {Part::kEmbedding, "model.embeddings.tok_embeddings", "token_embd"},
    {Part::kEmbeddingNorm, "model.embeddings.norm", "token_embd_norm"},
    {Part::kFinalNorm, "model.final_norm", "output_norm"},
    {Part::kAttentionNorm, "model.layers.{}.attn_norm", "blk.{}.attn_norm"},
    {Part::kQkv, "model.layers.{}.attn.Wqkv", "blk.{}.attn_qkv"},
    {Part::kO, "model.layers.{}.attn.Wo", "blk.{}.attn_output"},
    {Part::kMlpNorm, "model.layers.{}.mlp_norm", "blk.{}.ffn_norm"},
    {Part::kGateUp, "model.layers.{}.mlp.Wi", "blk.{}.ffn_up"},
    {Part::kDown, "model.layers.{}.mlp.Wo", "blk.{}.ffn_down"},
};

void make_modernbert(DecoderConfig& out) {
  out.encoder.on = out.encoder.embedding_norm = true;
  out.has_head = out.tied_embeddings = false;
  out.fused_qkv = out.fused_gate_up = true;
  if (out.per_layer.empty()) out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  out.per_layer.front().no_input_norm = true;
  for (LayerConfig& layer : out.per_layer) {
    // The file's window counts both sides: a token sees half of it to the left and to the right, and itself.
    if (layer.window > 0) layer.window = layer.window / 2 + 1;
    layer.rope = layer.window > 0 ? RopeUse::kLocal : RopeUse::kMain;
  }
}

Result<DecoderConfig> modernbert_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out,
               read_common_hf(config, {.rope_theta = 160000.0, .norm_eps = 1e-5, .norm_eps_field = "norm_eps"}));
  constexpr std::string_view kHandled[] = {"attention_bias", "mlp_bias", "layer_types", "sliding_window"};
  QUIRE_TRY(refuse_unknown_maths(config, kHandled));
  if (config.find("hidden_activation") == nullptr) out.activation = Activation::kGelu;
  QUIRE_ASSIGN(const bool norm_bias, json::get_bool_or(config, "norm_bias", false));
  out.norm_kind = norm_bias ? NormKind::kLayerWithBias : NormKind::kLayer;
  QUIRE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false));
  out.qkv_bias = out.o_bias = bias;
  QUIRE_ASSIGN(out.mlp_bias, json::get_bool_or(config, "mlp_bias", false));
  QUIRE_ASSIGN(const int64_t window, json::get_int_or(config, "local_attention", 128, 2, kMaxPositions));
  QUIRE_ASSIGN(const int64_t every, json::get_int_or(config, "global_attn_every_n_layers", 3, 1, 4096));
  QUIRE_ASSIGN(const std::vector<std::string> types, read_layer_types(config, out.layers));
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  for (int64_t i = 0; i < out.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool full = types.empty() ? i % every == 0 : types[at] == "full_attention";
    if (!full) out.per_layer[at].window = window;
  }
  // Old files have a base for each kind of layer, new ones rope_parameters with both.
  const json::Value* both = config.find("rope_parameters");
  QUIRE_ASSIGN(const double local, json::get_double_or(config, "local_rope_theta", 10000.0));
  QUIRE_TRY(read_local_rope(config, "sliding_attention", local, out));
  if (both == nullptr || both->is_null()) {
    QUIRE_ASSIGN(out.rope.theta, json::get_double_or(config, "global_rope_theta", 160000.0));
    if (!(out.rope.theta > 0)) return invalid_argument("field 'global_rope_theta' must be a positive number");
  }
  make_modernbert(out);
  return out;
}

Result<DecoderConfig> modernbert_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kHandled[] = {"attention.causal", "attention.sliding_window", "hidden_activation"};
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandled));
  QUIRE_ASSIGN(const double eps, metadata.get_double_or(prefix + "attention.layer_norm_epsilon", 1e-5));
  if (!(eps >= 0) || !(eps < 1)) {
    return invalid_argument({"key '", prefix, "attention.layer_norm_epsilon' must be from 0 to below 1"});
  }
  out.norm_eps = static_cast<float>(eps);
  out.norm_kind = NormKind::kLayer;
  QUIRE_ASSIGN(const std::string_view activation, metadata.get_string_or(prefix + "hidden_activation", "gelu"));
  if (activation != "gelu" && activation != "silu") {
    return unsupported(
        {"key '", prefix, "hidden_activation' is '", utf8::beginning(activation, 40), "'; quire knows gelu and silu"});
  }
  out.activation = activation == "gelu" ? Activation::kGelu : Activation::kSilu;
  QUIRE_ASSIGN(const int64_t window, metadata.get_int_or(prefix + "attention.sliding_window", 128, 0, kMaxPositions));
  QUIRE_ASSIGN(const int64_t every, metadata.get_int_or(prefix + "attention.sliding_window_pattern", 3, 1, 4096));
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  for (int64_t i = 0; i < out.layers; ++i) {
    if (i % every != 0) out.per_layer[static_cast<size_t>(i)].window = window;
  }
  QUIRE_TRY(read_gguf_local_rope(metadata, architecture, 10000.0, out));
  make_modernbert(out);
  return out;
}

}  // namespace

const Family kModernBertFamily = {
    "modernbert",         {"ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"},
    {"modern-bert"},      modernbert_from_hf,
    modernbert_from_gguf, kModernbertNames};

}  // namespace quire::model
