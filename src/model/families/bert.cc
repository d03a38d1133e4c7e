// SPDX-License-Identifier: Apache-2.0
// Encoders with norms after each addition: BERT, RoBERTa and XLM-R (positions begin behind the padding's id), MPNet (a
// bias by distance) and nomic-bert (rope and a gated MLP).
#include "model/config/gguf_config.h"
#include "model/config/hf_config.h"
#include "model/families/family.h"

namespace quire::model {
namespace {

constexpr PartName kBertNames[] = {
    {Part::kEmbedding, "model.embeddings.word_embeddings", "token_embd"},
    {Part::kQ, "model.encoder.layer.{}.attention.self.query", "blk.{}.attn_q"},
    {Part::kK, "model.encoder.layer.{}.attention.self.key", "blk.{}.attn_k"},
    {Part::kV, "model.encoder.layer.{}.attention.self.value", "blk.{}.attn_v"},
    {Part::kO, "model.encoder.layer.{}.attention.output.dense", "blk.{}.attn_output"},
    {Part::kPostAttentionNorm, "model.encoder.layer.{}.attention.output.LayerNorm", "blk.{}.attn_output_norm"},
    {Part::kUp, "model.encoder.layer.{}.intermediate.dense", "blk.{}.ffn_up"},
    {Part::kDown, "model.encoder.layer.{}.output.dense", "blk.{}.ffn_down"},
    {Part::kPostMlpNorm, "model.encoder.layer.{}.output.LayerNorm", "blk.{}.layer_output_norm"},
};

constexpr PartName kMpnetNames[] = {
    {Part::kEmbedding, "model.embeddings.word_embeddings", ""},
    {Part::kQ, "model.encoder.layer.{}.attention.attn.q", ""},
    {Part::kK, "model.encoder.layer.{}.attention.attn.k", ""},
    {Part::kV, "model.encoder.layer.{}.attention.attn.v", ""},
    {Part::kO, "model.encoder.layer.{}.attention.attn.o", ""},
    {Part::kPostAttentionNorm, "model.encoder.layer.{}.attention.LayerNorm", ""},
    {Part::kUp, "model.encoder.layer.{}.intermediate.dense", ""},
    {Part::kDown, "model.encoder.layer.{}.output.dense", ""},
    {Part::kPostMlpNorm, "model.encoder.layer.{}.output.LayerNorm", ""},
};

constexpr PartName kNomicNames[] = {
    {Part::kEmbedding, "model.embeddings.word_embeddings", "token_embd"},
    {Part::kEmbeddingNorm, "model.emb_ln", "token_embd_norm"},
    {Part::kQkv, "model.encoder.layers.{}.attn.Wqkv", "blk.{}.attn_qkv"},
    {Part::kO, "model.encoder.layers.{}.attn.out_proj", "blk.{}.attn_output"},
    {Part::kPostAttentionNorm, "model.encoder.layers.{}.norm1", "blk.{}.attn_output_norm"},
    {Part::kUp, "model.encoder.layers.{}.mlp.fc11", "blk.{}.ffn_up"},
    {Part::kGate, "model.encoder.layers.{}.mlp.fc12", "blk.{}.ffn_gate"},
    {Part::kDown, "model.encoder.layers.{}.mlp.fc2", "blk.{}.ffn_down"},
    {Part::kPostMlpNorm, "model.encoder.layers.{}.norm2", "blk.{}.layer_output_norm"},
};

// What the encoders of this file have in common.
void make_encoder(DecoderConfig& out) {
  out.encoder.on = out.encoder.embedding_norm = true;
  out.has_head = out.tied_embeddings = false;
  out.norms = NormPlacement::kAfterAdd;
  out.norm_kind = NormKind::kLayerWithBias;
}

// BERT's blocks: plain MLP, biases everywhere, and a table of positions instead of rope.
void make_bert(DecoderConfig& out) {
  make_encoder(out);
  out.qkv_bias = out.o_bias = out.mlp_bias = true;
  LayerConfig layer;
  layer.feed_forward = FeedForward::kPlain;
  layer.rope = RopeUse::kNone;
  out.per_layer.assign(static_cast<size_t>(out.layers), layer);
}

// The table has a row for each position; those below `first` are never used.
Status set_positions(int64_t rows, int64_t first, DecoderConfig& out) {
  if (rows <= first) {
    return invalid_argument({"field 'max_position_embeddings' is ", rows, ", which leaves no position"});
  }
  out.encoder.positions = rows;
  out.encoder.first_position = first;
  out.max_position = rows - first;
  return {};
}

Result<DecoderConfig> read_bert(const json::Value& config, double eps) {
  QUIRE_ASSIGN(DecoderConfig out, read_common_hf(config, {.norm_eps = eps, .norm_eps_field = "layer_norm_eps"}));
  QUIRE_TRY(refuse_unknown_maths(config, {}));
  if (config.find("hidden_act") == nullptr) out.activation = Activation::kGelu;
  QUIRE_ASSIGN(const std::string kind, json::get_string_or(config, "position_embedding_type", "absolute"));
  if (kind != "absolute") {
    return unsupported({"field 'position_embedding_type' is '", kind, "'; quire has absolute for this family"});
  }
  QUIRE_ASSIGN(const bool decoder, json::get_bool_or(config, "is_decoder", false));
  if (decoder) return unsupported("field 'is_decoder' is true; quire runs this family as an encoder only");
  make_bert(out);
  return out;
}

Result<DecoderConfig> bert_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_bert(config, 1e-12));
  QUIRE_TRY(set_positions(out.max_position, 0, out));
  QUIRE_ASSIGN(out.encoder.token_types, read_size_or(config, "type_vocab_size", 2));
  return out;
}

// The id of the padding; the first token has the position behind it.
Result<int64_t> read_first_position(const json::Value& config) {
  QUIRE_ASSIGN(const int64_t pad, json::get_int_or(config, "pad_token_id", 1, 0, kMaxSize));
  return pad + 1;
}

Result<DecoderConfig> roberta_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_bert(config, 1e-12));
  QUIRE_ASSIGN(const int64_t first, read_first_position(config));
  QUIRE_TRY(set_positions(out.max_position, first, out));
  QUIRE_ASSIGN(out.encoder.token_types, read_size_or(config, "type_vocab_size", 2));
  return out;
}

Result<DecoderConfig> mpnet_from_hf(const json::Value& config) {
  QUIRE_ASSIGN(DecoderConfig out, read_bert(config, 1e-12));
  QUIRE_ASSIGN(const int64_t first, read_first_position(config));
  QUIRE_TRY(set_positions(out.max_position, first, out));
  QUIRE_ASSIGN(out.encoder.distance_buckets, json::get_int_or(config, "relative_attention_num_buckets", 32, 4, 1024));
  if (out.encoder.distance_buckets != 32) {  // transformers takes 32 whatever the field says
    return unsupported({"field 'relative_attention_num_buckets' is ", out.encoder.distance_buckets,
                        "; quire computes MPNet with 32 alone"});
  }
  out.encoder.max_distance = 128;
  return out;
}

Result<DecoderConfig> bert_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  constexpr std::string_view kHandled[] = {"attention.causal"};
  const std::string prefix = std::string(architecture) + ".";
  QUIRE_ASSIGN(DecoderConfig out, read_common_gguf(metadata, architecture, kHandled));
  QUIRE_ASSIGN(const double eps, metadata.get_double_or(prefix + "attention.layer_norm_epsilon", 1e-12));
  if (!(eps >= 0) || !(eps < 1)) {
    return invalid_argument({"key '", prefix, "attention.layer_norm_epsilon' must be from 0 to below 1"});
  }
  out.norm_eps = static_cast<float>(eps);
  out.activation = Activation::kGelu;
  make_bert(out);
  QUIRE_TRY(set_positions(out.max_position, 0, out));  // the files begin with the first position that is used
  QUIRE_ASSIGN(out.encoder.token_types, metadata.get_int_or("tokenizer.ggml.token_type_count", 0, 0, 1024));
  return out;
}

Result<DecoderConfig> nomic_from_gguf(const weights::GgufMetadata& metadata, std::string_view architecture) {
  QUIRE_ASSIGN(DecoderConfig out, bert_from_gguf(metadata, architecture));
  out.qkv_bias = out.o_bias = out.mlp_bias = false;
  out.activation = Activation::kSilu;
  out.encoder.positions = 0;
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  return out;
}

// Old GPT-2 names for the sizes. A dynamic scaling of rope beyond the trained length is not used: longer texts are
// refused, as in vLLM.
Result<DecoderConfig> nomic_from_hf(const json::Value& config) {
  if (!config.is_object()) return invalid_argument("it must be a JSON object");
  json::Value renamed = config;
  const std::pair<const char*, const char*> kNames[] = {
      {"n_embd", "hidden_size"},        {"n_head", "num_attention_heads"},          {"n_inner", "intermediate_size"},
      {"n_layer", "num_hidden_layers"}, {"n_positions", "max_position_embeddings"}, {"rotary_emb_base", "rope_theta"}};
  for (const auto& [old, name] : kNames) {
    const json::Value* value = config.find(old);
    if (value != nullptr && config.find(name) == nullptr) renamed.set(name, *value);
  }
  QUIRE_ASSIGN(const std::string activation, json::get_string_or(config, "activation_function", "swiglu"));
  if (activation != "swiglu" && activation != "silu") {
    return unsupported({"field 'activation_function' is '", activation, "'; quire has swiglu for nomic-bert"});
  }
  for (const char* field : {"prenorm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved",
                            "parallel_block", "causal"}) {
    QUIRE_ASSIGN(const bool on, json::get_bool_or(config, field, false));
    if (on) return unsupported({"field '", field, "' is true, which quire does not have for nomic-bert"});
  }
  QUIRE_ASSIGN(const double fraction, json::get_double_or(config, "rotary_emb_fraction", 1.0));
  if (fraction != 1) return unsupported("field 'rotary_emb_fraction' must be 1: quire has rope in all of a head");
  const std::string_view eps_field = config.find("layer_norm_eps") != nullptr ? "layer_norm_eps" : "layer_norm_epsilon";
  QUIRE_ASSIGN(DecoderConfig out,
               read_common_hf(renamed, {.rope_theta = 1000.0, .norm_eps = 1e-12, .norm_eps_field = eps_field}));
  make_encoder(out);
  out.activation = Activation::kSilu;
  out.fused_qkv = true;
  QUIRE_ASSIGN(const int64_t trained, json::get_int_or(config, "max_trained_positions", 2048, 1, kMaxPositions));
  out.max_position = std::min(out.max_position, trained);
  QUIRE_ASSIGN(out.encoder.token_types, read_size_or(config, "type_vocab_size", 2));
  return out;
}

}  // namespace

const Family kBertFamily = {"bert",         {"BertModel", "BertForMaskedLM", "BertForSequenceClassification"},
                            {"bert"},       bert_from_hf,
                            bert_from_gguf, kBertNames};
const Family kRobertaFamily = {
    "roberta",
    {"RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification", "XLMRobertaModel",
     "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification", "BgeM3EmbeddingModel"},
    {},
    roberta_from_hf,
    nullptr,
    kBertNames};
const Family kMpnetFamily = {"mpnet", {"MPNetModel", "MPNetForMaskedLM", "MPNetForSequenceClassification"},
                             {},      mpnet_from_hf,
                             nullptr, kMpnetNames};
const Family kNomicBertFamily = {"nomic-bert",  {"NomicBertModel"}, {"nomic-bert"},
                                 nomic_from_hf, nomic_from_gguf,    kNomicNames};

}  // namespace quire::model
