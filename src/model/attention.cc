// SPDX-License-Identifier: Apache-2.0
// Softmax attention over the keys and values of pages, with everything a family may add to it.
#include <cmath>

#include "model/decoder.h"

namespace quire::model {

DecoderModel::AttentionScratch DecoderModel::attention_scratch(Carver& carver, const LayerConfig& layer,
                                                               int64_t tokens) const {
  const int64_t d = config_.head_dim_of(layer);
  const int64_t q = config_.heads * d;
  const int64_t kv = config_.kv_heads_of(layer) * d;
  const int64_t own = layer.shared_with >= 0 ? 0 : layer.v_is_k ? kv : 2 * kv;
  AttentionScratch out;
  out.qkv = carver.take(tokens, q + own + (config_.output_gate ? q : 0));
  if (layer.v_is_k) out.v = carver.take(tokens, kv);
  out.out = carver.take(tokens, q);
  return out;
}

void DecoderModel::run_mixer(const LayerContext& layer, const Tensor& x, const Tensor& out) {
  switch (layer.config.mixer) {
    case Mixer::kAttention:
      return run_attention(layer, x, out);
    case Mixer::kMla:
      return run_mla(layer, x, out);
    case Mixer::kGatedDeltaNet:
      return run_gated_delta_net(layer, x, out);
    case Mixer::kMamba2:
      return run_mamba2(layer, x, out);
    case Mixer::kShortConv:
      return run_short_conv(layer, x, out);
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

void DecoderModel::rotate(const Tensor& x, int64_t head_dim, int64_t offset, RopeUse use, const StepBatch& batch) {
  if (use == RopeUse::kNone) return;
  const bool main = use == RopeUse::kMain;
  const RopeConfig& config = main ? config_.rope : config_.local_rope;
  const RopeTable& table = main ? rope_ : local_rope_;
  backend_.rope(
      {x, head_dim, config.rot_dim, config.interleaved, table.cosines(), table.sines(), batch.positions, offset});
}

void DecoderModel::grow_queries(const Tensor& q, const StepBatch& batch) {
  if (config_.query_growth == 0) return;
  query_growth_.clear();
  for (int64_t t = 0; t < q.rows; ++t) {
    const double steps = std::floor(static_cast<double>(batch.positions[static_cast<size_t>(t)]) /
                                    static_cast<double>(config_.query_growth_base));
    query_growth_.push_back(static_cast<float>(1.0 + static_cast<double>(config_.query_growth) * std::log1p(steps)));
  }
  backend_.scale({q, 1.0f, query_growth_, q});
}

AttentionArgs DecoderModel::attention_args(const LayerContext& layer, const Tensor& q, const Tensor& out) const {
  const GroupBatch& group = layer.batch.groups[static_cast<size_t>(layer.kv.group(layer.index))];
  AttentionArgs args;
  args.q = q;
  args.kv = layer.kv.layer(layer.index);
  args.num_heads = config_.heads;
  args.scale = attention_scale_;
  args.window = layer.config.window;
  args.soft_cap = config_.attention_soft_cap;
  args.cu_seqlens_q = layer.batch.cu_seqlens_q;
  args.context_lens = layer.batch.context_lens;
  args.block_tables = group.block_tables;
  args.max_blocks = group.max_blocks;
  args.out = out;
  return args;
}

void DecoderModel::run_attention(const LayerContext& layer, const Tensor& x, const Tensor& out) {
  const AttentionWeights& weights = layer.weights.attention;
  const int64_t d = config_.head_dim_of(layer.config);
  const int64_t q_cols = config_.heads * d;
  const int64_t kv_cols = config_.kv_heads_of(layer.config) * d;
  Carver carver(scratch_.shared);
  const AttentionScratch scratch = attention_scratch(carver, layer.config, x.rows);
  weights.qkv.run(backend_, x, scratch.qkv);

  const Tensor q = scratch.qkv.columns(0, q_cols);
  normalise_heads(q, weights.q_norm, d);
  rotate(q, d, 0, layer.config.rope, layer.batch);
  grow_queries(q, layer.batch);
  if (layer.config.shared_with < 0) {
    const Tensor k = scratch.qkv.columns(q_cols, kv_cols);
    const Tensor v = layer.config.v_is_k ? scratch.v : scratch.qkv.columns(q_cols + kv_cols, kv_cols);
    if (config_.v_norm) {  // also where v is k: it takes k as it was before norm and rotation
      backend_.rms_norm({layer.config.v_is_k ? k : v, ones_.data(), d, config_.norm_eps, v});
    } else if (layer.config.v_is_k) {
      backend_.scale({k, 1.0f, {}, v});
    }
    normalise_heads(k, weights.k_norm, d);
    rotate(k, d, 0, layer.config.rope, layer.batch);
    const GroupBatch& group = layer.batch.groups[static_cast<size_t>(layer.kv.group(layer.index))];
    backend_.reshape_and_cache({k, v, group.slot_mapping, layer.kv.layer(layer.index)});
  }
  AttentionArgs args = attention_args(layer, q, scratch.out);
  if (config_.sinks) args.sinks = weights.sinks.data();
  backend_.attention(args);
  if (config_.output_gate) {
    const Tensor gate = scratch.qkv.columns(scratch.qkv.cols - q_cols, q_cols);
    backend_.glu({gate, scratch.out, Activation::kSigmoid, scratch.out});
  }
  weights.o.run(backend_, scratch.out, out);
}

}  // namespace quire::model
