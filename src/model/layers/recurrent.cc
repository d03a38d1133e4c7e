// SPDX-License-Identifier: Apache-2.0
// Layers with a state instead of keys and values: gated delta net, Mamba-2, short convolution.
#include "model/layers/decoder.h"

namespace quire::model {
namespace {

// Columns of a layer's input projection, in order.
struct GdnColumns {
  explicit GdnColumns(const GatedDeltaNetConfig& c)
      : qkv(2 * c.key_heads * c.dk + c.value_heads * c.dv), z(c.value_heads * c.dv), heads(c.value_heads) {}
  int64_t qkv, z, heads;
  int64_t all() const { return qkv + z + 2 * heads; }
};

struct Mamba2Columns {
  explicit Mamba2Columns(const Mamba2Config& c)
      : z(c.heads * c.head_dim), xbc(z + 2 * c.groups * c.state_size), heads(c.heads) {}
  int64_t z, xbc, heads;
  int64_t all() const { return z + xbc + heads; }
};

CausalConv conv_of(const RecurrentWeights& weights, int64_t channels, int64_t kernel) {
  return {channels, kernel, weights.conv.data(), weights.conv_bias.data()};
}

}  // namespace

DecoderModel::RecurrentScratch DecoderModel::recurrent_scratch(Carver& carver, const LayerConfig& layer,
                                                               int64_t tokens) const {
  switch (layer.mixer) {
    case Mixer::kGatedDeltaNet: {
      const GdnColumns columns(config_.gdn);
      return {carver.take(tokens, columns.all(), activation_), carver.take(tokens, columns.z, activation_)};
    }
    case Mixer::kMamba2: {
      const Mamba2Columns columns(config_.mamba2);
      return {carver.take(tokens, columns.all(), activation_), carver.take(tokens, columns.z, activation_)};
    }
    default:
      return {carver.take(tokens, 3 * config_.hidden, activation_), carver.take(tokens, config_.hidden, activation_)};
  }
}

StateSequences DecoderModel::state_sequences(const LayerContext& layer) const {
  const StagedGroup& pages = group(layer);
  return {step_.cu_seqlens_q, pages.state_source, pages.state_destination};
}

void DecoderModel::run_gated_delta_net(const LayerContext& layer, const Source& source, const Sink& sink) {
  const GatedDeltaNetConfig& c = config_.gdn;
  const RecurrentWeights& weights = layer.weights.recurrent;
  const GdnColumns columns(c);
  Carver carver(scratch_.shared);
  const RecurrentScratch s = recurrent_scratch(carver, layer.config, source.x.rows);
  begin(weights.in, source, s.in);
  GatedDeltaNetArgs args;
  args.qkv = s.in.columns(0, columns.qkv);
  const Tensor z = s.in.columns(columns.qkv, columns.z);
  args.b = s.in.columns(columns.qkv + columns.z, columns.heads);
  args.a = s.in.columns(columns.qkv + columns.z + columns.heads, columns.heads);
  args.key_heads = c.key_heads;
  args.value_heads = c.value_heads;
  args.dk = c.dk;
  args.dv = c.dv;
  args.conv = conv_of(weights, columns.qkv, c.kernel);
  args.decay = weights.decay.data();
  args.dt_bias = weights.dt_bias.data();
  args.state = layer.kv.state(layer.index);
  args.sequences = state_sequences(layer);
  args.out = s.out;
  args.tiled = c.tiled_value_heads;
  backend_.gated_delta_net(args);
  backend_.gated_rms_norm({s.out, z, weights.norm.data(), c.dv, c.dv, config_.norm_eps, false, s.out});
  finish(weights.out, s.out, sink);
}

void DecoderModel::run_mamba2(const LayerContext& layer, const Source& source, const Sink& sink) {
  const Mamba2Config& c = config_.mamba2;
  const RecurrentWeights& weights = layer.weights.recurrent;
  const Mamba2Columns columns(c);
  Carver carver(scratch_.shared);
  const RecurrentScratch s = recurrent_scratch(carver, layer.config, source.x.rows);
  begin(weights.in, source, s.in);
  const Tensor z = s.in.columns(0, columns.z);
  Mamba2Args args;
  args.xbc = s.in.columns(columns.z, columns.xbc);
  args.dt = s.in.columns(columns.z + columns.xbc, columns.heads);
  args.heads = c.heads;
  args.head_dim = c.head_dim;
  args.groups = c.groups;
  args.state_size = c.state_size;
  args.conv = conv_of(weights, columns.xbc, c.kernel);
  args.decay = weights.decay.data();
  args.skip = weights.skip.data();
  args.dt_bias = weights.dt_bias.data();
  args.dt_min = c.dt_min;
  args.dt_max = c.dt_max;
  args.state = layer.kv.state(layer.index);
  args.sequences = state_sequences(layer);
  args.out = s.out;
  backend_.mamba2(args);
  const int64_t group = c.norm_group > 0 ? c.norm_group : columns.z;
  backend_.gated_rms_norm({s.out, z, weights.norm.data(), columns.z, group, config_.norm_eps, true, s.out});
  finish(weights.out, s.out, sink);
}

void DecoderModel::run_short_conv(const LayerContext& layer, const Source& source, const Sink& sink) {
  const RecurrentWeights& weights = layer.weights.recurrent;
  Carver carver(scratch_.shared);
  const RecurrentScratch s = recurrent_scratch(carver, layer.config, source.x.rows);
  begin(weights.in, source, s.in);
  backend_.short_conv({s.in, conv_of(weights, config_.hidden, config_.short_conv.kernel), layer.kv.state(layer.index),
                       state_sequences(layer), s.out});
  finish(weights.out, s.out, sink);
}

int64_t DecoderModel::recurrent_columns(const LayerConfig& layer) const {
  const GatedDeltaNetConfig& gdn = config_.gdn;
  const Mamba2Config& mamba = config_.mamba2;
  if (layer.mixer == Mixer::kGatedDeltaNet) return GdnColumns(gdn).qkv + gdn.key_heads + 2 * gdn.value_heads;
  if (layer.mixer == Mixer::kMamba2) return Mamba2Columns(mamba).xbc + 2 * mamba.heads;
  return 0;
}

std::vector<kv::LayerCache> cache_layers(const DecoderConfig& config) {
  std::vector<kv::LayerCache> out;
  const auto floats = [](int64_t count) { return count * static_cast<int64_t>(sizeof(float)); };
  for (const LayerConfig& layer : config.per_layer) {
    kv::LayerCache cache;
    switch (layer.mixer) {
      case Mixer::kAttention:
        cache.kind = layer.window > 0 ? kv::CacheKind::kWindow : kv::CacheKind::kFull;
        cache.window = layer.window;
        cache.kv_heads = config.kv_heads_of(layer);
        cache.head_dim = cache.v_head_dim = config.head_dim_of(layer);
        cache.shared_with = layer.shared_with;
        break;
      case Mixer::kMla:
        cache.kv_heads = 1;
        cache.head_dim = config.mla.kv_rank + config.mla.rope_dim;
        cache.v_head_dim = config.mla.kv_rank;
        cache.v_in_k = true;
        break;
      case Mixer::kGatedDeltaNet: {
        const GatedDeltaNetConfig& c = config.gdn;
        cache.kind = kv::CacheKind::kState;
        cache.state_bytes = floats(GdnColumns(c).qkv * (c.kernel - 1) + c.value_heads * c.dk * c.dv);
        break;
      }
      case Mixer::kMamba2: {
        const Mamba2Config& c = config.mamba2;
        cache.kind = kv::CacheKind::kState;
        cache.state_bytes = floats(Mamba2Columns(c).xbc * (c.kernel - 1) + c.heads * c.head_dim * c.state_size);
        break;
      }
      case Mixer::kShortConv:
        cache.kind = kv::CacheKind::kState;
        cache.state_bytes = floats(config.hidden * (config.short_conv.kernel - 1));
        break;
      case Mixer::kNone:
        cache.kind = kv::CacheKind::kNone;
        break;
    }
    out.push_back(cache);
  }
  return out;
}

}  // namespace quire::model
