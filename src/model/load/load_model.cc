// SPDX-License-Identifier: Apache-2.0
// Which tensors each kind of layer has, and how they become its weights.
#include <cmath>
#include <numeric>

#include "model/load/loader.h"
#include "weights/quant.h"

namespace quire::model {
namespace {

std::vector<int32_t> range(int64_t begin, int64_t count) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), static_cast<int32_t>(begin));
  return out;
}

// Pieces of `count` rows, one after each `step` rows of the file, from `begin` on.
std::vector<int32_t> strided(int64_t begin, int64_t count, int64_t step, int64_t times) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < times; ++i) {
    const std::vector<int32_t> piece = range(begin + i * step, count);
    out.insert(out.end(), piece.begin(), piece.end());
  }
  return out;
}

}  // namespace

Result<Norm> Loader::norm(Part part, int64_t layer, std::vector<int64_t> shape) {
  Norm out;
  QUIRE_ASSIGN(out.weight, floats(name(part, layer) + ".weight", shape));
  // MLX's converter adds the 1 for the hybrid families.
  const bool added = gguf_ || (files_.scheme.method == weights::QuantMethod::kMlx && config_.gdn.key_heads > 0);
  if (config_.norm_plus_one && !added) {
    for (float& w : out.weight.host()) w += 1.0f;
  }
  if (config_.norm_kind == NormKind::kLayerWithBias) {
    QUIRE_ASSIGN(out.bias, floats(name(part, layer) + ".bias", std::move(shape)));
  }
  return out;
}

// Row 2i + j of a head in the file is row j * d/2 + i of the model: GGUF's order for interleaved rotation.
std::vector<int32_t> Loader::unpermuted(int64_t rows, int64_t head_dim) const {
  std::vector<int32_t> map;
  if (!gguf_ || !config_.gguf_permuted) return map;
  map.resize(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t in_head = r % head_dim;
    const int64_t j = in_head / (head_dim / 2);
    const int64_t i = in_head % (head_dim / 2);
    map[static_cast<size_t>(r)] = static_cast<int32_t>(r - in_head + 2 * i + j);
  }
  return map;
}

Result<DecoderLayer> Loader::load_layer(int64_t index) {
  const LayerConfig& config = config_.per_layer[static_cast<size_t>(index)];
  DecoderLayer out;
  QUIRE_TRY(load_norms(config, index, out));
  switch (config.mixer) {
    case Mixer::kAttention:
      QUIRE_TRY(load_attention(config, index, out.attention));
      break;
    case Mixer::kMla:
      QUIRE_TRY(load_mla(index, out.mla));
      break;
    case Mixer::kGatedDeltaNet:
      QUIRE_TRY(load_gated_delta_net(index, out.recurrent));
      break;
    case Mixer::kMamba2:
      QUIRE_TRY(load_mamba2(index, out.recurrent));
      break;
    case Mixer::kShortConv:
      QUIRE_TRY(load_short_conv(index, out.recurrent));
      break;
    case Mixer::kNone:
      break;
  }
  if (config.feed == Feed::kMoe || config_.moe.beside_mlp) QUIRE_TRY(load_moe(index, out.moe));
  if (config.feed == Feed::kGated || config.feed == Feed::kPlain) QUIRE_TRY(load_mlp(config, index, out.mlp));
  if (config_.per_layer_input.dim > 0) {
    PerLayerInputWeights& input = out.per_layer_input;
    const int64_t dim = config_.per_layer_input.dim;
    QUIRE_ASSIGN(input.gate, linear({{name(Part::kPerLayerGate, index), dim}}, config_.hidden, false));
    QUIRE_ASSIGN(input.projection, linear({{name(Part::kPerLayerProjection, index), config_.hidden}}, dim, false));
    QUIRE_ASSIGN(input.norm, norm(Part::kPerLayerPostNorm, index, {config_.hidden}));
  }
  if (config_.layer_scalars) {
    QUIRE_ASSIGN(const std::vector<float> scalar,
                 floats(name(Part::kLayerScalar, index) + (gguf_ ? ".weight" : ""), {1}));
    out.scalar = scalar.at(0);
  }
  return out;
}

Status Loader::load_norms(const LayerConfig& config, int64_t index, DecoderLayer& out) {
  const bool mixes = config.mixer != Mixer::kNone;
  const bool feeds = config.feed != Feed::kNone;
  if (config_.norms != NormPlacement::kPost) {
    if (mixes) {
      QUIRE_ASSIGN(out.attention_norm, norm(Part::kAttentionNorm, index, {config_.hidden}));
    }
    if (feeds && config_.norms != NormPlacement::kParallel) {
      QUIRE_ASSIGN(out.mlp_norm, norm(Part::kMlpNorm, index, {config_.hidden}));
    }
  }
  if (config_.norms == NormPlacement::kPost || config_.norms == NormPlacement::kSandwich) {
    QUIRE_ASSIGN(out.post_attention_norm, norm(Part::kPostAttentionNorm, index, {config_.hidden}));
    QUIRE_ASSIGN(out.post_mlp_norm, norm(Part::kPostMlpNorm, index, {config_.hidden}));
  }
  return {};
}

Status Loader::load_attention(const LayerConfig& config, int64_t index, AttentionWeights& out) {
  const int64_t d = config_.head_dim_of(config);
  const int64_t q = config_.heads * d;
  const int64_t kv = config_.kv_heads_of(config) * d;
  const bool own = config.shared_with < 0;
  if (config_.qk_norm != QkNorm::kNone) {
    std::vector<int64_t> q_shape = {d}, k_shape = {d};
    if (config_.qk_norm == QkNorm::kWhole) q_shape = {q}, k_shape = {kv};
    if (config_.qk_norm == QkNorm::kPerHeadWeights) {
      q_shape.insert(q_shape.begin(), config_.heads);
      k_shape.insert(k_shape.begin(), config_.kv_heads_of(config));
    }
    QUIRE_ASSIGN(out.q_norm, norm(Part::kQNorm, index, q_shape));
    if (own) {
      QUIRE_ASSIGN(out.k_norm, norm(Part::kKNorm, index, k_shape));
    }
  }
  if (config_.sinks) {
    QUIRE_ASSIGN(out.sinks, floats(name(Part::kSinks, index) + (gguf_ ? ".weight" : ""), {config_.heads}));
  }
  std::vector<Slice> qkv;
  const std::string fused = name(Part::kQkv, index);
  if (config_.fused_qkv || (gguf_ && has(fused + ".weight"))) {
    qkv = {{fused, q + 2 * kv}};
  } else {
    const std::string q_name = name(Part::kQ, index);
    if (config_.output_gate) {
      qkv.push_back({q_name, q, strided(0, d, 2 * d, config_.heads), 2 * q});
    } else {
      qkv.push_back({q_name, q, unpermuted(q, d)});
    }
    if (own) qkv.push_back({name(Part::kK, index), kv, unpermuted(kv, d)});
    if (own && !config.v_is_k) qkv.push_back({name(Part::kV, index), kv});
    if (config_.output_gate) qkv.push_back({q_name, q, strided(d, d, 2 * d, config_.heads), 2 * q});
  }
  QUIRE_ASSIGN(out.qkv, linear(qkv, config_.hidden, config_.qkv_bias));
  QUIRE_ASSIGN(out.o, linear({{name(Part::kO, index), config_.hidden}}, q, config_.o_bias));
  return {};
}

Status Loader::load_mla(int64_t index, MlaWeights& out) {
  const MlaConfig& c = config_.mla;
  const int64_t q = config_.heads * (c.nope_dim + c.rope_dim);
  if (c.q_rank > 0) {
    QUIRE_ASSIGN(out.q_a, linear({{name(Part::kQA, index), c.q_rank}}, config_.hidden, config_.qkv_bias));
    QUIRE_ASSIGN(out.q_a_norm, norm(Part::kQANorm, index, {c.q_rank}));
    QUIRE_ASSIGN(out.q, linear({{name(Part::kQB, index), q}}, c.q_rank, false));
  } else {
    QUIRE_ASSIGN(out.q, linear({{name(Part::kQ, index), q}}, config_.hidden, false));
  }
  QUIRE_ASSIGN(out.kv_a, linear({{name(Part::kKvA, index), c.kv_rank + c.rope_dim}}, config_.hidden, config_.qkv_bias));
  QUIRE_ASSIGN(out.kv_norm, norm(Part::kKvANorm, index, {c.kv_rank}));
  QUIRE_TRY(load_latent_heads(index, out));
  QUIRE_ASSIGN(out.o, linear({{name(Part::kO, index), config_.hidden}}, config_.heads * c.v_dim, config_.o_bias));
  return {};
}

// kv_b has, head by head, the rows that make keys of the latent vector and those that make values. Keys are absorbed
// into the query, which needs their transpose. GGUF files may have the two apart, keys transposed.
Status Loader::load_latent_heads(int64_t index, MlaWeights& out) {
  const MlaConfig& c = config_.mla;
  const bool apart = gguf_ && has(name(Part::kKUp, index) + ".weight");
  const int64_t head_rows = c.nope_dim + c.v_dim;
  const weights::TensorRef *keys = nullptr, *values = nullptr;
  weights::TensorRef plain;
  std::vector<float> dequantised;
  if (is_quantised_linear(name(Part::kKvB, index))) {
    const Slice slice{name(Part::kKvB, index), config_.heads * head_rows};
    QUIRE_ASSIGN(const auto loaded, quantised(slice, c.kv_rank, true));
    dequantised = loaded->values();
    plain.name = slice.prefix;
    plain.shape = {slice.rows, c.kv_rank};
    plain.data = std::as_bytes(std::span(dequantised));
    keys = values = &plain;
  } else if (apart) {
    QUIRE_ASSIGN(keys, require(name(Part::kKUp, index) + ".weight", {config_.heads, c.kv_rank, c.nope_dim}));
    QUIRE_ASSIGN(values, require(name(Part::kVUp, index) + ".weight", {config_.heads, c.v_dim, c.kv_rank}));
  } else {
    QUIRE_ASSIGN(keys, require(name(Part::kKvB, index) + ".weight", {config_.heads * head_rows, c.kv_rank}));
    values = keys;
  }
  const auto row_of = [](const weights::TensorRef& tensor, int64_t row) {
    std::vector<float> floats(static_cast<size_t>(tensor.columns()));
    weights::dequantise_row(tensor.dtype, tensor.data.data() + row * row_bytes(tensor.dtype, tensor.columns()),
                            floats.data(), tensor.columns());
    return floats;
  };
  const bool rounded = is_quantised(keys->dtype) || !dequantised.empty();
  const DType type = dtype_ == DType::kF32 ? DType::kF32 : narrowed(rounded ? DType::kBF16 : keys->dtype);
  for (int64_t h = 0; h < config_.heads; ++h) {
    std::vector<float> up(static_cast<size_t>(c.kv_rank * c.nope_dim));
    for (int64_t i = 0; i < (apart ? c.kv_rank : c.nope_dim); ++i) {
      const std::vector<float> row = row_of(*keys, apart ? h * c.kv_rank + i : h * head_rows + i);
      for (size_t j = 0; j < row.size(); ++j) {
        const size_t at = apart ? static_cast<size_t>(i * c.nope_dim) + j
                                : j * static_cast<size_t>(c.nope_dim) + static_cast<size_t>(i);
        up[at] = row[j];
      }
    }
    QUIRE_ASSIGN(Packed packed, from_floats(std::move(up), c.kv_rank, c.nope_dim, type));
    out.k_up.push_back(std::move(packed));
    std::vector<float> down;
    for (int64_t i = 0; i < c.v_dim; ++i) {
      const std::vector<float> row = row_of(*values, apart ? h * c.v_dim + i : h * head_rows + c.nope_dim + i);
      down.insert(down.end(), row.begin(), row.end());
    }
    QUIRE_ASSIGN(packed, from_floats(std::move(down), c.v_dim, c.kv_rank, type));
    out.v_up.push_back(std::move(packed));
  }
  if (dequantised.empty()) finished(*keys);
  if (apart) finished(*values);
  return {};
}

Status Loader::load_conv(int64_t index, int64_t channels, int64_t kernel, bool bias, RecurrentWeights& out) {
  const std::string conv = name(Part::kConv, index);
  std::vector<int64_t> shape = {channels, kernel};
  if (!gguf_) shape = {channels, 1, kernel};
  if (files_.scheme.method == weights::QuantMethod::kMlx) shape = {channels, kernel, 1};
  QUIRE_ASSIGN(out.conv, floats(conv + ".weight", shape));
  if (gguf_ ? has(conv + ".bias") : bias) {
    QUIRE_ASSIGN(out.conv_bias, floats(conv + ".bias", {channels}));
  }
  return {};
}

// A Hugging Face file holds A_log; GGUF what is made of it.
Status Loader::load_decay(int64_t index, int64_t heads, RecurrentWeights& out) {
  if (gguf_) {
    const std::string tensor = name(Part::kDecay, index);
    const bool bare = has(tensor);
    QUIRE_ASSIGN(const weights::TensorRef* found, files_.source->get(bare ? tensor : tensor + ".weight"));
    std::vector<int64_t> shape = {heads};
    if (found->shape.size() == 2) shape = {heads, 1};
    QUIRE_ASSIGN(out.decay, floats(found->name, shape));
    QUIRE_ASSIGN(out.dt_bias, floats(name(Part::kDtBias, index) + ".bias", {heads}));
    return {};
  }
  QUIRE_ASSIGN(out.decay, floats(name(Part::kDecay, index), {heads}));
  for (float& a : out.decay.host()) a = static_cast<float>(-std::exp(static_cast<double>(a)));
  QUIRE_ASSIGN(out.dt_bias, floats(name(Part::kDtBias, index), {heads}));
  return {};
}

// q, k, v, then the output gate z, then b and a.
Result<std::vector<Slice>> Loader::gated_delta_net_slices(int64_t index) const {
  const GatedDeltaNetConfig& c = config_.gdn;
  const int64_t keys = c.key_heads * c.dk;
  const int64_t values = c.value_heads * c.dv;
  if (!c.by_key_head) {
    return std::vector<Slice>{{name(Part::kGdnQkv, index), 2 * keys + values},
                              {name(Part::kGdnZ, index), values},
                              {name(Part::kGdnB, index), c.value_heads},
                              {name(Part::kGdnA, index), c.value_heads}};
  }
  const int64_t ratio = c.value_heads / c.key_heads;
  const std::string ba = name(Part::kGdnBa, index);
  const Slice b{ba, c.value_heads, strided(0, ratio, 2 * ratio, c.key_heads), 2 * c.value_heads};
  const Slice a{ba, c.value_heads, strided(ratio, ratio, 2 * ratio, c.key_heads), 2 * c.value_heads};
  if (gguf_ && has(name(Part::kGdnQkv, index) + ".weight")) {
    return std::vector<Slice>{
        {name(Part::kGdnQkv, index), 2 * keys + values}, {name(Part::kGdnZ, index), values}, b, a};
  }
  // For each key head: its q, its k, then v and z of the value heads that it serves.
  const std::string qkvz = name(Part::kGdnQkvz, index);
  const int64_t step = 2 * c.dk + 2 * ratio * c.dv;
  const int64_t all = c.key_heads * step;
  return std::vector<Slice>{{qkvz, keys, strided(0, c.dk, step, c.key_heads), all},
                            {qkvz, keys, strided(c.dk, c.dk, step, c.key_heads), all},
                            {qkvz, values, strided(2 * c.dk, ratio * c.dv, step, c.key_heads), all},
                            {qkvz, values, strided(2 * c.dk + ratio * c.dv, ratio * c.dv, step, c.key_heads), all},
                            b,
                            a};
}

Status Loader::load_gated_delta_net(int64_t index, RecurrentWeights& out) {
  const GatedDeltaNetConfig& c = config_.gdn;
  QUIRE_ASSIGN(const std::vector<Slice> slices, gated_delta_net_slices(index));
  QUIRE_ASSIGN(out.in, linear(slices, config_.hidden, false));
  QUIRE_TRY(load_conv(index, 2 * c.key_heads * c.dk + c.value_heads * c.dv, c.kernel, false, out));
  QUIRE_TRY(load_decay(index, c.value_heads, out));
  QUIRE_ASSIGN(out.norm, floats(name(Part::kStateNorm, index) + ".weight", {c.dv}));
  QUIRE_ASSIGN(out.out, linear({{name(Part::kStateOut, index), config_.hidden}}, c.value_heads * c.dv, false));
  return {};
}

Status Loader::load_mamba2(int64_t index, RecurrentWeights& out) {
  const Mamba2Config& c = config_.mamba2;
  const int64_t inner = c.heads * c.head_dim;
  const int64_t channels = inner + 2 * c.groups * c.state_size;
  QUIRE_ASSIGN(out.in,
               linear({{name(Part::kStateIn, index), inner + channels + c.heads}}, config_.hidden, c.proj_bias));
  QUIRE_TRY(load_conv(index, channels, c.kernel, c.conv_bias, out));
  QUIRE_TRY(load_decay(index, c.heads, out));
  const std::string skip = name(Part::kSkip, index);
  std::vector<int64_t> skip_shape = {c.heads}, norm_shape = {inner};
  if (gguf_) skip_shape = {c.heads, 1}, norm_shape = {c.groups, inner / c.groups};
  QUIRE_ASSIGN(out.skip, floats(skip, skip_shape));
  QUIRE_ASSIGN(out.norm, floats(name(Part::kStateNorm, index) + ".weight", norm_shape));
  QUIRE_ASSIGN(out.out, linear({{name(Part::kStateOut, index), config_.hidden}}, inner, c.proj_bias));
  return {};
}

Status Loader::load_short_conv(int64_t index, RecurrentWeights& out) {
  const ShortConvConfig& c = config_.short_conv;
  QUIRE_ASSIGN(out.in, linear({{name(Part::kStateIn, index), 3 * config_.hidden}}, config_.hidden, c.bias));
  QUIRE_TRY(load_conv(index, config_.hidden, c.kernel, c.bias, out));
  QUIRE_ASSIGN(out.out, linear({{name(Part::kStateOut, index), config_.hidden}}, config_.hidden, c.bias));
  return {};
}

Status Loader::load_mlp(const LayerConfig& config, int64_t index, MlpWeights& out) {
  const int64_t inner = config_.intermediate_of(config);
  std::vector<Slice> gate_up = {{name(Part::kGate, index), inner}, {name(Part::kUp, index), inner}};
  if (config_.fused_gate_up) gate_up = {{name(Part::kGateUp, index), 2 * inner}};
  if (config.feed == Feed::kPlain) gate_up = {{name(Part::kUp, index), inner}};
  QUIRE_ASSIGN(out.gate_up, linear(gate_up, config_.hidden, config_.mlp_bias));
  QUIRE_ASSIGN(out.down, linear({{name(Part::kDown, index), config_.hidden}}, inner, config_.mlp_bias));
  return {};
}

Status Loader::load_moe(int64_t index, MoeWeights& out) {
  const MoeConfig& c = config_.moe;
  QUIRE_ASSIGN(out.router, linear({{name(Part::kRouter, index), c.experts}}, config_.hidden, c.router_bias));
  if (c.choice_bias) {
    QUIRE_ASSIGN(out.choice_bias, floats(name(Part::kChoiceBias, index) + (gguf_ ? ".bias" : ""), {c.experts}));
  }
  QUIRE_TRY(load_experts(index, out));
  if (c.expert_bias) QUIRE_TRY(load_expert_biases(index, out));
  for (const Packed& matrix : out.gate_up) out.gate_up_views.push_back(matrix.get());
  for (const Packed& matrix : out.down) out.down_views.push_back(matrix.get());
  if (c.shared_intermediate > 0) QUIRE_TRY(load_shared_expert(index, out));
  if (c.beside_mlp) QUIRE_TRY(load_beside_mlp(index, out));
  return {};
}

Status Loader::load_beside_mlp(int64_t index, MoeWeights& out) {
  QUIRE_ASSIGN(out.router_norm.weight, floats(name(Part::kRouterScale, index), {config_.hidden}));
  const double root = std::sqrt(static_cast<double>(config_.hidden));
  for (float& w : out.router_norm.weight.host()) w = static_cast<float>(static_cast<double>(w) / root);
  QUIRE_ASSIGN(out.expert_scale, floats(name(Part::kExpertScale, index), {config_.moe.experts}));
  QUIRE_ASSIGN(out.mlp_out_norm, norm(Part::kMlpOutNorm, index, {config_.hidden}));
  QUIRE_ASSIGN(out.norm, norm(Part::kExpertsNorm, index, {config_.hidden}));
  QUIRE_ASSIGN(out.out_norm, norm(Part::kExpertsOutNorm, index, {config_.hidden}));
  return {};
}

// One tensor an expert, or all experts in one.
Status Loader::load_experts(int64_t index, MoeWeights& out) {
  const MoeConfig& c = config_.moe;
  const bool in_turn = !gguf_ && files_.family->has_part(Part::kExpertsTransposed);  // gate, up, gate, up ...
  if (in_turn && !is_quantised_linear(name(Part::kExpertsGateUp, index))) return load_transposed_experts(index, out);
  const std::string stack = name(Part::kExpertsGateUp, index);
  const bool declared = files_.family->has_part(Part::kExpertsGateUp) && files_.source->is_dummy();
  const bool bare = files_.source->is_dummy() ? files_.family->has_part(Part::kExpertsBare) : has(stack);
  const bool together = in_turn || has(stack + ".weight") || (!gguf_ && (declared || bare));
  const bool switched = !gguf_ && has(name(Part::kSwitchUp, index) + ".weight");
  const bool stacked = gguf_ || together || switched;
  std::set<const weights::TensorRef*> tensors;
  for (int64_t e = 0; e < c.experts; ++e) {
    const auto slice = [&](Part part, int64_t rows) {
      Slice s{name(part, index, e), rows};
      if (stacked) s.expert = e, s.experts = c.experts;
      s.bare = together && bare;
      return s;
    };
    std::vector<Slice> parts;
    if (together) {
      parts.push_back(slice(Part::kExpertsGateUp, (c.gated ? 2 : 1) * c.intermediate));
      if (in_turn) {
        std::vector<int32_t>& map = parts.back().map;
        for (const int64_t first : {0, 1}) {
          for (int64_t i = 0; i < c.intermediate; ++i) map.push_back(static_cast<int32_t>(2 * i + first));
        }
      }
    } else {
      const Part gate = gguf_ ? Part::kExpertsGate : switched ? Part::kSwitchGate : Part::kExpertGate;
      const Part up = gguf_ ? Part::kExpertsUp : switched ? Part::kSwitchUp : Part::kExpertUp;
      if (c.gated) parts.push_back(slice(gate, c.intermediate));
      parts.push_back(slice(up, c.intermediate));
    }
    std::vector<Rows> gate_up, down(1);
    for (const Slice& part : parts) {
      QUIRE_ASSIGN(Rows more, rows(part, config_.hidden));
      gate_up.push_back(std::move(more));
    }
    const Part down_part = switched ? Part::kSwitchDown : stacked ? Part::kExpertsDown : Part::kExpertDown;
    QUIRE_ASSIGN(down[0], rows(slice(down_part, config_.hidden), c.intermediate));
    for (const Rows& part : gate_up) tensors.insert(part.tensor);
    tensors.insert(down[0].tensor);
    if (!gate_up.front().goes_with(gate_up.back())) {
      return unsupported("tensors '" + gate_up.front().name + "' and '" + gate_up.back().name +
                         "' are of different types; quire wants gate and up of an expert in one");
    }
    QUIRE_ASSIGN(Packed packed, pack(std::move(gate_up)));
    out.gate_up.push_back(std::move(packed));
    QUIRE_ASSIGN(packed, pack(std::move(down)));
    out.down.push_back(std::move(packed));
  }
  tensors.erase(nullptr);
  for (const weights::TensorRef* tensor : tensors) finished(*tensor);
  return {};
}

// GPT-OSS: [experts, in, out], with gate and up in turn.
Status Loader::load_transposed_experts(int64_t index, MoeWeights& out) {
  const MoeConfig& c = config_.moe;
  const auto transposed = [&](const weights::TensorRef& tensor, int64_t expert, int64_t n, int64_t k, bool in_turn) {
    std::vector<float> matrix(static_cast<size_t>(n * k)), row(static_cast<size_t>(n));
    for (int64_t i = 0; i < k; ++i) {
      weights::dequantise_row(tensor.dtype, tensor.data.data() + (expert * k + i) * row_bytes(tensor.dtype, n),
                              row.data(), n);
      for (int64_t j = 0; j < n; ++j) {
        const int64_t to = in_turn ? j % 2 * (n / 2) + j / 2 : j;
        matrix[static_cast<size_t>(to * k + i)] = row[static_cast<size_t>(j)];
      }
    }
    return matrix;
  };
  const int64_t inner = 2 * c.intermediate;
  QUIRE_ASSIGN(const weights::TensorRef* gate_up,
               require(name(Part::kExpertsGateUp, index), {c.experts, config_.hidden, inner}));
  QUIRE_ASSIGN(const weights::TensorRef* down,
               require(name(Part::kExpertsDown, index), {c.experts, c.intermediate, config_.hidden}));
  for (int64_t e = 0; e < c.experts; ++e) {
    QUIRE_ASSIGN(Packed packed, from_floats(transposed(*gate_up, e, inner, config_.hidden, true), inner, config_.hidden,
                                            narrowed(gate_up->dtype)));
    out.gate_up.push_back(std::move(packed));
    QUIRE_ASSIGN(packed, from_floats(transposed(*down, e, config_.hidden, c.intermediate, false), config_.hidden,
                                     c.intermediate, narrowed(down->dtype)));
    out.down.push_back(std::move(packed));
  }
  finished(*gate_up);
  finished(*down);
  return {};
}

Status Loader::load_expert_biases(int64_t index, MoeWeights& out) {
  const MoeConfig& c = config_.moe;
  const auto half = static_cast<size_t>(c.intermediate);
  std::vector<float> gate_up;
  if (gguf_) {
    QUIRE_ASSIGN(const std::vector<float> gates,
                 floats(name(Part::kExpertsGate, index) + ".bias", {c.experts, c.intermediate}));
    QUIRE_ASSIGN(const std::vector<float> ups,
                 floats(name(Part::kExpertsUp, index) + ".bias", {c.experts, c.intermediate}));
    for (size_t e = 0; e < static_cast<size_t>(c.experts); ++e) {
      for (const std::vector<float>* part : {&gates, &ups}) {
        const auto first = part->begin() + static_cast<ptrdiff_t>(e * half);
        gate_up.insert(gate_up.end(), first, first + static_cast<ptrdiff_t>(half));
      }
    }
    QUIRE_ASSIGN(out.down_bias, floats(name(Part::kExpertsDown, index) + ".bias", {c.experts, config_.hidden}));
  } else {
    QUIRE_ASSIGN(const std::vector<float> in_turn,
                 floats(name(Part::kExpertsGateUp, index) + "_bias", {c.experts, 2 * c.intermediate}));
    gate_up.resize(in_turn.size());
    for (size_t i = 0; i < in_turn.size(); ++i) {
      const size_t expert = i / (2 * half), j = i % (2 * half);
      gate_up[expert * 2 * half + j % 2 * half + j / 2] = in_turn[i];
    }
    QUIRE_ASSIGN(out.down_bias, floats(name(Part::kExpertsDown, index) + "_bias", {c.experts, config_.hidden}));
  }
  out.gate_up_bias = std::move(gate_up);
  return {};
}

Status Loader::load_shared_expert(int64_t index, MoeWeights& out) {
  const MoeConfig& c = config_.moe;
  const int64_t inner = c.shared_intermediate;
  std::vector<Slice> gate_up = {{name(Part::kSharedGate, index), inner}, {name(Part::kSharedUp, index), inner}};
  if (!c.gated) gate_up = {{name(Part::kSharedUp, index), inner}};
  if (!gguf_ && files_.family->has_part(Part::kSharedGateUp)) gate_up = {{name(Part::kSharedGateUp, index), 2 * inner}};
  QUIRE_ASSIGN(out.shared.gate_up, linear(gate_up, config_.hidden, config_.mlp_bias));
  QUIRE_ASSIGN(out.shared.down, linear({{name(Part::kSharedDown, index), config_.hidden}}, inner, config_.mlp_bias));
  if (c.shared_gate) {
    QUIRE_ASSIGN(out.shared_gate, linear({{name(Part::kSharedExpertGate, index), 1}}, config_.hidden, false));
  }
  return {};
}

Status Loader::load_per_layer_input(DecoderWeights& out) {
  const PerLayerInputConfig& c = config_.per_layer_input;
  const int64_t all = config_.layers * c.dim;
  QUIRE_ASSIGN(out.per_layer_embedding, matrix({name(Part::kPerLayerEmbedding, 0), c.vocab_size}, all));
  QUIRE_ASSIGN(out.per_layer_projection,
               linear({{name(Part::kPerLayerModelProjection, 0), all}}, config_.hidden, false));
  QUIRE_ASSIGN(out.per_layer_norm, norm(Part::kPerLayerNorm, 0, {c.dim}));
  return {};
}

}  // namespace quire::model
