// SPDX-License-Identifier: Apache-2.0
// A mixture of experts: the router, the experts, and a shared expert or an MLP beside them.
#include <algorithm>
#include <cmath>
#include <set>

#include "model/layers/feed_forward.h"
#include "model/load/loader.h"
#include "weights/quant.h"

namespace quire::model {
namespace {

// How the experts of a layer are stored: in tensors of their own, or stacked as [experts, rows, k].
struct ExpertSource {
  ExpertSource(const Loader& from, int64_t layer) : loader(from), index(layer) {
    const ExpertTensors& family = loader.files().family->experts;
    const bool hf = !loader.gguf(), dummy = loader.files().source->is_dummy();
    const std::string fused_name = loader.name(Part::kExpertsGateUp, index);
    const bool bare = dummy ? family.bare_names : loader.has(fused_name);
    const bool mlx = hf && loader.has(loader.name(Part::kSwitchUp, index) + ".weight");
    interleaved = hf && family.transposed;
    fused = interleaved || loader.has(fused_name + ".weight") || (hf && ((dummy && family.fused_gate_up) || bare));
    bare_names = fused && bare;
    stacked = !hf || fused || mlx;
    if (!hf) gate = Part::kExpertsGate, up = Part::kExpertsUp;
    if (stacked) down = Part::kExpertsDown;
    if (mlx) gate = Part::kSwitchGate, up = Part::kSwitchUp, down = Part::kSwitchDown;
  }

  Slice slice(Part part, int64_t expert, int64_t rows) const {
    Slice out{loader.name(part, index, expert), rows};
    if (stacked) out.expert = expert, out.experts = loader.config().moe.experts;
    out.bare = bare_names;
    return out;
  }

  std::vector<Slice> gate_up(int64_t expert) const {
    const MoeConfig& c = loader.config().moe;
    if (!fused && !c.gated) return {slice(up, expert, c.intermediate)};
    if (!fused) return {slice(gate, expert, c.intermediate), slice(up, expert, c.intermediate)};
    Slice both = slice(Part::kExpertsGateUp, expert, (c.gated ? 2 : 1) * c.intermediate);
    for (int64_t i = 0; interleaved && i < 2 * c.intermediate; ++i) {
      both.map.push_back(static_cast<int32_t>(2 * (i % c.intermediate) + i / c.intermediate));
    }
    return {both};
  }

  const Loader& loader;
  int64_t index;
  bool interleaved = false;  // rows of gate and up alternate
  bool fused = false;        // gate and up are one tensor
  bool bare_names = false;   // without ".weight"
  bool stacked = false;
  Part gate = Part::kExpertGate, up = Part::kExpertUp, down = Part::kExpertDown;
};

// Random experts of a tensor [experts, k, n]: an expert's gate is every other column, and its up are the others.
Status make_transposed_experts(Loader& loader, const std::string& tensor, DType type, int64_t n, int64_t k,
                               bool interleaved, ExpertMatrices& to) {
  const int64_t experts = loader.config().moe.experts, parts = interleaved ? 2 : 1;
  const int64_t first = loader.share().first_expert(experts), count = loader.share().num_experts(experts);
  for (int64_t e = first; e < first + count; ++e) {
    std::vector<Loader::Rows> rows;
    for (int64_t part = 0; part < parts; ++part) {
      const Loader::Made made{type, n / parts, k, e * k * n + part, parts, n};
      QUIRE_ASSIGN(Loader::Rows some, loader.made_rows(tensor, {experts, k, n}, made));
      rows.push_back(std::move(some));
    }
    QUIRE_ASSIGN(Packed packed, loader.pack(std::move(rows), Loader::next_of(to.matrices, count)));
    to.matrices.push_back(std::move(packed));
  }
  return {};
}

// GPT-OSS: [experts, in, out], with gate and up interleaved.
Status load_transposed_experts(Loader& loader, int64_t index, MoeWeights& out) {
  const MoeConfig& c = loader.config().moe;
  const int64_t hidden = loader.config().hidden;
  const int64_t first = loader.share().first_expert(c.experts), count = loader.share().num_experts(c.experts);
  const auto load = [&](Part part, int64_t n, int64_t k, bool interleaved, ExpertMatrices& to) -> Status {
    const DType made = loader.narrowed(loader.dummy_dtype());
    if (loader.makes(made))
      return make_transposed_experts(loader, loader.name(part, index), made, n, k, interleaved, to);
    QUIRE_ASSIGN(const weights::TensorRef* tensor, loader.require(loader.name(part, index), {c.experts, k, n}));
    for (int64_t e = first; e < first + count; ++e) {
      const auto read = [&](int64_t begin, int64_t end, float* columns) {
        std::vector<float> stored(static_cast<size_t>(n));
        for (int64_t i = begin; i < end; ++i, columns += n) {
          weights::dequantise_row(tensor->dtype, tensor->data.data() + (e * k + i) * row_bytes(tensor->dtype, n),
                                  stored.data(), n);
          for (int64_t j = 0; j < n; ++j) {
            columns[interleaved ? j % 2 * (n / 2) + j / 2 : j] = stored[static_cast<size_t>(j)];
          }
        }
      };
      const DType type = loader.narrowed(tensor->dtype);
      QUIRE_ASSIGN(Packed packed, loader.from_columns(n, k, type, read, Loader::next_of(to.matrices, count)));
      to.matrices.push_back(std::move(packed));
    }
    loader.finished(*tensor);
    return {};
  };
  QUIRE_TRY(load(Part::kExpertsGateUp, 2 * c.intermediate, hidden, true, out.gate_up));
  return load(Part::kExpertsDown, hidden, c.intermediate, false, out.down);
}

// Whether fp8 may stay fp8: the experts of a layer must have one type, and some may not be quantised.
bool all_fp8(const Loader& loader, const ExpertSource& source) {
  const MoeConfig& c = loader.config().moe;
  const int64_t hidden = loader.config().hidden;
  std::set<int64_t> gate_up, down;  // groups
  for (int64_t e = 0; e < c.experts; ++e) {
    for (const Slice& slice : source.gate_up(e)) gate_up.insert(loader.fp8_group(slice, hidden));
    down.insert(loader.fp8_group(source.slice(source.down, e, hidden), c.intermediate));
  }
  return gate_up.size() == 1 && down.size() == 1;
}

// Another rank has it.
void leave_expert(Loader& loader, const ExpertSource& source, int64_t expert) {
  if (source.stacked) return;
  for (const Slice& slice : source.gate_up(expert)) loader.leave(slice.prefix + ".");
  loader.leave(source.slice(source.down, expert, 1).prefix + ".");
}

Status load_experts(Loader& loader, int64_t index, MoeWeights& out) {
  const MoeConfig& c = loader.config().moe;
  const int64_t hidden = loader.config().hidden;
  const ExpertSource source(loader, index);
  if (source.interleaved && !loader.is_quantised_linear(loader.name(Part::kExpertsGateUp, index))) {
    return load_transposed_experts(loader, index, out);
  }
  const Loader::RowOptions options{.keep_fp8 = all_fp8(loader, source)};
  std::set<const weights::TensorRef*> tensors;
  const int64_t first = loader.share().first_expert(c.experts), count = loader.share().num_experts(c.experts);
  for (int64_t e = 0; e < c.experts; ++e) {
    if (e < first || e >= first + count) {
      leave_expert(loader, source, e);
      continue;
    }
    std::vector<Loader::Rows> gate_up, down(1);
    for (const Slice& slice : source.gate_up(e)) {
      QUIRE_ASSIGN(Loader::Rows rows, loader.rows(slice, hidden, options));
      tensors.insert(rows.tensor);
      gate_up.push_back(std::move(rows));
    }
    QUIRE_ASSIGN(down[0], loader.rows(source.slice(source.down, e, hidden), c.intermediate, options));
    tensors.insert(down[0].tensor);
    if (!gate_up.front().can_join(gate_up.back())) {
      return unsupported({"tensors '", gate_up.front().name, "' and '", gate_up.back().name,
                          "' have different types; gate and up of an expert must have the same type"});
    }
    QUIRE_ASSIGN(Packed packed, loader.pack(std::move(gate_up), Loader::next_of(out.gate_up.matrices, count)));
    out.gate_up.matrices.push_back(std::move(packed));
    QUIRE_ASSIGN(packed, loader.pack(std::move(down), Loader::next_of(out.down.matrices, count)));
    out.down.matrices.push_back(std::move(packed));
  }
  tensors.erase(nullptr);
  for (const weights::TensorRef* tensor : tensors) loader.finished(*tensor);
  return {};
}

Status load_expert_biases(Loader& loader, int64_t index, MoeWeights& out) {
  const MoeConfig& c = loader.config().moe;
  const std::vector<int64_t> shape = {c.experts, c.intermediate};
  const auto half = static_cast<size_t>(c.intermediate);
  const std::string suffix = loader.gguf() ? ".bias" : "_bias";
  std::vector<float> gate_up(static_cast<size_t>(c.experts) * 2 * half);
  if (loader.gguf()) {
    const std::string gate_name = loader.name(Part::kExpertsGate, index),
                      up_name = loader.name(Part::kExpertsUp, index);
    QUIRE_ASSIGN(const std::vector<float> gate, loader.floats(gate_name + suffix, shape));
    QUIRE_ASSIGN(const std::vector<float> up, loader.floats(up_name + suffix, shape));
    for (size_t i = 0; i < gate.size(); ++i) {
      const size_t at = i / half * 2 * half + i % half;
      gate_up[at] = gate[i];
      gate_up[at + half] = up[i];
    }
  } else {
    QUIRE_ASSIGN(const std::vector<float> interleaved,
                 loader.floats(loader.name(Part::kExpertsGateUp, index) + suffix, {c.experts, 2 * c.intermediate}));
    for (size_t i = 0; i < interleaved.size(); ++i) {
      const size_t expert = i / (2 * half), j = i % (2 * half);
      gate_up[expert * 2 * half + j % 2 * half + j / 2] = interleaved[i];
    }
  }
  QUIRE_ASSIGN(std::vector<float> down,
               loader.floats(loader.name(Part::kExpertsDown, index) + suffix, {c.experts, loader.config().hidden}));
  const auto own = [&](const std::vector<float>& all) {
    const int64_t columns = std::ssize(all) / c.experts;
    const auto begin = all.begin() + loader.share().first_expert(c.experts) * columns;
    return std::vector<float>(begin, begin + loader.share().num_experts(c.experts) * columns);
  };
  out.gate_up.bias = own(gate_up);
  out.down.bias = own(down);
  return {};
}

Status load_shared_expert(Loader& loader, int64_t index, MoeWeights& out) {
  const DecoderConfig& config = loader.config();
  const int64_t inner = config.moe.shared_intermediate;
  std::vector<Slice> gate_up = {{loader.name(Part::kSharedUp, index), inner}};
  if (config.moe.gated) gate_up.insert(gate_up.begin(), {loader.name(Part::kSharedGate, index), inner});
  if (!loader.gguf() && loader.files().family->experts.fused_shared) {
    gate_up = {{loader.name(Part::kSharedGateUp, index), 2 * inner}};
  }
  QUIRE_TRY(load_mlp(loader, std::move(gate_up), inner, loader.name(Part::kSharedDown, index), out.shared));
  if (config.moe.shared_gate) {
    QUIRE_ASSIGN(out.shared_gate, loader.linear(Part::kSharedExpertGate, index, 1, config.hidden));
  }
  return {};
}

// Gemma 4.
Status load_beside_mlp(Loader& loader, int64_t index, MoeWeights& out) {
  const int64_t hidden = loader.config().hidden;
  QUIRE_ASSIGN(out.router_norm.weight, loader.floats(loader.name(Part::kRouterScale, index), {hidden}));
  const double root = std::sqrt(static_cast<double>(hidden));
  for (float& w : out.router_norm.weight.host()) w = static_cast<float>(static_cast<double>(w) / root);
  QUIRE_ASSIGN(out.expert_scale, loader.floats(loader.name(Part::kExpertScale, index), {loader.config().moe.experts}));
  QUIRE_ASSIGN(out.mlp_out_norm, loader.norm(Part::kMlpOutNorm, index, {hidden}));
  QUIRE_ASSIGN(out.norm, loader.norm(Part::kExpertsNorm, index, {hidden}));
  QUIRE_ASSIGN(out.out_norm, loader.norm(Part::kExpertsOutNorm, index, {hidden}));
  return {};
}

// Each rank runs its experts; then all ranks have the outputs for all choices, or for some columns of them, and sum
// them as one rank does.
void run_own_experts(DecoderModel& model, const MoeScratch& scratch, MoeExpertsArgs experts) {
  const MoeConfig& c = model.config().moe;
  const Share& share = model.config().share;
  const int64_t count = experts.x.rows * c.k, width = share.width(c.experts);
  const std::span<const int32_t> ids(experts.ids, static_cast<size_t>(count));
  auto* own = static_cast<int32_t*>(scratch.own_ids.data);
  model.backend().own_ids({ids, width, share.rank, -1, own});
  experts.ids = own;
  const Tensor choices = scratch.choices.first_rows(count);
  if (!experts.gate_up.empty()) model.backend().moe_choices({experts, choices});
  if (model.scatters(choices)) {
    const int64_t columns = choices.cols / share.ranks;
    const Tensor some{scratch.some_columns.data, choices.dtype, count, columns, columns};
    const Tensor out = experts.out.columns(share.rank * columns, columns);
    model.scatter_rows(choices, ids, width, some);
    model.backend().moe_sum({some, experts.weights, c.k, out});
    return model.gather(out, experts.out);
  }
  model.gather_rows(choices, ids, width);
  model.backend().moe_sum({choices, experts.weights, c.k, experts.out});
}

// Chooses experts by router_x, runs them on x, and leaves their sum in scratch.out.
void run_experts(DecoderModel& model, const MoeWeights& weights, const MoeScratch& scratch, const Tensor& router_x,
                 const Tensor& x) {
  const MoeConfig& c = model.config().moe;
  weights.router.run(model.backend(), router_x, scratch.router);
  MoeRouteArgs route;
  route.logits = scratch.router;
  route.k = c.k;
  route.score = c.score;
  route.choice_bias = weights.choice_bias.data();
  route.groups = c.groups;
  route.groups_kept = c.groups_kept;
  route.group_score = c.group_score;
  route.normalise = c.normalise;
  route.sum_epsilon = c.sum_epsilon;
  route.scale = c.scale;
  route.jitter = c.jitter;
  route.expert_scale = weights.expert_scale.data();
  route.ids = static_cast<int32_t*>(scratch.ids.data);
  route.weights = scratch.weights.f32();
  model.backend().moe_route(route);

  MoeExpertsArgs experts;
  experts.x = x;
  experts.ids = static_cast<int32_t*>(scratch.ids.data);
  experts.weights = scratch.weights.f32();
  experts.k = c.k;
  experts.gated = c.gated;
  experts.gate_up = weights.gate_up.views;
  experts.down = weights.down.views;
  experts.gate_up_bias = weights.gate_up.bias_views;
  experts.down_bias = weights.down.bias_views;
  experts.activation = model.config().activation;
  experts.limit = c.limit;
  experts.out = scratch.out;
  const std::optional<MoeLora> lora = model.lora_of_experts(weights.site);
  if (lora) experts.lora = &*lora;
  if (model.config().share.split()) return run_own_experts(model, scratch, experts);
  model.backend().moe_experts(experts);
}

}  // namespace

MoeScratch take_moe_scratch(const DecoderModel& model, int64_t rows, ScratchAllocator& scratch) {
  const MoeConfig& c = model.config().moe;
  const int64_t hidden = model.config().hidden;
  const Share& share = model.config().share;
  MoeScratch out;
  out.router = scratch.take(rows, c.experts, DType::kF32);
  out.ids = scratch.take(rows, c.k, DType::kF32);
  out.weights = scratch.take(rows, c.k, DType::kF32);
  out.out = scratch.take(rows, hidden, model.activation());
  if (share.split()) {
    out.choices = scratch.take(rows * c.k, hidden, model.activation());
    if (!model.backend().host_memory()) {
      out.some_columns = scratch.take(rows * c.k, share.width(hidden), model.activation());
    }
    out.own_ids = scratch.take(rows, c.k, DType::kF32);
  }
  if (c.beside_mlp) out.normed = scratch.take(rows, hidden, model.activation());
  if (c.shared_intermediate > 0) {
    out.shared_gate_up = scratch.take(rows, (c.gated ? 2 : 1) * c.shared_intermediate, model.activation());
    if (share.split()) out.shared_all = scratch.take(rows, share.ranks * c.shared_intermediate, model.activation());
  }
  if (c.shared_gate) out.shared_gate = scratch.take(rows, 1, DType::kF32);
  return out;
}

Status load_moe(Loader& loader, int64_t index, MoeWeights& out) {
  const MoeConfig& c = loader.config().moe;
  QUIRE_ASSIGN(out.router, loader.linear(Part::kRouter, index, c.experts, loader.config().hidden, c.router_bias));
  if (c.choice_bias) {
    const std::string suffix = loader.gguf() ? ".bias" : "";
    QUIRE_ASSIGN(out.choice_bias, loader.floats(loader.name(Part::kChoiceBias, index) + suffix, {c.experts}));
  }
  QUIRE_TRY(load_experts(loader, index, out));
  if (c.expert_bias) QUIRE_TRY(load_expert_biases(loader, index, out));
  if (c.shared_intermediate > 0) QUIRE_TRY(load_shared_expert(loader, index, out));
  if (c.beside_mlp) QUIRE_TRY(load_beside_mlp(loader, index, out));
  return {};
}

bool run_moe(DecoderModel& model, const MoeWeights& weights, const MoeScratch& scratch, const Tensor& x,
             const Tensor& hidden, const LayerOutput& output) {
  const MoeConfig& c = model.config().moe;
  Backend& backend = model.backend();
  const Tensor& out = output.out;
  run_experts(model, weights, scratch, x, x);
  if (c.shared_intermediate == 0 && output.may_add) {
    backend.residual_add({scratch.out, hidden, model.config().residual_scale, hidden});
    return true;
  }
  if (c.shared_intermediate == 0) {
    backend.scale({scratch.out, 1.0f, {}, out});
    return false;
  }
  if (c.shared_gate) {
    weights.shared_gate.run(backend, x, scratch.shared_gate);
    backend.activation({scratch.shared_gate, Activation::kSigmoid, scratch.shared_gate});
  }
  run_mlp(model, weights.shared, c.shared_intermediate, c.gated, {x}, scratch.shared_gate_up, scratch.shared_all,
          {out});
  if (c.shared_gate) backend.scale({out, 1.0f, {scratch.shared_gate.f32(), static_cast<size_t>(out.rows)}, out});
  backend.residual_add({out, scratch.out, 1.0f, out});
  return false;
}

void add_experts_beside(DecoderModel& model, const MoeWeights& weights, const MoeScratch& scratch, const Tensor& hidden,
                        const Tensor& out) {
  const int64_t columns = model.config().hidden;
  model.norm(out, weights.mlp_out_norm, columns, out);
  // The router's input is in the place of the experts' output: the choice is made before they run.
  model.norm(hidden, weights.router_norm, columns, scratch.out);
  model.norm(hidden, weights.norm, columns, scratch.normed);
  run_experts(model, weights, scratch, scratch.out, scratch.normed);
  model.norm(scratch.out, weights.out_norm, columns, scratch.out);
  model.backend().residual_add({scratch.out, out, 1.0f, out});
}

}  // namespace quire::model
