// SPDX-License-Identifier: Apache-2.0
// Softmax attention over the keys and values of pages, with everything a family may add to it.
#include "model/layers/decoder.h"

namespace quire::model {

DecoderModel::AttentionScratch DecoderModel::attention_scratch(Carver& carver, const LayerConfig& layer,
                                                               int64_t tokens) const {
  const int64_t d = config_.head_dim_of(layer);
  const int64_t q = config_.heads * d;
  const int64_t kv = config_.kv_heads_of(layer) * d;
  const int64_t own = layer.shared_with >= 0 ? 0 : layer.v_is_k ? kv : 2 * kv;
  AttentionScratch out;
  out.qkv = carver.take(tokens, q + own + (config_.output_gate ? q : 0), activation_);
  if (layer.v_is_k) out.v = carver.take(tokens, kv, activation_);
  out.out = carver.take(tokens, q, activation_);
  return out;
}

void DecoderModel::run_mixer(const LayerContext& layer, const Source& source, const Sink& sink) {
  switch (layer.config.mixer) {
    case Mixer::kAttention:
      return run_attention(layer, source, sink);
    case Mixer::kMla:
      return run_mla(layer, normed(source), sink);
    case Mixer::kGatedDeltaNet:
      return run_gated_delta_net(layer, source, sink);
    case Mixer::kMamba2:
      return run_mamba2(layer, source, sink);
    case Mixer::kShortConv:
      return run_short_conv(layer, source, sink);
    case Mixer::kNone:
      return;
  }
}

void DecoderModel::normalise_heads(const Tensor& x, const Norm& weights, int64_t head_dim) {
  switch (config_.qk_norm) {
    case QkNorm::kNone:
      return;
    case QkNorm::kPerHead:
      return backend_.rms_norm({x, weights.weight.data(), head_dim, config_.norm_eps, x});
    case QkNorm::kWhole:
      return backend_.rms_norm({x, weights.weight.data(), x.cols, config_.norm_eps, x});
    case QkNorm::kPerHeadWeights:
      for (int64_t h = 0; h < x.cols / head_dim; ++h) {
        const Tensor head = x.columns(h * head_dim, head_dim);
        backend_.layer_norm({head, weights.weight.data() + h * head_dim, nullptr, head_dim, config_.norm_eps, head});
      }
  }
}

void DecoderModel::rotate(const Tensor& x, int64_t head_dim, int64_t offset, RopeUse use) {
  if (use == RopeUse::kNone) return;
  const bool main = use == RopeUse::kMain;
  const RopeConfig& config = main ? config_.rope : config_.local_rope;
  const RopeTable& table = main ? rope_ : local_rope_;
  backend_.rope(
      {x, head_dim, config.rot_dim, config.interleaved, table.cosines(), table.sines(), step_.positions, offset});
}

void DecoderModel::grow_queries(const Tensor& q) {
  if (config_.query_growth != 0) backend_.scale({q, 1.0f, step_.query_growth, q});
}

AttentionArgs DecoderModel::attention_args(const LayerContext& layer, const Tensor& q, const Tensor& out) const {
  const StagedGroup& pages = group(layer);
  AttentionArgs args;
  args.q = q;
  args.kv = layer.kv.layer(layer.index);
  args.num_heads = config_.heads;
  args.scale = attention_scale_;
  args.window = layer.config.window;
  args.soft_cap = config_.attention_soft_cap;
  args.cu_seqlens_q = step_.cu_seqlens_q;
  args.context_lens = step_.context_lens;
  args.block_tables = pages.block_tables;
  args.max_blocks = pages.max_blocks;
  args.out = out;
  return args;
}

// Norm, rotation and the write to pages in one op, where there is nothing else between them and the backend has it.
bool DecoderModel::joined_qkv(const LayerContext& layer, const AttentionScratch& scratch) {
  const bool plain_norm = config_.qk_norm == QkNorm::kNone || config_.qk_norm == QkNorm::kPerHead;
  if (!plain_norm || config_.v_norm || layer.config.v_is_k || layer.config.shared_with >= 0 ||
      config_.query_growth != 0 || layer.config.rope == RopeUse::kNone) {
    return false;
  }
  const AttentionWeights& weights = layer.weights.attention;
  const int64_t d = config_.head_dim_of(layer.config);
  const int64_t q_cols = config_.heads * d;
  const int64_t kv_cols = config_.kv_heads_of(layer.config) * d;
  const bool main = layer.config.rope == RopeUse::kMain;
  const RopeConfig& rope = main ? config_.rope : config_.local_rope;
  const RopeTable& table = main ? rope_ : local_rope_;
  QkvToCacheArgs args;
  args.q = scratch.qkv.columns(0, q_cols);
  args.k = scratch.qkv.columns(q_cols, kv_cols);
  args.v = scratch.qkv.columns(q_cols + kv_cols, kv_cols);
  args.num_heads = config_.heads;
  args.q_norm = weights.q_norm.weight.data();
  args.k_norm = weights.k_norm.weight.data();
  args.eps = config_.norm_eps;
  args.rot_dim = rope.rot_dim;
  args.interleaved = rope.interleaved;
  args.cos_table = table.cosines();
  args.sin_table = table.sines();
  args.positions = step_.positions;
  args.slot_mapping = group(layer).slot_mapping;
  args.kv = layer.kv.layer(layer.index);
  if (!backend_.joins_qkv(args)) return false;
  backend_.qkv_to_cache(args);
  return true;
}

void DecoderModel::write_keys(const LayerContext& layer, const AttentionScratch& scratch) {
  const AttentionWeights& weights = layer.weights.attention;
  const int64_t d = config_.head_dim_of(layer.config);
  const int64_t q_cols = config_.heads * d;
  const int64_t kv_cols = config_.kv_heads_of(layer.config) * d;
  const Tensor k = scratch.qkv.columns(q_cols, kv_cols);
  const Tensor v = layer.config.v_is_k ? scratch.v : scratch.qkv.columns(q_cols + kv_cols, kv_cols);
  if (config_.v_norm) {  // also where v is k: it takes k as it was before norm and rotation
    backend_.rms_norm({layer.config.v_is_k ? k : v, ones_.data(), d, config_.norm_eps, v});
  } else if (layer.config.v_is_k) {
    backend_.scale({k, 1.0f, {}, v});
  }
  normalise_heads(k, weights.k_norm, d);
  rotate(k, d, 0, layer.config.rope);
  backend_.reshape_and_cache({k, v, group(layer).slot_mapping, layer.kv.layer(layer.index)});
}

void DecoderModel::run_attention(const LayerContext& layer, const Source& source, const Sink& sink) {
  const AttentionWeights& weights = layer.weights.attention;
  const int64_t d = config_.head_dim_of(layer.config);
  const int64_t q_cols = config_.heads * d;
  Carver carver(scratch_.shared);
  const AttentionScratch scratch = attention_scratch(carver, layer.config, source.x.rows);
  begin(weights.qkv, source, scratch.qkv);

  const Tensor q = scratch.qkv.columns(0, q_cols);
  if (!joined_qkv(layer, scratch)) {
    normalise_heads(q, weights.q_norm, d);
    rotate(q, d, 0, layer.config.rope);
    grow_queries(q);
    if (layer.config.shared_with < 0) write_keys(layer, scratch);
  }
  AttentionArgs args = attention_args(layer, q, scratch.out);
  if (config_.sinks) args.sinks = weights.sinks.data();
  backend_.attention(args);
  if (config_.output_gate) {
    const Tensor gate = scratch.qkv.columns(scratch.qkv.cols - q_cols, q_cols);
    backend_.glu({gate, scratch.out, Activation::kSigmoid, scratch.out});
  }
  finish(weights.o, scratch.out, sink);
}

}  // namespace quire::model
