// SPDX-License-Identifier: Apache-2.0
// The mixer kAttention: softmax attention over K and V in pages, with everything that a family may add to it.
#include "model/layers/mixer.h"
#include "model/load/loader.h"

namespace quire::model {
namespace {

kv::LayerCache attention_cache(const DecoderConfig& config, const LayerConfig& layer) {
  kv::LayerCache out;
  out.kind = layer.window > 0 ? kv::CacheKind::kWindow : kv::CacheKind::kFull;
  out.window = layer.window;
  out.kv_heads = config.kv_heads_of(layer);
  out.head_dim = out.v_head_dim = config.head_dim_of(layer);
  out.shared_with = layer.shared_with;
  if (config.encoder.on) out.kind = kv::CacheKind::kNone;
  return out;
}

// Row j * d/2 + i of a head in the model is row 2i + j in the file: GGUF's order for interleaved rotation.
std::vector<int32_t> unpermuted(const Loader& loader, int64_t rows, int64_t head_dim) {
  std::vector<int32_t> map;
  if (!loader.gguf() || !loader.config().gguf_permuted) return map;
  map.resize(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t in_head = r % head_dim;
    const int64_t j = in_head / (head_dim / 2);
    const int64_t i = in_head % (head_dim / 2);
    map[static_cast<size_t>(r)] = static_cast<int32_t>(r - in_head + 2 * i + j);
  }
  return map;
}

Status load_head_norms(Loader& loader, const LayerConfig& layer, int64_t index, AttentionWeights& out) {
  const DecoderConfig& config = loader.config();
  if (config.qk_norm == QkNorm::kNone) return {};
  const int64_t d = config.head_dim_of(layer);
  const int64_t kv_heads = config.kv_heads_of(layer);
  std::vector<int64_t> q_shape = {d}, k_shape = {d};
  if (config.qk_norm == QkNorm::kWhole) q_shape = {config.heads * d}, k_shape = {kv_heads * d};
  if (config.qk_norm == QkNorm::kPerHeadWeights) q_shape = {config.heads, d}, k_shape = {kv_heads, d};
  QUIRE_ASSIGN(out.q_norm, loader.norm(Part::kQNorm, index, q_shape));
  if (layer.shared_with < 0) {
    QUIRE_ASSIGN(out.k_norm, loader.norm(Part::kKNorm, index, k_shape));
  }
  if (config.qk_norm != QkNorm::kPerHeadWeights) return {};
  const Share& share = loader.share();
  const int64_t parts = head_parts(kv_heads, share.ranks);
  const auto cut_norm = [&](Norm& norm, int64_t part, int64_t of) {
    for (Floats* values : {&norm.weight, &norm.bias}) {
      if (!values->empty()) *values = cut(values->host(), d, part, of);
    }
  };
  cut_norm(out.q_norm, share.rank, share.ranks);
  cut_norm(out.k_norm, share.part_of(parts), parts);
  return {};
}

// The columns of K that a rank computes: those of its KV heads, or all if they are normalised together.
int64_t k_columns(const DecoderConfig& own, const LayerConfig& layer) {
  const int64_t columns = own.kv_heads_of(layer) * own.head_dim_of(layer);
  return own.qk_norm == QkNorm::kWhole ? columns * own.share.kv_parts : columns;
}

// The heads of this rank: of q, k and v, and of the gate.
std::vector<Slice> qkv_slices(const Loader& loader, const LayerConfig& layer, int64_t index) {
  const DecoderConfig& config = loader.config();
  const Share& share = loader.share();
  const int64_t d = config.head_dim_of(layer);
  const int64_t q = config.heads * d;
  const int64_t kv = config.kv_heads_of(layer) * d;
  const bool own = layer.shared_with < 0;
  const int64_t parts = head_parts(config.kv_heads_of(layer), share.ranks);
  const auto of_queries = [&](Slice slice) { return cut(std::move(slice), share.rank, share.ranks); };
  const auto of_values = [&](Slice slice) { return cut(std::move(slice), share.part_of(parts), parts); };
  const auto of_keys = [&](Slice slice) {
    return config.qk_norm == QkNorm::kWhole ? slice : of_values(std::move(slice));
  };
  const std::string fused = loader.name(Part::kQkv, index);
  if (config.fused_qkv || (loader.gguf() && loader.has(fused + ".weight"))) {
    const int64_t all = q + 2 * kv;
    if (!share.split()) return {{fused, all}};
    const auto range = [&](int64_t first, int64_t rows) {
      return Slice{fused, rows, strided_rows(first, rows, 0, 1), all};
    };
    return {of_queries(range(0, q)), of_keys(range(q, kv)), of_values(range(q + kv, kv))};
  }
  std::vector<Slice> out;
  const std::string q_name = loader.name(Part::kQ, index);
  if (config.output_gate) {
    out.push_back(of_queries({q_name, q, strided_rows(0, d, 2 * d, config.heads), 2 * q}));
  } else {
    out.push_back(of_queries({q_name, q, unpermuted(loader, q, d)}));
  }
  if (own) out.push_back(of_keys({loader.name(Part::kK, index), kv, unpermuted(loader, kv, d)}));
  if (own && !layer.v_is_k) out.push_back(of_values({loader.name(Part::kV, index), kv}));
  if (config.output_gate) out.push_back(of_queries({q_name, q, strided_rows(d, d, 2 * d, config.heads), 2 * q}));
  return out;
}

Status load_attention(Loader& loader, const LayerConfig& layer, int64_t index, DecoderLayer& weights) {
  AttentionWeights& out = weights.attention;
  const DecoderConfig& config = loader.config();
  const int64_t d = config.head_dim_of(layer);
  QUIRE_TRY(load_head_norms(loader, layer, index, out));
  if (config.sinks) {
    const std::string suffix = loader.gguf() ? ".weight" : "";
    QUIRE_ASSIGN(const std::vector<float> sinks,
                 loader.floats(loader.name(Part::kSinks, index) + suffix, {config.heads}));
    out.sinks = cut(sinks, 1, loader.share().rank, loader.share().ranks);
  }
  QUIRE_ASSIGN(out.qkv, loader.linear(qkv_slices(loader, layer, index), config.mixer_columns(), config.qkv_bias));
  QUIRE_ASSIGN(out.o, loader.cut_linear(Part::kO, index, config.hidden, config.heads * d, config.o_bias));
  return {};
}

struct AttentionScratch {
  Tensor qkv, v, out;
  Tensor all;  // room for the heads of all ranks
};

AttentionScratch take_attention_scratch(const DecoderModel& model, const LayerConfig& layer, int64_t tokens,
                                        ScratchAllocator& scratch) {
  const DecoderConfig& config = model.config();
  const int64_t d = config.head_dim_of(layer);
  const int64_t q = config.heads * d;
  const int64_t kv = config.kv_heads_of(layer) * d;
  const int64_t k = k_columns(config, layer);
  const int64_t own = layer.shared_with >= 0 ? 0 : layer.v_is_k ? k : k + kv;
  AttentionScratch out;
  out.qkv = scratch.take(tokens, q + own + (config.output_gate ? q : 0), model.activation());
  if (layer.v_is_k) out.v = scratch.take(tokens, kv, model.activation());
  out.out = scratch.take(tokens, q, model.activation());
  if (config.share.split()) out.all = scratch.take(tokens, config.share.ranks * q, model.activation());
  return out;
}

void reserve_attention(const DecoderModel& model, const LayerConfig& layer, int64_t tokens, ScratchAllocator& scratch) {
  take_attention_scratch(model, layer, tokens, scratch);
}

void normalise_heads(const DecoderModel& model, const Tensor& x, const Norm& weights, int64_t head_dim) {
  const float eps = model.config().norm_eps;
  switch (model.config().qk_norm) {
    case QkNorm::kNone:
      return;
    case QkNorm::kPerHead:
      return model.backend().rms_norm({x, weights.weight.data(), head_dim, eps, x});
    case QkNorm::kWhole:
      return model.backend().rms_norm({x, weights.weight.data(), x.cols, eps, x});
    case QkNorm::kPerHeadWeights:
      for (int64_t h = 0; h < x.cols / head_dim; ++h) {
        const Tensor head = x.columns(h * head_dim, head_dim);
        model.backend().layer_norm({head, weights.weight.data() + h * head_dim, nullptr, head_dim, eps, head});
      }
  }
}

// A norm of all heads together needs those of all ranks.
void normalise_queries(DecoderModel& model, const Tensor& q, const AttentionScratch& scratch, const Norm& weights,
                       int64_t head_dim) {
  const DecoderConfig& config = model.config();
  if (config.qk_norm != QkNorm::kWhole || !config.share.split()) return normalise_heads(model, q, weights, head_dim);
  const Tensor all = model.gathered(q, scratch.all, config.share.ranks * q.cols);
  normalise_heads(model, all, weights, head_dim);
  model.backend().scale({all.columns(config.share.rank * q.cols, q.cols), 1.0f, {}, q});
}

// Norm, rotation and the write to pages in one op, if nothing else comes between them and the backend has it.
bool joined_qkv(const DecoderModel& model, const LayerContext& layer, const AttentionScratch& scratch) {
  const DecoderConfig& config = model.config();
  const bool plain_norm = config.qk_norm == QkNorm::kNone || config.qk_norm == QkNorm::kPerHead;
  if (!plain_norm || config.v_norm || layer.config.v_is_k || layer.config.shared_with >= 0 ||
      config.attention_temperature != 0 || layer.config.rope == RopeUse::kNone) {
    return false;
  }
  const AttentionWeights& weights = layer.weights.attention;
  const int64_t d = config.head_dim_of(layer.config);
  const int64_t q_cols = config.heads * d;
  const int64_t kv_cols = config.kv_heads_of(layer.config) * d;
  const RopeConfig& rope = model.rope_config(layer.config.rope);
  const RopeTable& table = model.rope_table(layer.config.rope);
  QkvToCacheArgs args;
  args.q = scratch.qkv.columns(0, q_cols);
  args.k = scratch.qkv.columns(q_cols, kv_cols);
  args.v = scratch.qkv.columns(q_cols + kv_cols, kv_cols);
  args.num_heads = config.heads;
  args.q_norm = weights.q_norm.weight.data();
  args.k_norm = weights.k_norm.weight.data();
  args.eps = config.norm_eps;
  args.rot_dim = rope.rot_dim;
  args.interleaved = rope.interleaved;
  args.cos_table = table.cosines();
  args.sin_table = table.sines();
  args.positions = model.step().positions;
  args.slot_mapping = model.group(layer).slot_mapping;
  args.kv = model.pages(layer);
  if (!model.backend().joins_qkv(args)) return false;
  model.backend().qkv_to_cache(args);
  return true;
}

void write_kv(DecoderModel& model, const LayerContext& layer, const AttentionScratch& scratch) {
  const DecoderConfig& config = model.config();
  const int64_t d = config.head_dim_of(layer.config);
  const int64_t q_cols = config.heads * d;
  const int64_t kv_cols = config.kv_heads_of(layer.config) * d;
  const int64_t k_cols = k_columns(config, layer.config);
  Tensor k = scratch.qkv.columns(q_cols, k_cols);
  const Tensor v = layer.config.v_is_k ? scratch.v : scratch.qkv.columns(q_cols + k_cols, kv_cols);
  if (config.v_norm) {  // where V is K, it is K before the norm and the rotation
    model.backend().rms_norm({layer.config.v_is_k ? k : v, model.ones(), d, config.norm_eps, v});
  } else if (layer.config.v_is_k) {
    model.backend().scale({k, 1.0f, {}, v});
  }
  normalise_heads(model, k, layer.weights.attention.k_norm, d);
  if (k_cols > kv_cols) k = k.columns(config.share.part_of(config.share.kv_parts) * kv_cols, kv_cols);
  model.rotate(k, d, 0, layer.config.rope);
  model.backend().reshape_and_cache({k, v, model.group(layer).slot_mapping, model.pages(layer)});
}

bool run_attention(DecoderModel& model, const LayerContext& layer, const LayerInput& input, const LayerOutput& output) {
  const DecoderConfig& config = model.config();
  const AttentionWeights& weights = layer.weights.attention;
  const int64_t d = config.head_dim_of(layer.config);
  const int64_t q_cols = config.heads * d;
  ScratchAllocator allocator = model.scratch();
  const AttentionScratch scratch = take_attention_scratch(model, layer.config, input.x.rows, allocator);
  model.project_in(weights.qkv, input, scratch.qkv);

  const Tensor q = scratch.qkv.columns(0, q_cols);
  if (!joined_qkv(model, layer, scratch)) {
    normalise_queries(model, q, scratch, weights.q_norm, d);
    model.rotate(q, d, 0, layer.config.rope);
    if (config.attention_temperature != 0) model.backend().scale({q, 1.0f, model.step().query_scales, q});
    if (layer.config.shared_with < 0) write_kv(model, layer, scratch);
  }
  AttentionArgs args = model.attention_args(layer, q, scratch.out);
  if (config.sinks) args.sinks = weights.sinks.data();
  model.backend().attention(args);
  if (config.output_gate) {
    const Tensor gate = scratch.qkv.columns(scratch.qkv.cols - q_cols, q_cols);
    model.backend().glu({gate, scratch.out, Activation::kSigmoid, scratch.out});
  }
  return model.project_out(weights.o, model.gathered(scratch.out, scratch.all, weights.o.in_dim()), output);
}

}  // namespace

const MixerKind kAttentionMixer = {attention_cache, load_attention, reserve_attention, run_attention};

}  // namespace quire::model
