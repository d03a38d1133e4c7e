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

// Appends `count` numbers from `first` on.
void append_range(std::vector<int32_t>& rows, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) rows.push_back(static_cast<int32_t>(first + i));
}

// What a rank has of a gated delta net: some key heads, and the value heads that belong to them.
struct GdnShare {
  GdnShare(const GatedDeltaNetConfig& whole, const DecoderConfig& own) {
    const int64_t part = own.share.gdn_parts > 1 ? own.share.rank : 0;
    const int64_t keys = own.gdn.key_heads, ratio = whole.value_heads / whole.key_heads;
    if (whole.tiled_value_heads) {
      for (int64_t j = 0; j < ratio; ++j) append_range(heads, j * whole.key_heads + part * keys, keys);
    } else {
      append_range(heads, part * keys * ratio, keys * ratio);
    }
    append_range(key_rows, part * keys * whole.dk, keys * whole.dk);
    for (const int32_t head : heads) append_range(value_rows, head * whole.dv, whole.dv);
    const int64_t all_keys = whole.key_heads * whole.dk;
    for (const int64_t first : {int64_t{0}, all_keys}) {
      append_range(qkv_rows, first + part * keys * whole.dk, keys * whole.dk);
    }
    for (const int32_t row : value_rows) qkv_rows.push_back(static_cast<int32_t>(2 * all_keys) + row);
  }
  std::vector<int32_t> heads, key_rows, value_rows, qkv_rows;  // places in the whole
};

// What a rank has of a Mamba-2 layer: some heads and their groups, which neighbours may share.
struct Mamba2Share {
  Mamba2Share(const Mamba2Config& whole, const DecoderConfig& own) {
    const Share& share = own.share;
    const bool cut = share.mamba2_parts > 1;
    const Mamba2Columns columns(whole);
    const int64_t inner = own.mamba2.heads * own.mamba2.head_dim;
    const int64_t group = cut ? share.part_of(head_parts(whole.groups, share.ranks)) * own.mamba2.groups : 0;
    append_range(heads, (cut ? share.rank : 0) * own.mamba2.heads, own.mamba2.heads);
    append_range(z_rows, (cut ? share.rank : 0) * inner, inner);
    xbc_rows = z_rows;
    for (int64_t i = 0; i < 2; ++i) {
      append_range(xbc_rows, columns.z + (i * whole.groups + group) * whole.state_size,
                   own.mamba2.groups * whole.state_size);
    }
    in_rows = z_rows;
    for (const int32_t row : xbc_rows) in_rows.push_back(static_cast<int32_t>(columns.z) + row);
    for (const int32_t head : heads) in_rows.push_back(static_cast<int32_t>(columns.z + columns.xbc) + head);
  }
  std::vector<int32_t> heads, z_rows, xbc_rows, in_rows;  // places in the whole
};

// Whether the norm of a Mamba-2 layer stays within the columns of a rank.
bool norms_own_columns(const DecoderConfig& config) {
  const Mamba2Config& c = config.mamba2;
  if (config.share.mamba2_parts == 1) return true;
  return c.norm_group > 0 && Mamba2Columns(c).z % c.norm_group == 0;
}

int64_t short_conv_channels(const DecoderConfig& config) {
  return config.hidden / config.share.ranks;
}

// Keeps those rows.
void keep_rows(Floats& values, int64_t columns, const std::vector<int32_t>& rows) {
  if (!values.empty()) values = take_rows(values.host(), columns, rows);
}

kv::LayerCache state_of(int64_t bytes) {
  kv::LayerCache out;
  out.kind = kv::CacheKind::kState;
  out.state_bytes = bytes;
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
  std::vector<Slice> slices = gated_delta_net_slices(loader, index);
  const bool cut = loader.share().gdn_parts > 1;
  const GdnShare own(c, loader.own());
  if (cut) {
    const bool joined = slices.size() == 4;  // q, k and v are one slice
    const std::vector<int32_t>* const places[] = {joined ? &own.qkv_rows : &own.key_rows,
                                                  &own.key_rows,
                                                  &own.value_rows,
                                                  &own.value_rows,
                                                  &own.heads,
                                                  &own.heads};
    for (size_t i = 0; i < slices.size(); ++i) slices[i] = pick(slices[i], *places[joined && i > 0 ? i + 2 : i]);
  }
  QUIRE_ASSIGN(out.in, loader.linear(slices, loader.config().hidden, false));
  QUIRE_TRY(load_conv(loader, index, GdnColumns(c).qkv, c.kernel, false, out));
  QUIRE_TRY(load_decay(loader, index, c.value_heads, out));
  if (cut) {
    keep_rows(out.conv, c.kernel, own.qkv_rows);
    keep_rows(out.conv_bias, 1, own.qkv_rows);
    for (Floats* values : {&out.decay, &out.dt_bias}) keep_rows(*values, 1, own.heads);
  }
  QUIRE_ASSIGN(out.norm, loader.floats(loader.name(Part::kStateNorm, index) + ".weight", {c.dv}));
  QUIRE_ASSIGN(out.out, loader.cut_linear(Part::kStateOut, index, loader.config().hidden, c.value_heads * c.dv));
  return {};
}

Status load_mamba2(Loader& loader, const LayerConfig&, int64_t index, DecoderLayer& weights) {
  RecurrentWeights& out = weights.recurrent;
  const Mamba2Config& c = loader.config().mamba2;
  const Mamba2Columns columns(c);
  const bool cut = loader.share().mamba2_parts > 1;
  const Mamba2Share own(c, loader.own());
  Slice in{loader.name(Part::kStateIn, index), columns.all()};
  if (cut) in = pick(in, own.in_rows);
  QUIRE_ASSIGN(out.in, loader.linear({in}, loader.config().hidden, c.proj_bias));
  QUIRE_TRY(load_conv(loader, index, columns.xbc, c.kernel, c.conv_bias, out));
  QUIRE_TRY(load_decay(loader, index, c.heads, out));
  std::vector<int64_t> skip_shape = {c.heads}, norm_shape = {columns.z};
  if (loader.gguf()) skip_shape = {c.heads, 1}, norm_shape = {c.groups, columns.z / c.groups};
  QUIRE_ASSIGN(out.skip, loader.floats(loader.name(Part::kSkip, index), skip_shape));
  QUIRE_ASSIGN(out.norm, loader.floats(loader.name(Part::kStateNorm, index) + ".weight", norm_shape));
  QUIRE_ASSIGN(out.out, loader.cut_linear(Part::kStateOut, index, loader.config().hidden, columns.z, c.proj_bias));
  if (cut) {
    keep_rows(out.conv, c.kernel, own.xbc_rows);
    keep_rows(out.conv_bias, 1, own.xbc_rows);
    for (Floats* values : {&out.decay, &out.dt_bias, &out.skip}) keep_rows(*values, 1, own.heads);
    if (norms_own_columns(loader.own())) keep_rows(out.norm, 1, own.z_rows);
  }
  return {};
}

Status load_short_conv(Loader& loader, const LayerConfig&, int64_t index, DecoderLayer& weights) {
  RecurrentWeights& out = weights.recurrent;
  const ShortConvConfig& c = loader.config().short_conv;
  const int64_t hidden = loader.config().hidden;
  Slice in{loader.name(Part::kStateIn, index), 3 * hidden};
  std::vector<int32_t> channels, rows;
  const int64_t own = short_conv_channels(loader.own()), first = loader.share().rank * own;
  append_range(channels, first, own);
  for (int64_t i = 0; i < 3; ++i) append_range(rows, i * hidden + first, own);
  if (loader.share().split()) in = pick(in, rows);
  QUIRE_ASSIGN(out.in, loader.linear({in}, hidden, c.bias));
  QUIRE_TRY(load_conv(loader, index, hidden, c.kernel, c.bias, out));
  if (loader.share().split()) {
    keep_rows(out.conv, c.kernel, channels);
    keep_rows(out.conv_bias, 1, channels);
  }
  QUIRE_ASSIGN(out.out, loader.cut_linear(Part::kStateOut, index, hidden, hidden, c.bias));
  return {};
}

struct RecurrentScratch {
  Tensor in, out;
  Tensor all, all_gates;  // room for the columns of all ranks
};

RecurrentScratch take_recurrent_scratch(const DecoderModel& model, const LayerConfig& layer, int64_t tokens,
                                        ScratchAllocator& scratch) {
  const DecoderConfig& config = model.config();
  const Share& share = config.share;
  const int64_t channels = short_conv_channels(config);
  int64_t in = 3 * channels, out = channels;
  if (layer.mixer == Mixer::kGatedDeltaNet) in = GdnColumns(config.gdn).all(), out = GdnColumns(config.gdn).z;
  if (layer.mixer == Mixer::kMamba2) in = Mamba2Columns(config.mamba2).all(), out = Mamba2Columns(config.mamba2).z;
  RecurrentScratch s;
  s.in = scratch.take(tokens, in, model.activation());
  s.out = scratch.take(tokens, out, model.activation());
  if (share.split()) s.all = scratch.take(tokens, share.ranks * out, model.activation());
  if (layer.mixer == Mixer::kMamba2 && !norms_own_columns(config)) {
    s.all_gates = scratch.take(tokens, share.ranks * out, model.activation());
  }
  return s;
}

void reserve_recurrent(const DecoderModel& model, const LayerConfig& layer, int64_t tokens, ScratchAllocator& scratch) {
  take_recurrent_scratch(model, layer, tokens, scratch);
}

// What the three kinds do first: take scratch, and project the input into it.
RecurrentScratch project_in(DecoderModel& model, const LayerContext& layer, const LayerInput& input) {
  ScratchAllocator allocator = model.scratch();
  const RecurrentScratch out = take_recurrent_scratch(model, layer.config, input.x.rows, allocator);
  model.project_in(layer.weights.recurrent.in, input, out.in);
  return out;
}

CausalConv conv_of(const RecurrentWeights& weights, int64_t channels, int64_t kernel) {
  return {channels, kernel, weights.conv.data(), weights.conv_bias.data()};
}

StateSequences state_sequences(const DecoderModel& model, const LayerContext& layer) {
  const StagedGroup& pages = model.group(layer);
  const StagedBatch& step = model.step();
  return {step.cu_seqlens_q, pages.state_source, pages.state_destination, pages.state_rows, step.context_lens};
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
  args.chunked = c.chunked;
  model.backend().gated_delta_net(args);
  const float eps = model.config().norm_eps;
  model.backend().gated_rms_norm({s.out, z, weights.norm.data(), c.dv, c.dv, eps, false, s.out});
  if (model.config().share.gdn_parts == 1) return model.project_out(weights.out, s.out, output);
  // Value heads that are key_heads apart are gathered one for each key head at a time.
  const int64_t times = c.tiled_value_heads ? c.value_heads / c.key_heads : 1;
  const int64_t rows = s.out.rows, columns_of_all = weights.out.in_dim();
  const Tensor own{s.out.data, s.out.dtype, rows * times, s.out.cols / times, s.out.cols / times};
  const Tensor all = model.gathered(own, s.all, columns_of_all / times);
  return model.project_out(weights.out, {all.data, all.dtype, rows, columns_of_all, columns_of_all}, output);
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
  args.chunked = c.chunked;
  model.backend().mamba2(args);
  const float eps = model.config().norm_eps;
  const int64_t all_columns = weights.out.in_dim();
  const int64_t group = c.norm_group > 0 ? c.norm_group : all_columns;
  const bool whole = model.config().share.mamba2_parts == 1;
  if (norms_own_columns(model.config())) {
    model.backend().gated_rms_norm({s.out, z, weights.norm.data(), columns.z, group, eps, true, s.out});
    return model.project_out(weights.out, whole ? s.out : model.gathered(s.out, s.all, all_columns), output);
  }
  const Tensor all = model.gathered(s.out, s.all, all_columns), gates = model.gathered(z, s.all_gates, all_columns);
  model.backend().gated_rms_norm({all, gates, weights.norm.data(), all_columns, group, eps, true, all});
  return model.project_out(weights.out, all, output);
}

bool run_short_conv(DecoderModel& model, const LayerContext& layer, const LayerInput& input,
                    const LayerOutput& output) {
  const DecoderConfig& config = model.config();
  const RecurrentWeights& weights = layer.weights.recurrent;
  const RecurrentScratch s = project_in(model, layer, input);
  model.backend().short_conv({s.in, conv_of(weights, short_conv_channels(config), config.short_conv.kernel),
                              layer.kv.state(layer.index), state_sequences(model, layer), s.out});
  return model.project_out(weights.out, model.gathered(s.out, s.all, config.hidden), output);
}

}  // namespace

const MixerKind kGatedDeltaNetMixer = {
    [](const DecoderConfig& config, const LayerConfig&) {
      const GatedDeltaNetConfig& c = config.gdn;
      if (c.chunked) return state_of(DeltaChunkLayout(c.key_heads, c.value_heads, c.dk, c.dv, c.kernel).bytes);
      return state_of(gated_delta_net_state_bytes(c.key_heads, c.value_heads, c.dk, c.dv, c.kernel));
    },
    load_gated_delta_net, reserve_recurrent, run_gated_delta_net,
    [](const DecoderConfig& config) {
      const GatedDeltaNetConfig& c = config.gdn;
      const int64_t scores = c.chunked ? 2 * kStateChunk * c.key_heads + 3 : 0;  // and up to 3 for their alignment
      return GdnColumns(c).qkv + c.key_heads + 2 * c.value_heads + scores;
    }};

const MixerKind kMamba2Mixer = {
    [](const DecoderConfig& config, const LayerConfig&) {
      const Mamba2Config& c = config.mamba2;
      if (c.chunked) return state_of(DeltaChunkLayout(c.groups, c.heads, c.state_size, c.head_dim, c.kernel).bytes);
      return state_of(mamba2_state_bytes(c.heads, c.head_dim, c.groups, c.state_size, c.kernel));
    },
    load_mamba2, reserve_recurrent, run_mamba2,
    [](const DecoderConfig& config) {
      const Mamba2Config& c = config.mamba2;
      const int64_t scores = c.chunked ? 2 * kStateChunk * c.groups + 3 : 0;
      return Mamba2Columns(c).xbc + 2 * c.heads + scores;
    }};

const MixerKind kShortConvMixer = {
    [](const DecoderConfig& config, const LayerConfig&) {
      return state_of(short_conv_state_bytes(short_conv_channels(config), config.short_conv.kernel));
    },
    load_short_conv, reserve_recurrent, run_short_conv};

}  // namespace quire::model
