// SPDX-License-Identifier: Apache-2.0
// load_model: the weights of a whole decoder, layer by layer.
#include "model/layers/decoder.h"
#include "model/layers/feed_forward.h"
#include "model/layers/mixer.h"
#include "model/load/loader.h"

namespace quire::model {
namespace {

Status load_norms(Loader& loader, const LayerConfig& layer, int64_t index, DecoderLayer& out) {
  const std::vector<int64_t> shape = {loader.config().hidden};
  const NormPlacement norms = loader.config().norms;
  if (norms != NormPlacement::kPost && layer.mixer != Mixer::kNone) {
    QUIRE_ASSIGN(out.attention_norm, loader.norm(Part::kAttentionNorm, index, shape));
  }
  if (norms != NormPlacement::kPost && norms != NormPlacement::kParallel && layer.feed_forward != FeedForward::kNone) {
    QUIRE_ASSIGN(out.mlp_norm, loader.norm(Part::kMlpNorm, index, shape));
  }
  if (norms == NormPlacement::kPost || norms == NormPlacement::kSandwich) {
    QUIRE_ASSIGN(out.post_attention_norm, loader.norm(Part::kPostAttentionNorm, index, shape));
    QUIRE_ASSIGN(out.post_mlp_norm, loader.norm(Part::kPostMlpNorm, index, shape));
  }
  return {};
}

Result<DecoderLayer> load_layer(Loader& loader, int64_t index) {
  const DecoderConfig& config = loader.config();
  const LayerConfig& layer = config.per_layer[static_cast<size_t>(index)];
  DecoderLayer out;
  QUIRE_TRY(load_norms(loader, layer, index, out));
  if (layer.mixer != Mixer::kNone) QUIRE_TRY(mixer_kind(layer.mixer).load(loader, layer, index, out));
  QUIRE_TRY(load_feed_forward(loader, layer, index, out));
  if (const int64_t dim = config.per_layer_input.dim; dim > 0) {
    PerLayerInputWeights& input = out.per_layer_input;
    QUIRE_ASSIGN(input.gate, loader.linear(Part::kPerLayerGate, index, dim, config.hidden));
    QUIRE_ASSIGN(input.projection, loader.linear(Part::kPerLayerProjection, index, config.hidden, dim));
    QUIRE_ASSIGN(input.norm, loader.norm(Part::kPerLayerPostNorm, index, {config.hidden}));
  }
  if (config.layer_scalars) {
    const std::string suffix = loader.gguf() ? ".weight" : "";
    QUIRE_ASSIGN(const std::vector<float> scalar, loader.floats(loader.name(Part::kLayerScalar, index) + suffix, {1}));
    out.scalar = scalar.at(0);
  }
  return out;
}

// Gemma 4's second embedding, which has a part for each layer.
Status load_per_layer_embedding(Loader& loader, DecoderWeights& out) {
  const PerLayerInputConfig& c = loader.config().per_layer_input;
  if (c.dim == 0) return {};
  const int64_t all = loader.config().layers * c.dim;
  QUIRE_ASSIGN(out.per_layer_embedding, loader.matrix({loader.name(Part::kPerLayerEmbedding, 0), c.vocab_size}, all));
  QUIRE_ASSIGN(out.per_layer_projection, loader.linear(Part::kPerLayerModelProjection, 0, all, loader.config().hidden));
  QUIRE_ASSIGN(out.per_layer_norm, loader.norm(Part::kPerLayerNorm, 0, {c.dim}));
  return {};
}

Status load_head(Loader& loader, DecoderWeights& out) {
  const DecoderConfig& config = loader.config();
  const std::string name = loader.name(Part::kHead, 0);
  if (!config.tied_embeddings) {
    QUIRE_ASSIGN(out.head, loader.linear({{name, config.vocab_size}}, config.hidden, config.head_bias));
    return {};
  }
  Linear::Piece piece{out.embedding, {}};
  if (config.head_bias) {
    QUIRE_ASSIGN(piece.bias, loader.floats(name + ".bias", {config.vocab_size}));
  }
  out.head.add(std::move(piece));
  return {};
}

// The largest matrices come first: the memory that packing needs for a moment then stays below what all weights need
// in the end.
Result<DecoderWeights> load_decoder(Loader& loader, Backend& backend) {
  const DecoderConfig& config = loader.config();
  DecoderWeights out;
  QUIRE_ASSIGN(out.embedding, loader.matrix({loader.name(Part::kEmbedding, 0), config.vocab_size}, config.hidden));
  QUIRE_ASSIGN(out.final_norm, loader.norm(Part::kFinalNorm, 0, {config.hidden}));
  for (Floats* values : {&out.final_norm.weight, &out.final_norm.bias}) {
    for (float& value : values->host()) value *= config.logits_scale;
  }
  QUIRE_TRY(load_head(loader, out));
  QUIRE_TRY(load_per_layer_embedding(loader, out));
  for (int64_t i = 0; i < config.layers; ++i) {
    QUIRE_ASSIGN(DecoderLayer layer, load_layer(loader, i));
    out.layers.push_back(std::move(layer));
  }
  QUIRE_TRY(loader.refuse_leftovers());
  QUIRE_TRY(out.place(backend));
  out.main_dtype = loader.main_dtype();
  out.activation = loader.activation();
  return out;
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(const ModelFiles& files, const LoadOptions& options, Backend& backend) {
  QUIRE_ASSIGN(const std::optional<DType> dtype, parse_dtype(options.dtype));
  Loader loader(files, options, dtype, backend);
  QUIRE_ASSIGN(DecoderWeights loaded, load_decoder(loader, backend));
  const int64_t max_len = options.max_model_len > 0 ? options.max_model_len : files.config.max_position;
  return std::unique_ptr<Model>(std::make_unique<DecoderModel>(files.config, std::move(loaded), max_len, backend));
}

}  // namespace quire::model
