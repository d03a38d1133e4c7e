// SPDX-License-Identifier: Apache-2.0
// The mixers with a recurrent state instead of K and V: gated delta net (arXiv:2412.06464), Mamba-2 (arXiv:2405.21060)
// and short convolution (LFM2).
#include <cmath>

#include "model/layers/mixer.h"
#include "model/load/loader.h"

namespace quire::model {
namespace {

// The columns of a layer's input projection, in order.
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

kv::LayerCache state_of(int64_t floats) {
  kv::LayerCache out;
  out.kind = kv::CacheKind::kState;
  out.state_bytes = floats * static_cast<int64_t>(sizeof(float));
  return out;
}

Status load_conv(Loader& loader, int64_t index, int64_t channels, int64_t kernel, bool bias, RecurrentWeights& out) {
  const std::string conv = loader.name(Part::kConv, index);
  std::vector<int64_t> shape = {channels, kernel};
  if (!loader.gguf()) shape = {channels, 1, kernel};
  if (loader.files().scheme.method == weights::QuantMethod::kMlx) shape = {channels, kernel, 1};
  QUIRE_ASSIGN(out.conv, loader.floats(conv + ".weight", shape));
  if (loader.gguf() ? loader.has(conv + ".bias") : bias) {
    QUIRE_ASSIGN(out.conv_bias, loader.floats(conv + ".bias", {channels}));
  }
  return {};
}

// Hugging Face files hold A_log, GGUF files -exp(A_log).
Status load_decay(Loader& loader, int64_t index, int64_t heads, RecurrentWeights& out) {
  const std::string tensor = loader.name(Part::kDecay, index);
  const std::string dt_bias = loader.name(Part::kDtBias, index);
  if (loader.gguf()) {
    QUIRE_ASSIGN(const weights::TensorRef* found,
                 loader.files().source->get(loader.has(tensor) ? tensor : tensor + ".weight"));
    std::vector<int64_t> shape = {heads};
    if (found->shape.size() == 2) shape = {heads, 1};
    QUIRE_ASSIGN(out.decay, loader.floats(found->name, shape));
    QUIRE_ASSIGN(out.dt_bias, loader.floats(dt_bias + ".bias", {heads}));
    return {};
  }
  QUIRE_ASSIGN(out.decay, loader.floats(tensor, {heads}));
  for (float& a : out.decay.host()) a = static_cast<float>(-std::exp(static_cast<double>(a)));
  QUIRE_ASSIGN(out.dt_bias, loader.floats(dt_bias, {heads}));
  return {};
}

// q, k, v, then the output gate z, then b and a.
std::vector<Slice> gated_delta_net_slices(const Loader& loader, int64_t index) {
  const GatedDeltaNetConfig& c = loader.config().gdn;
  const int64_t keys = c.key_heads * c.dk;
  const int64_t values = c.value_heads * c.dv;
  const Slice qkv{loader.name(Part::kGdnQkv, index), 2 * keys + values};
  const Slice z{loader.name(Part::kGdnZ, index), values};
  if (!c.by_key_head) {
    return {qkv, z, {loader.name(Part::kGdnB, index), c.value_heads}, {loader.name(Part::kGdnA, index), c.value_heads}};
  }
  const int64_t ratio = c.value_heads / c.key_heads;
  const std::string ba = loader.name(Part::kGdnBa, index);
  const Slice b{ba, c.value_heads, strided_rows(0, ratio, 2 * ratio, c.key_heads), 2 * c.value_heads};
  const Slice a{ba, c.value_heads, strided_rows(ratio, ratio, 2 * ratio, c.key_heads), 2 * c.value_heads};
  if (loader.gguf() && loader.has(qkv.tensor())) return {qkv, z, b, a};
  // For each key head: its q, its k, then v and z of the value heads that belong to it.
  const std::string qkvz = loader.name(Part::kGdnQkvz, index);
  const int64_t step = 2 * c.dk + 2 * ratio * c.dv;
  const int64_t all = c.key_heads * step;
  return {{qkvz, keys, strided_rows(0, c.dk, step, c.key_heads), all},
          {qkvz, keys, strided_rows(c.dk, c.dk, step, c.key_heads), all},
          {qkvz, values, strided_rows(2 * c.dk, ratio * c.dv, step, c.key_heads), all},
          {qkvz, values, strided_rows(2 * c.dk + ratio * c.dv, ratio * c.dv, step, c.key_heads), all},
          b,
          a};
}

Status load_gated_delta_net(Loader& loader, const LayerConfig&, int64_t index, DecoderLayer& weights) {
  RecurrentWeights& out = weights.recurrent;
  const GatedDeltaNetConfig& c = loader.config().gdn;
  QUIRE_ASSIGN(out.in, loader.linear(gated_delta_net_slices(loader, index), loader.config().hidden, false));
  QUIRE_TRY(load_conv(loader, index, GdnColumns(c).qkv, c.kernel, false, out));
  QUIRE_TRY(load_decay(loader, index, c.value_heads, out));
  QUIRE_ASSIGN(out.norm, loader.floats(loader.name(Part::kStateNorm, index) + ".weight", {c.dv}));
  QUIRE_ASSIGN(out.out, loader.linear(Part::kStateOut, index, loader.config().hidden, c.value_heads * c.dv));
  return {};
}

Status load_mamba2(Loader& loader, const LayerConfig&, int64_t index, DecoderLayer& weights) {
  RecurrentWeights& out = weights.recurrent;
  const Mamba2Config& c = loader.config().mamba2;
  const Mamba2Columns columns(c);
  QUIRE_ASSIGN(out.in, loader.linear(Part::kStateIn, index, columns.all(), loader.config().hidden, c.proj_bias));
  QUIRE_TRY(load_conv(loader, index, columns.xbc, c.kernel, c.conv_bias, out));
  QUIRE_TRY(load_decay(loader, index, c.heads, out));
  std::vector<int64_t> skip_shape = {c.heads}, norm_shape = {columns.z};
  if (loader.gguf()) skip_shape = {c.heads, 1}, norm_shape = {c.groups, columns.z / c.groups};
  QUIRE_ASSIGN(out.skip, loader.floats(loader.name(Part::kSkip, index), skip_shape));
  QUIRE_ASSIGN(out.norm, loader.floats(loader.name(Part::kStateNorm, index) + ".weight", norm_shape));
  QUIRE_ASSIGN(out.out, loader.linear(Part::kStateOut, index, loader.config().hidden, columns.z, c.proj_bias));
  return {};
}

Status load_short_conv(Loader& loader, const LayerConfig&, int64_t index, DecoderLayer& weights) {
  RecurrentWeights& out = weights.recurrent;
  const ShortConvConfig& c = loader.config().short_conv;
  const int64_t hidden = loader.config().hidden;
  QUIRE_ASSIGN(out.in, loader.linear(Part::kStateIn, index, 3 * hidden, hidden, c.bias));
  QUIRE_TRY(load_conv(loader, index, hidden, c.kernel, c.bias, out));
  QUIRE_ASSIGN(out.out, loader.linear(Part::kStateOut, index, hidden, hidden, c.bias));
  return {};
}

struct RecurrentScratch {
  Tensor in, out;
};

RecurrentScratch take_scratch(const DecoderModel& model, const LayerConfig& layer, int64_t tokens,
                              ScratchAllocator& scratch) {
  const DecoderConfig& config = model.config();
  int64_t in = 3 * config.hidden, out = config.hidden;
  if (layer.mixer == Mixer::kGatedDeltaNet) in = GdnColumns(config.gdn).all(), out = GdnColumns(config.gdn).z;
  if (layer.mixer == Mixer::kMamba2) in = Mamba2Columns(config.mamba2).all(), out = Mamba2Columns(config.mamba2).z;
  const Tensor first = scratch.take(tokens, in, model.activation());
  return {first, scratch.take(tokens, out, model.activation())};
}

void reserve(const DecoderModel& model, const LayerConfig& layer, int64_t tokens, ScratchAllocator& scratch) {
  take_scratch(model, layer, tokens, scratch);
}

// What the three kinds do first: take scratch, and project the input into it.
RecurrentScratch project_in(DecoderModel& model, const LayerContext& layer, const LayerInput& input) {
  ScratchAllocator allocator = model.scratch();
  const RecurrentScratch out = take_scratch(model, layer.config, input.x.rows, allocator);
  model.project_in(layer.weights.recurrent.in, input, out.in);
  return out;
}

CausalConv conv_of(const RecurrentWeights& weights, int64_t channels, int64_t kernel) {
  return {channels, kernel, weights.conv.data(), weights.conv_bias.data()};
}

StateSequences state_sequences(const DecoderModel& model, const LayerContext& layer) {
  const StagedGroup& pages = model.group(layer);
  return {model.step().cu_seqlens_q, pages.state_source, pages.state_destination, pages.state_rows};
}

bool run_gated_delta_net(DecoderModel& model, const LayerContext& layer, const LayerInput& input,
                         const LayerOutput& output) {
  const GatedDeltaNetConfig& c = model.config().gdn;
  const RecurrentWeights& weights = layer.weights.recurrent;
  const GdnColumns columns(c);
  const RecurrentScratch s = project_in(model, layer, input);
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
  args.sequences = state_sequences(model, layer);
  args.out = s.out;
  args.tiled = c.tiled_value_heads;
  model.backend().gated_delta_net(args);
  const float eps = model.config().norm_eps;
  model.backend().gated_rms_norm({s.out, z, weights.norm.data(), c.dv, c.dv, eps, false, s.out});
  return model.project_out(weights.out, s.out, output);
}

bool run_mamba2(DecoderModel& model, const LayerContext& layer, const LayerInput& input, const LayerOutput& output) {
  const Mamba2Config& c = model.config().mamba2;
  const RecurrentWeights& weights = layer.weights.recurrent;
  const Mamba2Columns columns(c);
  const RecurrentScratch s = project_in(model, layer, input);
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
  args.sequences = state_sequences(model, layer);
  args.out = s.out;
  model.backend().mamba2(args);
  const int64_t group = c.norm_group > 0 ? c.norm_group : columns.z;
  const float eps = model.config().norm_eps;
  model.backend().gated_rms_norm({s.out, z, weights.norm.data(), columns.z, group, eps, true, s.out});
  return model.project_out(weights.out, s.out, output);
}

bool run_short_conv(DecoderModel& model, const LayerContext& layer, const LayerInput& input,
                    const LayerOutput& output) {
  const DecoderConfig& config = model.config();
  const RecurrentWeights& weights = layer.weights.recurrent;
  const RecurrentScratch s = project_in(model, layer, input);
  model.backend().short_conv({s.in, conv_of(weights, config.hidden, config.short_conv.kernel),
                              layer.kv.state(layer.index), state_sequences(model, layer), s.out});
  return model.project_out(weights.out, s.out, output);
}

}  // namespace

const MixerKind kGatedDeltaNetMixer = {
    [](const DecoderConfig& config, const LayerConfig&) {
      const GatedDeltaNetConfig& c = config.gdn;
      return state_of(GdnColumns(c).qkv * (c.kernel - 1) + c.value_heads * c.dk * c.dv);
    },
    load_gated_delta_net, reserve, run_gated_delta_net,
    [](const DecoderConfig& config) {
      return GdnColumns(config.gdn).qkv + config.gdn.key_heads + 2 * config.gdn.value_heads;
    }};

const MixerKind kMamba2Mixer = {
    [](const DecoderConfig& config, const LayerConfig&) {
      const Mamba2Config& c = config.mamba2;
      return state_of(Mamba2Columns(c).xbc * (c.kernel - 1) + c.heads * c.head_dim * c.state_size);
    },
    load_mamba2, reserve, run_mamba2,
    [](const DecoderConfig& config) { return Mamba2Columns(config.mamba2).xbc + 2 * config.mamba2.heads; }};

const MixerKind kShortConvMixer = {[](const DecoderConfig& config, const LayerConfig&) {
                                     return state_of(config.hidden * (config.short_conv.kernel - 1));
                                   },
                                   load_short_conv, reserve, run_short_conv};

}  // namespace quire::model
