// SPDX-License-Identifier: Apache-2.0
// load_model: the weights of a whole decoder, layer by layer.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <type_traits>

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
  QUIRE_ASSIGN(const std::vector<float> buckets,
               loader.floats(loader.name(Part::kDistanceBias, 0) + ".weight", {c.distance_buckets, config.heads}));
  std::vector<float> out;
  const int64_t heads = loader.own().heads;
  for (int64_t head = loader.share().rank * heads; head < (loader.share().rank + 1) * heads; ++head) {
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
  if (!loader.share().last()) {
    loader.leave(name);
    return {};
  }
  const Slice slice = loader.cut_slice({name, config.vocab_size});
  if (!config.tied_embeddings) {
    QUIRE_ASSIGN(out.head, loader.linear({slice}, config.hidden, config.head_bias));
    return {};
  }
  Linear::Piece piece{out.embedding, {}};
  if (config.head_bias) {
    QUIRE_ASSIGN(const std::vector<float> bias, loader.floats(name + ".bias", {config.vocab_size}));
    piece.bias = cut(bias, 1, loader.share().rank, loader.share().ranks);
  }
  out.head.add(std::move(piece));
  // Its own module, although it shares the embedding's weight.
  out.head.add_source({name, 0, slice.rows, slice.map, config.vocab_size});
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
    return corrupt({"tensor 'd2t' must hold ", rows, " numbers of type I64"});
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

// `whole`: a loader of the target's files, if the target is a share of a model.
Result<DecoderWeights> load_eagle(Loader& loader, Loader* whole, const DecoderModel& target, Backend& backend) {
  const DecoderConfig& config = loader.config();
  const auto states = static_cast<int64_t>(config.ahead.taps.size());
  DecoderWeights out;
  out.embedding = target.weights().embedding;
  const std::string own = loader.name(Part::kEmbedding, 0);
  if (loader.has(own + ".weight")) {
    QUIRE_ASSIGN(out.embedding, loader.matrix({own, config.vocab_size}, config.hidden));
  } else if (whole != nullptr && target.config().share.split()) {
    const Slice slice{whole->name(Part::kEmbedding, 0), config.vocab_size};
    QUIRE_ASSIGN(out.embedding, whole->matrix(slice, config.hidden));
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

// With the embedding and the head of the target, which are loaded again if the target has only a part of them.
Result<DecoderWeights> load_ahead(Loader& loader, Loader* whole, const DecoderModel& target, Backend& backend) {
  const DecoderConfig& config = loader.config();
  const std::vector<int64_t> shape = {config.hidden};
  DecoderWeights out;
  out.embedding = target.weights().embedding;
  if (whole != nullptr && target.config().share.split()) {
    const Slice slice{whole->name(Part::kEmbedding, 0), config.vocab_size};
    QUIRE_ASSIGN(out.embedding, whole->matrix(slice, config.hidden));
  }
  if (whole != nullptr) {
    QUIRE_TRY(load_head(*whole, out));
  } else {
    out.head = target.weights().head;
  }
  const std::string norm = loader.name(Part::kAheadNorm, 0) + ".weight";
  if (loader.gguf() && !loader.has(norm)) {
    out.final_norm = target.weights().final_norm;
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

// Tensors of a layer that another stage has: what their names have in common ends with the layer's number.
void leave_layer(Loader& loader, int64_t layer) {
  const Family& family = *loader.files().family;
  for (int p = 0; p <= static_cast<int>(Part::kExpertsOutNorm); ++p) {
    const Part part = static_cast<Part>(p);
    if (!family.has_name(part)) continue;
    const std::string name = loader.name(part, layer), other = loader.name(part, layer + 1);
    if (name.empty() || name == other) continue;  // not a part of a layer
    const std::string number = "." + std::to_string(layer + loader.config().first_layer) + ".";
    const size_t at = name.find(number);
    if (at != std::string::npos) loader.leave(name.substr(0, at + number.size()));
  }
}

// The largest matrices come first: the memory that packing needs for a moment then stays below what all weights need
// in the end.
Result<DecoderWeights> load_decoder(Loader& loader, Backend& backend, Pooler& pooler) {
  const DecoderConfig& config = loader.config();
  const Share& share = loader.share();
  DecoderWeights out;
  const std::string embedding = loader.name(Part::kEmbedding, 0);
  const bool tied = config.tied_embeddings && config.has_head;
  if (share.first() || (share.last() && tied) || config.per_layer_input.dim > 0) {
    QUIRE_ASSIGN(out.embedding, loader.matrix(loader.cut_slice({embedding, config.vocab_size}), config.hidden));
  } else {
    loader.leave(embedding);
  }
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
    if (i < share.first_layer || i >= share.first_layer + loader.own().layers) {
      leave_layer(loader, i);
      continue;
    }
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

// The names that Hugging Face gives to the modules of a GGUF file, by GGUF's names; a tensor that is several modules'
// name in different families has several.
std::multimap<std::string, std::string> hf_names(const Loader& loader) {
  std::multimap<std::string, std::string> out;
  const DecoderConfig& config = loader.config();
  const Family& family = *loader.files().family;
  for (int p = 0; p <= static_cast<int>(Part::kExpertsOutNorm); ++p) {
    const Part part = static_cast<Part>(p);
    // GGUF orders the heads of gated delta nets in another way.
    const bool reordered =
        config.gdn.key_heads > 0 && ((part >= Part::kGdnQkv && part <= Part::kGdnBa) || part == Part::kStateOut);
    if (reordered || !family.has_name(part)) continue;
    for (int64_t i = 0; i < config.layers; ++i) {
      const std::string gguf = family.name_of(part, i, true), hf = family.name_of(part, i, false);
      if (!gguf.empty() && !hf.empty()) out.emplace(gguf, hf);
      if (gguf == family.name_of(part, i + 1, true)) break;  // not a part of a layer
    }
  }
  return out;
}

// The name of a module in an adapter for a plain text model.
std::string plain_name(const std::string& name, const DecoderConfig& config) {
  return name.starts_with(config.text_prefix) ? "model." + name.substr(config.text_prefix.size()) : name;
}

// What transformers 5 calls a module in the model whose tensors have this name in a checkpoint; "": the same. PEFT
// takes the names of modules.
std::string later_name(const std::string& name, const Family& family) {
  struct Row {
    std::string_view family, from, to;
  };
  constexpr Row kRows[] = {{"nemotron-h", "backbone.", "model."},
                           {"phimoe", ".block_sparse_moe.gate", ".mlp.router"},
                           {"phimoe", ".block_sparse_moe.", ".mlp."},
                           {"mixtral", ".block_sparse_moe.", ".mlp."},
                           {"granite-hybrid", ".block_sparse_moe.router.layer", ".block_sparse_moe.router"},
                           {"nomic-bert", ".encoder.layers.", ".layers."},
                           {"nomic-bert", ".attn.out_proj", ".self_attn.o_proj"},
                           {"nomic-bert", ".mlp.fc11", ".mlp.up_proj"},
                           {"nomic-bert", ".mlp.fc12", ".mlp.gate_proj"},
                           {"nomic-bert", ".mlp.fc2", ".mlp.down_proj"}};
  std::string out = name;
  for (const Row& row : kRows) {
    const size_t at = row.family == family.name ? out.find(row.from) : std::string::npos;
    if (at != std::string::npos) out.replace(at, row.from.size(), row.to);
  }
  return out == name ? "" : out;
}

// Names of the module that has all experts of a layer.
std::set<std::string> names_of_experts(const Family& family, int64_t layer) {
  constexpr std::string_view kModule = ".experts";
  std::set<std::string> out;
  const std::string fused = family.name_of(Part::kExpertsGateUp, layer, false);
  const std::string single = family.name_of(Part::kExpertDown, layer, false, 0);
  for (const std::string& parameter : {fused, single.substr(0, single.find(".experts.") + kModule.size() + 1)}) {
    std::string module = parameter.substr(0, parameter.rfind('.'));
    if (!module.ends_with(kModule)) module += kModule;
    if (const std::string later = later_name(module, family); !later.empty()) out.insert(later);
    out.insert(std::move(module));
  }
  return out;
}

// The modules of single experts, and those of all experts of a layer.
void add_expert_sites(const Loader& loader, int64_t layer, LoraSites& sites, MoeWeights& moe) {
  const DecoderConfig& config = loader.config();
  const Family& family = *loader.files().family;
  const int64_t hidden = config.hidden, inner = config.moe.intermediate, experts = config.moe.experts;
  const int64_t first = loader.share().first_expert(experts), count = loader.share().num_experts(experts);
  moe.site = sites.add_sites(2 * count);
  const auto name = [&](Part part, int64_t expert) { return family.name_of(part, layer, false, expert); };
  LoraSites::Target all{moe.site};
  all.experts = experts;
  all.first_expert = first;
  all.own_experts = count;
  all.hidden = hidden;
  all.inner = inner;
  all.gate_up = (config.moe.gated ? 2 : 1) * inner;
  if (family.experts.transposed) {  // gate and up alternate
    for (int64_t i = 0; i < 2 * inner; ++i) all.map.push_back(static_cast<int32_t>(2 * (i % inner) + i / inner));
  }
  for (const std::string& module : names_of_experts(family, layer)) sites.add(module, false, all);
  for (int64_t e = 0; e < experts; ++e) {
    if (e < first || e >= first + count) {
      for (const Part part : {Part::kExpertGate, Part::kExpertUp, Part::kExpertDown}) {
        if (family.has_name(part)) sites.leave(name(part, e));
      }
      continue;
    }
    const int64_t up_column = config.moe.gated ? inner : 0, site = moe.site + e - first;
    if (config.moe.gated) sites.add(name(Part::kExpertGate, e), false, {site, 0, inner, {}, inner, hidden});
    sites.add(name(Part::kExpertUp, e), false, {site, up_column, inner, {}, inner, hidden});
    sites.add(name(Part::kExpertDown, e), false, {site + count, 0, hidden, {}, hidden, inner});
    // An adapter in GGUF's names has a stack of matrices, of which weights/adapter.cc makes such names.
    const auto add_gguf = [&](Part part, int64_t first_column, int64_t rows, int64_t k) {
      if (!loader.gguf()) return;
      const std::string stack = loader.name(part, layer);
      const size_t dot = stack.rfind('.');
      const int64_t own = part == Part::kExpertsDown ? site + count : site;
      sites.add(stack.substr(0, dot) + ".experts." + std::to_string(e) + stack.substr(dot), true,
                {own, first_column, rows, {}, rows, k});
    };
    if (config.moe.gated) add_gguf(Part::kExpertsGate, 0, inner, hidden);
    add_gguf(Part::kExpertsUp, up_column, inner, hidden);
    add_gguf(Part::kExpertsDown, 0, hidden, inner);
  }
}

// The rows in the order of Hugging Face's files: those of a rank are consecutive there.
void restore_order(LoraSites::Target& target) {
  if (target.rows == target.module_rows) return target.map.clear();
  const int32_t first = *std::ranges::min_element(target.map);
  for (int64_t i = 0; i < target.rows; ++i) {
    target.map[static_cast<size_t>(i)] = static_cast<int32_t>(std::min(first + i, target.module_rows - 1));
  }
}

std::unique_ptr<LoraSites> find_sites(const Loader& loader, const AdapterLimits& limits, DecoderWeights& weights,
                                      int64_t& embedding_site) {
  const DecoderConfig& config = loader.config();
  DType dtype = loader.dtype().value_or(loader.files().quantised ? DType::kBF16 : config.dtype);
  if (is_quantised(dtype)) dtype = DType::kBF16;
  dtype = limits.dtype.value_or(dtype);
  if (loader.activation() != DType::kF32) dtype = loader.activation();
  auto sites = std::make_unique<LoraSites>(limits, dtype);
  const auto names = loader.gguf() ? hf_names(loader) : std::multimap<std::string, std::string>();
  const auto add_names = [&](const std::string& name, LoraSites::Target target) {
    constexpr std::string_view kFused = ".attn.Wqkv";
    const std::string later = later_name(name, *loader.files().family);
    const bool whole = target.map.empty() && target.rows == target.module_rows;
    if (later.ends_with(kFused) && whole) {  // three modules since transformers 5
      LoraSites::Target part = target;
      part.rows = part.module_rows = target.rows / 3;
      for (const char* own : {".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj"}) {
        sites->add(later.substr(0, later.size() - kFused.size()) + own, false, part);
        part.column += part.rows;
      }
    } else if (!later.empty()) {
      sites->add(later, false, target);
    }
    sites->add(name, false, std::move(target));
  };
  const auto add = [&](const std::string& name, LoraSites::Target target) {
    if (!loader.gguf()) return add_names(plain_name(name, config), std::move(target));
    const auto [begin, end] = names.equal_range(name);
    for (auto it = begin; it != end; ++it) {
      LoraSites::Target own = target;
      if (config.gguf_permuted) restore_order(own);
      add_names(it->second, std::move(own));
    }
    sites->add(name, true, std::move(target));
  };
  // A layer of BERT that only classes use, although "all-linear" adapts it in each BertModel.
  const bool pools = config.family == "bert" && loader.files().pooler.classifies;
  if (config.encoder.on && !pools) sites->leave("model.pooler.dense");
  embedding_site = sites->add_sites(1);
  add(loader.name(Part::kEmbedding, 0),
      {embedding_site, 0, config.hidden, {}, config.hidden, config.vocab_size, true, config.embedding_scale});
  for_each_weight(weights, [&]<typename W>(W& weight) {
    if constexpr (std::is_same_v<W, Linear>) {
      if (weight.sources().empty()) return;
      const int64_t site = sites->add_sites(1);
      weight.set_site(site);
      for (const Linear::Source& source : weight.sources()) {
        add(source.name, {site, source.column, source.rows, source.map, source.file_rows, weight.in_dim(), false});
      }
    }
  });
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    MoeWeights& moe = weights.layers[i].moe;
    const int64_t layer = loader.share().first_layer + static_cast<int64_t>(i);
    if (!moe.gate_up.matrices.empty()) add_expert_sites(loader, layer, *sites, moe);
  }
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    MlaWeights& mla = weights.layers[i].mla;
    if (mla.k_up == nullptr) continue;
    const MlaConfig& c = config.mla;
    const int64_t heads = loader.own().heads;
    mla.site = sites->add_sites(2 * heads);
    LoraSites::Target target{mla.site, 0, 0, {}, config.heads * (c.nope_dim + c.v_dim), c.kv_rank, false};
    target.heads = heads;
    target.first_head = loader.share().rank * heads;
    target.nope = c.nope_dim;
    target.v = c.v_dim;
    add(loader.name(Part::kKvB, loader.share().first_layer + static_cast<int64_t>(i)), std::move(target));
  }
  sites->keep_targets();
  return sites;
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(const ModelFiles& files, const LoadOptions& options, Backend& backend) {
  if (files.config.ahead.is_layer) {
    return invalid_argument({"'", files.files.file.string(),
                             "' is an EAGLE-3 layer, which drafts for another model: name it in --speculative-config"});
  }
  QUIRE_ASSIGN(const std::optional<DType> dtype, parse_dtype(options.dtype));
  QUIRE_ASSIGN(const DecoderConfig own, share_of(files.config, options.share));
  Loader loader(files, options, dtype, backend, own);
  Pooler pooler;
  QUIRE_ASSIGN(DecoderWeights loaded, load_decoder(loader, backend, pooler));
  const int64_t max_len = options.max_model_len > 0 ? options.max_model_len : files.config.max_position;
  DecoderAdapters adapters;
  if (options.adapters.on()) {
    auto sites = find_sites(loader, options.adapters, loaded, adapters.embedding_site);
    if (options.share.ranks * options.share.stages == 1) QUIRE_TRY(sites->check_targets());  // else meet_adapters()
    adapters.sites = std::move(sites);
    if (files.gguf != nullptr) {
      adapters.architecture = files.gguf->metadata().get_string_or("general.architecture", "").value();
    }
  }
  return std::unique_ptr<Model>(std::make_unique<DecoderModel>(own, std::move(loaded), std::move(adapters),
                                                               std::move(pooler), max_len, backend, options.ranks));
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
    return unsupported(
        {"'", target.files.file.string(), "' has no layer for multi-token prediction (MTP) that quire runs"});
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
    return unsupported({"'", target.files.file.string(), "' has no tensor '", projection,
                        ".weight': its layer for multi-token prediction (MTP) was left out"});
  }
  config.layers = 1;
  config.per_layer = {LayerConfig(*last)};
  config.ahead.is_layer = true;
  return out;
}

Result<std::unique_ptr<Model>> load_layer_ahead(const ModelFiles& files, const LoadOptions& options, Backend& backend,
                                                const Model& target, const ModelFiles& target_files) {
  const auto* trunk = dynamic_cast<const DecoderModel*>(&target);
  QUIRE_CHECK(trunk != nullptr && files.config.ahead.is_layer);
  QUIRE_ASSIGN(const std::optional<DType> dtype, parse_dtype(options.dtype));
  QUIRE_ASSIGN(const DecoderConfig own, share_of(files.config, options.share));
  Loader loader(files, options, dtype, backend, own);
  const bool eagle = files.config.ahead.eagle;
  std::optional<Loader> whole;
  if (trunk->config().share.split() || trunk->config().share.stages > 1)
    whole.emplace(target_files, options, dtype, backend, target_files.config);
  auto loaded = (eagle ? load_eagle : load_ahead)(loader, whole ? &*whole : nullptr, *trunk, backend);
  if (!loaded.ok() && eagle) return in_file(files.files.file, loaded.error());
  if (!loaded.ok()) {
    return Error{loaded.error().code, "the layer for multi-token prediction (MTP): " + loaded.error().message};
  }
  const int64_t max_len = options.max_model_len > 0 ? options.max_model_len : files.config.max_position;
  return std::unique_ptr<Model>(std::make_unique<DecoderModel>(own, std::move(*loaded), DecoderAdapters(), Pooler(),
                                                               max_len, backend, options.ranks, trunk));
}

}  // namespace quire::model
