// SPDX-License-Identifier: Apache-2.0
// load_model: the weights of a whole decoder, layer by layer.
#include <algorithm>
#include <cmath>

#include "model/layers/decoder.h"
#include "model/layers/feed_forward.h"
#include "model/layers/mixer.h"
#include "model/load/loader.h"

namespace quire::model {
namespace {

Status load_norms(Loader& loader, const LayerConfig& layer, int64_t index, DecoderLayer& out) {
  const std::vector<int64_t> shape = {loader.config().hidden};
  const NormPlacement norms = loader.config().norms;
  const bool input_norms = norms != NormPlacement::kPost && norms != NormPlacement::kAfterAdd;
  if (input_norms && layer.mixer != Mixer::kNone && !layer.no_input_norm) {
    QUIRE_ASSIGN(out.attention_norm, loader.norm(Part::kAttentionNorm, index, shape));
  }
  if (input_norms && norms != NormPlacement::kParallel && layer.feed_forward != FeedForward::kNone) {
    QUIRE_ASSIGN(out.mlp_norm, loader.norm(Part::kMlpNorm, index, shape));
  }
  if (!input_norms || norms == NormPlacement::kSandwich) {
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

// The bucket of a distance (MPNet's and T5's rule): half of the buckets are for each direction; of those, the nearer
// half are for one distance each, and the others grow logarithmically up to the largest distance.
int64_t distance_bucket(int64_t distance, const EncoderConfig& c) {
  const int64_t half = c.distance_buckets / 2;
  const int64_t exact = half / 2;
  const int64_t away = std::abs(distance);
  int64_t bucket = away;
  if (away >= exact) {
    // As transformers computes it, in floats.
    const float share = std::log(static_cast<float>(away) / static_cast<float>(exact)) /
                        static_cast<float>(std::log(static_cast<double>(c.max_distance) / static_cast<double>(exact)));
    bucket = std::min(half - 1, exact + static_cast<int64_t>(share * static_cast<float>(half - exact)));
  }
  return bucket + (distance > 0 ? half : 0);
}

Result<std::vector<float>> load_distance_bias(Loader& loader) {
  const DecoderConfig& config = loader.config();
  const EncoderConfig& c = config.encoder;
  if (loader.activation() != DType::kF32 || !loader.on_host()) {
    return unsupported("the " + config.family +
                       " family has a bias by distance, which quire computes on a CPU alone; use --device cpu");
  }
  QUIRE_ASSIGN(const std::vector<float> buckets,
               loader.floats(loader.name(Part::kDistanceBias, 0) + ".weight", {c.distance_buckets, config.heads}));
  std::vector<float> out;
  for (int64_t head = 0; head < config.heads; ++head) {
    for (int64_t d = -c.max_distance; d <= c.max_distance; ++d) {
      out.push_back(buckets[static_cast<size_t>(distance_bucket(d, c) * config.heads + head)]);
    }
  }
  return out;
}

// An encoder's tables of positions and token types, and the norm of its embeddings.
Status load_encoder_tables(Loader& loader, DecoderWeights& out) {
  const EncoderConfig& c = loader.config().encoder;
  const int64_t hidden = loader.config().hidden;
  if (c.positions > 0) {
    const int64_t rows = c.positions - c.first_position;
    QUIRE_ASSIGN(out.positions, loader.matrix({loader.name(Part::kPositionEmbedding, 0), rows,
                                               strided_rows(c.first_position, rows, rows, 1), c.positions},
                                              hidden));
  }
  if (c.token_types > 0) {
    QUIRE_ASSIGN(out.token_types, loader.matrix({loader.name(Part::kTypeEmbedding, 0), c.token_types}, hidden));
  }
  if (c.distance_buckets > 0) {
    QUIRE_ASSIGN(out.distance_bias, load_distance_bias(loader));
  }
  if (c.embedding_norm) {
    QUIRE_ASSIGN(out.embedding_norm, loader.norm(Part::kEmbeddingNorm, 0, {hidden}));
  }
  return {};
}

Status load_head(Loader& loader, DecoderWeights& out) {
  const DecoderConfig& config = loader.config();
  if (!config.has_head) return {};
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
Result<DecoderWeights> load_decoder(Loader& loader, Backend& backend, Pooler& pooler) {
  const DecoderConfig& config = loader.config();
  DecoderWeights out;
  QUIRE_ASSIGN(out.embedding, loader.matrix({loader.name(Part::kEmbedding, 0), config.vocab_size}, config.hidden));
  QUIRE_TRY(load_encoder_tables(loader, out));
  if (config.norms != NormPlacement::kAfterAdd) {
    QUIRE_ASSIGN(out.final_norm, loader.norm(Part::kFinalNorm, 0, {config.hidden}));
  }
  for (Floats* values : {&out.final_norm.weight, &out.final_norm.bias}) {
    for (float& value : values->host()) value *= config.logits_scale;
  }
  QUIRE_TRY(load_head(loader, out));
  QUIRE_TRY(load_per_layer_embedding(loader, out));
  for (int64_t i = 0; i < config.layers; ++i) {
    QUIRE_ASSIGN(DecoderLayer layer, load_layer(loader, i));
    out.layers.push_back(std::move(layer));
  }
  QUIRE_ASSIGN(pooler, Pooler::load(loader, loader.files().pooler));
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
  Pooler pooler;
  QUIRE_ASSIGN(DecoderWeights loaded, load_decoder(loader, backend, pooler));
  const int64_t max_len = options.max_model_len > 0 ? options.max_model_len : files.config.max_position;
  return std::unique_ptr<Model>(
      std::make_unique<DecoderModel>(files.config, std::move(loaded), std::move(pooler), max_len, backend));
}

}  // namespace quire::model
