// SPDX-License-Identifier: Apache-2.0
// load_model: the weights of a whole decoder, layer by layer.
#include <algorithm>
#include <cstring>

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

// Which row of an EAGLE-3 head each token of the vocabulary has: `d2t` holds for each row the distance from its number
// to its token. Without it, the rows are the first tokens.
Result<std::vector<int32_t>> read_head_rows(Loader& loader) {
  const DecoderConfig& config = loader.config();
  const int64_t rows = config.ahead.draft_vocab;
  std::vector<int32_t> out(static_cast<size_t>(config.vocab_size), static_cast<int32_t>(rows));
  const weights::UnsupportedTensor* map = loader.files().source->find_unsupported("d2t");
  if (map == nullptr && rows != config.vocab_size && !loader.files().source->is_dummy()) {
    return corrupt("tensor 'd2t' is missing: it says which tokens the head of an EAGLE-3 layer knows");
  }
  if (map != nullptr && (map->type_name != "I64" || map->data.size() != static_cast<size_t>(rows) * sizeof(int64_t))) {
    return corrupt("tensor 'd2t' must hold " + std::to_string(rows) + " numbers of type I64");
  }
  for (int64_t row = 0; row < rows; ++row) {
    int64_t token = row;
    if (map != nullptr) {
      int64_t distance = 0;
      std::memcpy(&distance, map->data.data() + static_cast<size_t>(row) * sizeof distance, sizeof distance);
      if (distance < 0 || distance >= config.vocab_size - row) {
        return corrupt("tensor 'd2t' names a token that is not in the vocabulary");
      }
      token += distance;
    }
    out[static_cast<size_t>(token)] = static_cast<int32_t>(row);
  }
  return out;
}

// The head has one more row, which gives all unknown tokens a logit that is never sampled.
Status load_eagle_head(Loader& loader, DecoderWeights& out) {
  const DecoderConfig& config = loader.config();
  const int64_t rows = config.ahead.draft_vocab;
  QUIRE_ASSIGN(out.ahead.head_rows, read_head_rows(loader));
  Slice slice{loader.name(Part::kHead, 0), rows + 1, strided_rows(0, rows, rows, 1), rows};
  slice.map.push_back(0);
  Linear::Piece piece;
  QUIRE_ASSIGN(piece.weight, loader.matrix(slice, config.hidden));
  std::vector<float> bias(static_cast<size_t>(rows) + 1);
  bias.back() = -1e30f;
  piece.bias = std::move(bias);
  out.head.add(std::move(piece));
  return {};
}

Result<DecoderWeights> load_eagle(Loader& loader, const DecoderWeights& target, Backend& backend) {
  const DecoderConfig& config = loader.config();
  const auto states = static_cast<int64_t>(config.ahead.taps.size());
  DecoderWeights out;
  out.embedding = target.embedding;
  const std::string own = loader.name(Part::kEmbedding, 0);
  if (loader.has(own + ".weight")) {
    QUIRE_ASSIGN(out.embedding, loader.matrix({own, config.vocab_size}, config.hidden));
  }
  QUIRE_TRY(load_eagle_head(loader, out));
  QUIRE_ASSIGN(out.final_norm, loader.norm(Part::kFinalNorm, 0, {config.hidden}));
  QUIRE_ASSIGN(out.ahead.hidden_norm, loader.norm(Part::kAheadHiddenNorm, 0, {config.hidden}));
  QUIRE_ASSIGN(out.ahead.projection, loader.linear(Part::kAheadProjection, 0, config.hidden, states * config.hidden));
  QUIRE_ASSIGN(DecoderLayer layer, load_layer(loader, 0));
  out.layers.push_back(std::move(layer));
  QUIRE_TRY(out.place(backend));
  out.main_dtype = loader.main_dtype();
  out.activation = loader.activation();
  return out;
}

// With the embedding and the head of the target.
Result<DecoderWeights> load_ahead(Loader& loader, const DecoderWeights& target, Backend& backend) {
  const DecoderConfig& config = loader.config();
  const std::vector<int64_t> shape = {config.hidden};
  DecoderWeights out;
  out.embedding = target.embedding;
  out.head = target.head;
  const std::string norm = loader.name(Part::kAheadNorm, 0) + ".weight";
  if (loader.gguf() && !loader.has(norm)) {
    out.final_norm = target.final_norm;
  } else {
    QUIRE_ASSIGN(out.final_norm, loader.norm(Part::kAheadNorm, 0, shape));
  }
  QUIRE_ASSIGN(out.ahead.embedding_norm, loader.norm(Part::kAheadEmbeddingNorm, 0, shape));
  QUIRE_ASSIGN(out.ahead.hidden_norm, loader.norm(Part::kAheadHiddenNorm, 0, shape));
  QUIRE_ASSIGN(out.ahead.projection, loader.linear(Part::kAheadProjection, 0, config.hidden, 2 * config.hidden));
  QUIRE_ASSIGN(DecoderLayer layer, load_layer(loader, 0));
  out.layers.push_back(std::move(layer));
  QUIRE_TRY(out.place(backend));
  out.main_dtype = loader.main_dtype();
  out.activation = loader.activation();
  return out;
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
  if (files.config.ahead.is_layer) {
    return invalid_argument("'" + files.files.file.string() +
                            "' is an EAGLE-3 layer, which drafts for another model: name it in --speculative-config");
  }
  QUIRE_ASSIGN(const std::optional<DType> dtype, parse_dtype(options.dtype));
  Loader loader(files, options, dtype, backend);
  QUIRE_ASSIGN(DecoderWeights loaded, load_decoder(loader, backend));
  const int64_t max_len = options.max_model_len > 0 ? options.max_model_len : files.config.max_position;
  return std::unique_ptr<Model>(std::make_unique<DecoderModel>(files.config, std::move(loaded), max_len, backend));
}

namespace {

bool has_names_with(const weights::WeightSource& source, const std::string& prefix) {
  const std::vector<std::string> names = source.names();
  return std::ranges::any_of(names, [&](const std::string& name) { return name.starts_with(prefix); });
}

}  // namespace

Result<ModelFiles> layer_ahead(const ModelFiles& target) {
  ModelFiles out = target;
  DecoderConfig& config = out.config;
  const auto attends = [](const LayerConfig& layer) {
    return layer.mixer == Mixer::kAttention || layer.mixer == Mixer::kMla;
  };
  const auto last = std::find_if(config.per_layer.rbegin(), config.per_layer.rend(), attends);
  if (config.ahead.layers == 0 || last == config.per_layer.rend()) {
    return unsupported("'" + target.files.file.string() +
                       "' has no layer for multi-token prediction (MTP) that quire runs");
  }
  std::string projection = target.family->name_of(Part::kAheadProjection, config.layers, out.gguf != nullptr);
  config.first_layer = config.layers;
  if (projection.starts_with("mtp.")) {
    for (const char* prefix : {"model.", "language_model."}) {
      if (has_names_with(*out.source, prefix + projection)) config.ahead.prefix = prefix;
    }
    config.first_layer = 0;
    config.layer_prefix = config.ahead.prefix + "mtp.layers.";
    projection = config.ahead.prefix + projection;
  } else if (projection.starts_with("model.")) {
    projection.replace(0, 6, config.text_prefix);
  }
  if (!out.source->is_dummy() && !has_names_with(*out.source, projection)) {
    return unsupported("'" + target.files.file.string() + "' has no tensor '" + projection +
                       ".weight': its layer for multi-token prediction (MTP) was left out");
  }
  config.layers = 1;
  config.per_layer = {LayerConfig(*last)};
  config.ahead.is_layer = true;
  return out;
}

Result<std::unique_ptr<Model>> load_layer_ahead(const ModelFiles& files, const LoadOptions& options, Backend& backend,
                                                const Model& target) {
  const auto* trunk = dynamic_cast<const DecoderModel*>(&target);
  QUIRE_CHECK(trunk != nullptr && files.config.ahead.is_layer);
  QUIRE_ASSIGN(const std::optional<DType> dtype, parse_dtype(options.dtype));
  Loader loader(files, options, dtype, backend);
  const bool eagle = files.config.ahead.eagle;
  auto loaded = (eagle ? load_eagle : load_ahead)(loader, trunk->weights(), backend);
  if (!loaded.ok() && eagle) return in_file(files.files.file, loaded.error());
  if (!loaded.ok()) {
    return Error{loaded.error().code, "the layer for multi-token prediction (MTP): " + loaded.error().message};
  }
  const int64_t max_len = options.max_model_len > 0 ? options.max_model_len : files.config.max_position;
  return std::unique_ptr<Model>(
      std::make_unique<DecoderModel>(files.config, std::move(*loaded), max_len, backend, trunk));
}

}  // namespace quire::model
