// SPDX-License-Identifier: Apache-2.0
// The mixer kMla: multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) in its absorbed form. The cache holds one
// latent vector and one rotated key per token; queries are projected into the latent space and outputs back from it.
#include <algorithm>

#include "base/parallel.h"
#include "model/layers/mixer.h"
#include "model/load/loader.h"
#include "weights/quant.h"

namespace quire::model {
namespace {

kv::LayerCache mla_cache(const DecoderConfig& config, const LayerConfig&) {
  kv::LayerCache out;
  out.kv_heads = 1;
  out.head_dim = config.mla.kv_rank + config.mla.rope_dim;
  out.v_head_dim = config.mla.kv_rank;
  out.v_in_k = true;
  return out;
}

// The tensors that make keys and values of the latent vector.
struct LatentTensors {
  const weights::TensorRef *keys = nullptr, *values = nullptr;
  bool apart = false;  // two tensors, the keys' transposed (GGUF); else one that has both, head by head
  weights::TensorRef plain;
  std::vector<float> dequantised;  // what `plain` refers to

  static std::vector<float> row(const weights::TensorRef& tensor, int64_t row) {
    std::vector<float> floats(static_cast<size_t>(tensor.columns()));
    weights::dequantise_row(tensor.dtype, tensor.data.data() + row * row_bytes(tensor.dtype, tensor.columns()),
                            floats.data(), tensor.columns());
    return floats;
  }
};

Status find_latent_tensors(Loader& loader, int64_t index, LatentTensors& out) {
  const MlaConfig& c = loader.config().mla;
  const int64_t heads = loader.config().heads;
  const int64_t rows = heads * (c.nope_dim + c.v_dim);
  const std::string both = loader.name(Part::kKvB, index);
  const std::string keys = loader.name(Part::kKUp, index) + ".weight";
  out.apart = loader.gguf() && loader.has(keys);
  if (loader.is_quantised_linear(both)) {
    QUIRE_ASSIGN(const auto loaded,
                 loader.quantised({both, rows}, c.kv_rank, {.may_reorder = true, .keep_fp8 = false}));
    out.dequantised = loaded->values();
    out.plain.name = both;
    out.plain.shape = {rows, c.kv_rank};
    out.plain.data = std::as_bytes(std::span(out.dequantised));
    out.keys = out.values = &out.plain;
  } else if (out.apart) {
    QUIRE_ASSIGN(out.keys, loader.require(keys, {heads, c.kv_rank, c.nope_dim}));
    QUIRE_ASSIGN(out.values, loader.require(loader.name(Part::kVUp, index) + ".weight", {heads, c.v_dim, c.kv_rank}));
  } else {
    QUIRE_ASSIGN(out.keys, loader.require(both + ".weight", {rows, c.kv_rank}));
    out.values = out.keys;
  }
  return {};
}

// The same of random weights, which the backend makes: a part for each head.
Status make_latent_heads(Loader& loader, int64_t index, DType type, MlaWeights& out) {
  const MlaConfig& c = loader.config().mla;
  const int64_t heads = loader.own().heads, first = loader.share().rank * heads;
  const int64_t both_rows = c.nope_dim + c.v_dim;
  const std::string tensor = loader.name(Part::kKvB, index) + ".weight";
  const std::vector<int64_t> shape = {loader.config().heads * both_rows, c.kv_rank};
  std::vector<Loader::Rows> up, down;
  for (int64_t h = first; h < first + heads; ++h) {
    const int64_t keys = h * both_rows * c.kv_rank, values = keys + c.nope_dim * c.kv_rank;
    const int64_t k_rows = head_rows(c.kv_rank), v_rows = head_rows(c.v_dim);
    QUIRE_ASSIGN(Loader::Rows k_up,
                 loader.made_rows(tensor, shape, {type, k_rows, c.nope_dim, keys, 1, c.kv_rank, c.kv_rank}));
    QUIRE_ASSIGN(Loader::Rows v_up,
                 loader.made_rows(tensor, shape, {type, v_rows, c.kv_rank, values, c.kv_rank, 1, c.v_dim}));
    up.push_back(std::move(k_up));
    down.push_back(std::move(v_up));
  }
  QUIRE_ASSIGN(out.k_up, loader.pack(std::move(up), {.for_linear = false}));
  QUIRE_ASSIGN(out.v_up, loader.pack(std::move(down), {.for_linear = false}));
  return {};
}

// The weights of all heads one after another, as linear_heads takes them. Keys are absorbed into the query, which needs
// the transpose of the rows that make them.
Status load_latent_heads(Loader& loader, int64_t index, MlaWeights& out) {
  const MlaConfig& c = loader.config().mla;
  const int64_t heads = loader.own().heads;  // of this rank
  const int64_t first = loader.share().rank * heads;
  const int64_t both_rows = c.nope_dim + c.v_dim;
  if (const DType type = loader.narrowed(loader.dummy_dtype()); loader.makes(type)) {
    return make_latent_heads(loader, index, type, out);
  }
  LatentTensors from;
  QUIRE_TRY(find_latent_tensors(loader, index, from));
  const bool rounded = is_quantised(from.keys->dtype) || !from.dequantised.empty();
  const DType type =
      loader.dtype() == DType::kF32 ? DType::kF32 : loader.narrowed(rounded ? DType::kBF16 : from.keys->dtype);
  const int64_t k_rows = head_rows(c.kv_rank), v_rows = head_rows(c.v_dim);
  std::vector<float> up(static_cast<size_t>(heads * k_rows * c.nope_dim));
  std::vector<float> down(static_cast<size_t>(heads * v_rows * c.kv_rank));
  parallel_blocks(heads, 1, [&](int64_t h, int64_t) {
    float* k_up = up.data() + h * k_rows * c.nope_dim;
    for (int64_t i = 0; i < (from.apart ? c.kv_rank : c.nope_dim); ++i) {
      const std::vector<float> row =
          from.row(*from.keys, from.apart ? (first + h) * c.kv_rank + i : (first + h) * both_rows + i);
      for (int64_t j = 0; j < std::ssize(row); ++j) {
        k_up[from.apart ? i * c.nope_dim + j : j * c.nope_dim + i] = row[static_cast<size_t>(j)];
      }
    }
    for (int64_t i = 0; i < c.v_dim; ++i) {
      const std::vector<float> row =
          from.row(*from.values, from.apart ? (first + h) * c.v_dim + i : (first + h) * both_rows + c.nope_dim + i);
      std::copy(row.begin(), row.end(), down.data() + (h * v_rows + i) * c.kv_rank);
    }
  });
  const Loader::PackPlace place{.for_linear = false};
  QUIRE_ASSIGN(out.k_up, loader.from_floats(std::move(up), heads * k_rows, c.nope_dim, type, place));
  QUIRE_ASSIGN(out.v_up, loader.from_floats(std::move(down), heads * v_rows, c.kv_rank, type, place));
  if (from.dequantised.empty()) loader.finished(*from.keys);
  if (from.apart) loader.finished(*from.values);
  return {};
}

Status load_mla(Loader& loader, const LayerConfig&, int64_t index, DecoderLayer& weights) {
  MlaWeights& out = weights.mla;
  const DecoderConfig& config = loader.config();
  const MlaConfig& c = config.mla;
  const int64_t q = config.heads * (c.nope_dim + c.rope_dim);
  if (c.q_rank > 0) {
    QUIRE_ASSIGN(out.q_a, loader.linear(Part::kQA, index, c.q_rank, config.hidden, config.qkv_bias));
    QUIRE_ASSIGN(out.q_a_norm, loader.norm(Part::kQANorm, index, {c.q_rank}));
    QUIRE_ASSIGN(out.q, loader.cut_linear(Part::kQB, index, q, c.q_rank));
  } else {
    QUIRE_ASSIGN(out.q, loader.cut_linear(Part::kQ, index, q, config.hidden));
  }
  QUIRE_ASSIGN(out.kv_a, loader.linear(Part::kKvA, index, c.kv_rank + c.rope_dim, config.hidden, config.qkv_bias));
  QUIRE_ASSIGN(out.kv_norm, loader.norm(Part::kKvANorm, index, {c.kv_rank}));
  QUIRE_TRY(load_latent_heads(loader, index, out));
  QUIRE_ASSIGN(out.o, loader.cut_linear(Part::kO, index, config.hidden, config.heads * c.v_dim, config.o_bias));
  return {};
}

struct MlaScratch {
  Tensor q_a, q, kv, q_latent, out_latent, out;
  Tensor all;  // room for the heads of all ranks
};

MlaScratch take_mla_scratch(const DecoderModel& model, int64_t tokens, ScratchAllocator& scratch) {
  const MlaConfig& c = model.config().mla;
  const int64_t heads = model.config().heads;
  const DType type = model.activation();
  MlaScratch out;
  if (c.q_rank > 0) out.q_a = scratch.take(tokens, c.q_rank, type);
  out.q = scratch.take(tokens, heads * (c.nope_dim + c.rope_dim), type);
  out.kv = scratch.take(tokens, c.kv_rank + c.rope_dim, type);
  out.q_latent = scratch.take(tokens, heads * (c.kv_rank + c.rope_dim), type);
  out.out_latent = scratch.take(tokens, heads * c.kv_rank, type);
  out.out = scratch.take(tokens, heads * c.v_dim, type);
  const Share& share = model.config().share;
  if (share.split()) out.all = scratch.take(tokens, share.ranks * heads * c.v_dim, type);
  return out;
}

void reserve_mla(const DecoderModel& model, const LayerConfig&, int64_t tokens, ScratchAllocator& scratch) {
  take_mla_scratch(model, tokens, scratch);
}

// Norm, rotation and the write to pages in one op, if the backend has it.
bool joined_cache(const DecoderModel& model, const LayerContext& layer, const MlaScratch& s) {
  const DecoderConfig& config = model.config();
  if (config.norm_kind != NormKind::kRms) return false;
  const RopeConfig& rope = model.rope_config(layer.config.rope);
  const RopeTable& table = model.rope_table(layer.config.rope);
  MlaToCacheArgs args;
  args.q = s.q;
  args.latent = s.kv;
  args.q_latent = s.q_latent;
  args.num_heads = config.heads;
  args.norm = layer.weights.mla.kv_norm.weight.data();
  args.eps = config.norm_eps;
  args.rot_dim = rope.rot_dim;
  args.interleaved = rope.interleaved;
  args.cos_table = table.cosines();
  args.sin_table = table.sines();
  args.positions = model.step().positions;
  args.slot_mapping = model.group(layer).slot_mapping;
  args.kv = layer.kv.layer(layer.index);
  if (!model.backend().joins_mla(args)) return false;
  model.backend().mla_to_cache(args);
  return true;
}

// Writes the latent vectors and their keys to pages, and the rotated ends of queries to q_latent.
void write_cache(DecoderModel& model, const LayerContext& layer, const MlaScratch& s) {
  const MlaConfig& c = model.config().mla;
  const int64_t latent = c.kv_rank + c.rope_dim;
  const Tensor kv_latent = s.kv.columns(0, c.kv_rank);
  model.norm(kv_latent, layer.weights.mla.kv_norm, c.kv_rank, kv_latent);
  model.rotate_into(s.q, c.nope_dim + c.rope_dim, c.nope_dim, layer.config.rope, s.q_latent, latent);
  model.rotate(s.kv, latent, c.kv_rank, layer.config.rope);
  model.backend().reshape_and_cache({s.kv, {}, model.group(layer).slot_mapping, layer.kv.layer(layer.index)});
}

bool run_mla(DecoderModel& model, const LayerContext& layer, const LayerInput& input, const LayerOutput& output) {
  const MlaConfig& c = model.config().mla;
  const MlaWeights& weights = layer.weights.mla;
  Backend& backend = model.backend();
  const Tensor x = model.normed(input);
  ScratchAllocator allocator = model.scratch();
  const MlaScratch s = take_mla_scratch(model, x.rows, allocator);
  const int64_t heads = model.config().heads;

  if (c.q_rank > 0) {
    weights.q_a.run(backend, x, s.q_a);
    model.norm(s.q_a, weights.q_a_norm, c.q_rank, s.q_a);
  }
  weights.q.run(backend, c.q_rank > 0 ? s.q_a : x, s.q);
  weights.kv_a.run(backend, x, s.kv);
  if (!joined_cache(model, layer, s)) write_cache(model, layer, s);
  backend.linear_heads({s.q, weights.k_up.get(), heads, c.kv_rank, s.q_latent});
  model.add_adapters_by_head(weights.site, heads, s.q, c.nope_dim, s.q_latent, c.kv_rank);
  backend.attention(model.attention_args(layer, s.q_latent, s.out_latent));
  backend.linear_heads({s.out_latent, weights.v_up.get(), heads, c.v_dim, s.out});
  model.add_adapters_by_head(weights.site + heads, heads, s.out_latent, c.kv_rank, s.out, c.v_dim);
  return model.project_out(weights.o, model.gathered(s.out, s.all, weights.o.in_dim()), output);
}

}  // namespace

const MixerKind kMlaMixer = {mla_cache, load_mla, reserve_mla, run_mla};

}  // namespace quire::model
