// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts on a GPU. The host does not learn how many tokens an expert has, so grids have room for the most
// tiles that there may be.
#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/hopper/ops.h"
#include "backend/gpu/weight_layout.h"
#include "kernels/params/moe.h"

namespace quire::gpu {
namespace {

// (token, expert) choices that run at once: this bounds the memory between an expert's two products.
constexpr int64_t kMostChoices = 32768;
// Choices per expert, on average, from which on tiles have 64 rows instead of 16.
constexpr int64_t kManyChoices = 24;

// Experts of one shape, one after another in memory.
WeightParams experts_params(std::span<const PackedMatrix* const> experts) {
  const GpuMatrix& first = gpu_matrix(experts[0]);
  WeightParams w = weight_params(first);
  w.expert_stride = static_cast<int64_t>(first.bytes());
  for (size_t e = 0; e < experts.size(); ++e) {
    const GpuMatrix& m = gpu_matrix(experts[e]);
    QUIRE_CHECK(m.dtype() == first.dtype() && m.n() == first.n() && m.k() == first.k() && m.group == first.group);
    QUIRE_CHECK(m.data == static_cast<char*>(first.data) + static_cast<int64_t>(e) * w.expert_stride,
                "stack() puts experts one after another");
  }
  return w;
}

const float* biases_of(std::span<const float* const> biases, int64_t n) {
  if (biases.empty()) return nullptr;
  for (size_t e = 0; e < biases.size(); ++e) {
    QUIRE_CHECK(biases[e] == biases[0] + static_cast<int64_t>(e) * n, "experts' biases lie one after another");
  }
  return biases[0];
}

// Where the choices of a chunk are in scratch.
struct ChunkBuffers {
  int* counts;   // [experts]
  int* experts;  // [max_tiles]
  int* order;    // [max_tiles * tile_rows]
  Tensor both;   // gate and up, with adapters
  Tensor hidden;
  Tensor y;
};

}  // namespace

Status GpuBackend::stack(std::span<const PackedMatrix* const> experts) {
  if (experts.size() < 2) return {};
  const size_t bytes = gpu_matrix(experts[0]).bytes();
  const auto* const first = static_cast<const char*>(gpu_matrix(experts[0]).data);
  size_t adjacent = 0;
  while (adjacent < experts.size() && gpu_matrix(experts[adjacent]).data == first + adjacent * bytes) ++adjacent;
  if (adjacent == experts.size()) return {};
  QUIRE_ASSIGN(std::unique_ptr<Memory> block, device_->allocate(bytes * experts.size()));
  const std::shared_ptr<Memory> shared = std::move(block);
  auto* to = static_cast<char*>(shared->address());
  for (const PackedMatrix* expert : experts) {
    // This is the only place that changes a packed weight: its address, not its bits.
    auto& m = const_cast<GpuMatrix&>(gpu_matrix(expert));
    QUIRE_CHECK(m.bytes() == bytes, "experts of a layer have one shape and type");
    device_->copy(to, m.data, bytes);
    m.data = to;
    m.memory = shared;
    to += bytes;
  }
  return {};
}

void GpuBackend::moe_route(const MoeRouteArgs& args) {
  check(args);
  if (args.logits.rows == 0) return;
  const int64_t experts = args.logits.cols;
  QUIRE_CHECK(experts <= kMoeMaxExperts && args.k <= kMoeMaxChosen);
  MoeRouteParams p = {};
  p.stride = args.logits.stride;
  p.experts = static_cast<int>(experts);
  p.k = static_cast<int>(args.k);
  p.score = static_cast<int>(args.score);
  p.groups = static_cast<int>(args.groups);
  p.groups_kept = static_cast<int>(args.groups_kept);
  p.top_two = args.group_score == MoeGroupScore::kTopTwoSum;
  p.biased = args.choice_bias != nullptr;
  p.scaled = args.expert_scale != nullptr;
  p.normalise = args.normalise;
  p.sum_epsilon = args.sum_epsilon;
  p.scale = args.scale;
  p.jitter = args.jitter;
  launch(KernelId::kMoeRoute, p, {args.ids, args.weights, args.logits.data, args.choice_bias, args.expert_scale},
         {static_cast<uint32_t>(args.logits.rows)}, 32);
}

void GpuBackend::moe_experts(const MoeExpertsArgs& args) {
  check(args);
  run_experts(args, {});
}

void GpuBackend::moe_choices(const MoeChoicesArgs& args) {
  check(args);
  QUIRE_CHECK(args.out.dtype == args.experts.x.dtype);
  if (!args.experts.gate_up.empty()) run_experts(args.experts, args.out);
}

// With `choices`, the outputs go there and are not summed.
void GpuBackend::run_experts(const MoeExpertsArgs& args, const Tensor& choices) {
  if (args.x.rows == 0) return;
  const int64_t chunk = std::max<int64_t>(1, adapted_at_once(args, kMostChoices) / args.k);
  for (int64_t token = 0; token < args.x.rows; token += chunk) {
    MoeExpertsArgs part = args;
    MoeLora lora;
    if (args.lora != nullptr) {
      lora = *args.lora;
      lora.rows.first += token;
      part.lora = &lora;
    }
    const int64_t tokens = std::min(chunk, args.x.rows - token);
    part.x = args.x.some_rows(token, tokens);
    part.out = args.out.some_rows(token, tokens);
    part.ids += token * args.k;
    part.weights += token * args.k;
    moe_chunk(part, choices.data == nullptr ? Tensor{} : choices.some_rows(token * args.k, tokens * args.k));
  }
}

// What moe_chunk() takes, with tiles of the most rows.
size_t GpuBackend::moe_scratch(const WorkspaceLimits& sizes) const {
  if (sizes.experts == 0) return 0;
  const int64_t choices = std::min(sizes.tokens * sizes.chosen, std::max(kMostChoices, sizes.chosen));
  const size_t sorted = hopper::moe_scratch(*this, sizes, choices);
  const int64_t tiles = choices / kLinearFewRows + std::min(sizes.experts, choices);
  const int64_t ints = sizes.experts + tiles + choices + sizes.experts * kLinearManyRows + 64;
  return std::max(
      sorted, static_cast<size_t>(ints * 4 +
                                  choices * (sizes.expert_columns + 16) * info(sizes.activation).block_bytes + 1024));
}

void GpuBackend::moe_chunk(const MoeExpertsArgs& args, const Tensor& choices_out) {
  const DType type = args.x.dtype;
  const auto experts = static_cast<int64_t>(args.gate_up.size());
  const int64_t choices = args.x.rows * args.k, inner = gpu_matrix(args.down[0]).k();
  const WeightParams gate_up = experts_params(args.gate_up), down = experts_params(args.down);
  QUIRE_CHECK(gate_up.n == (args.gated ? 2 : 1) * inner && gate_up.k == args.x.cols && down.n == args.out.cols);
  const float* gate_up_bias = biases_of(args.gate_up_bias, gate_up.n);
  const float* down_bias = biases_of(args.down_bias, down.n);
  if (hopper::moe_experts(*this, args, {gate_up, gate_up_bias}, {down, down_bias}, choices_out)) return;

  const bool many = type != DType::kF32 && choices >= kManyChoices * experts;
  const int64_t tile_rows = many ? kLinearManyRows : kLinearFewRows;
  const int64_t tiles = choices / tile_rows + std::min(experts, choices);
  const int64_t size = info(type).block_bytes;
  const bool adapted = args.lora != nullptr;
  const int64_t inner_stride = round_up(inner, 8), out_stride = round_up(args.out.cols, 8);
  const int64_t both_stride = adapted ? round_up(int64_t{gate_up.n}, 8) : 0;
  const int64_t ints = round_up(experts + tiles + tiles * tile_rows, 64);
  auto* base = static_cast<char*>(scratch_.moe.grow(
      static_cast<size_t>(ints * 4 + choices * (both_stride + inner_stride + out_stride) * size + 512)));
  ChunkBuffers s;
  s.counts = reinterpret_cast<int*>(base);
  s.experts = s.counts + experts;
  s.order = s.experts + tiles;
  char* rows = base + ints * 4;
  s.both = {rows, type, choices, gate_up.n, both_stride};
  rows += choices * both_stride * size;
  s.hidden = {rows, type, choices, inner, inner_stride};
  rows += round_up(choices * inner_stride * size, 256);
  s.y = choices_out.data != nullptr ? choices_out : Tensor{rows, type, choices, args.out.cols, out_stride};

  MoeOrderParams order = {};
  order.choices = static_cast<int>(choices);
  order.experts = static_cast<int>(experts);
  order.tile_rows = static_cast<int>(tile_rows);
  order.max_tiles = static_cast<int>(tiles);
  const Grid each_expert = {static_cast<uint32_t>(experts)};
  launch(KernelId::kMoeCount, order, {s.counts, args.ids}, each_expert, kMoeThreads);
  launch(KernelId::kMoePlace, order, {s.order, s.experts, s.counts, args.ids}, each_expert, kMoeThreads);

  const auto product = [&](const Tensor& x, int64_t of_row, const WeightParams& weight, const PackedMatrix* first,
                           const float* bias, const Tensor& out, int epilogue) {
    LinearParams p = {};
    p.weight = weight;
    p.last.out_stride = out.stride;
    p.last.epilogue = type == DType::kF32 && epilogue == kLinearStore ? static_cast<int>(kLinearStoreF32) : epilogue;
    p.last.activation = static_cast<int>(args.activation);
    p.last.biased = bias != nullptr;
    p.last.columns = static_cast<int>(out.cols);
    p.last.limit = args.limit;
    p.x_stride = x.stride;
    p.m = static_cast<int>(choices);
    p.aligned = on_16_bytes(x);
    p.tiles = static_cast<int>(grid_div(out.cols, epilogue == kLinearGated ? 8 : 16));
    p.simdgroups = 4;
    p.tile_rows = static_cast<int>(tile_rows);
    p.choices = static_cast<int>(of_row);
    const bool any = first->dtype() != type, any_few = any && !many && type != DType::kF32;
    const KernelId kernel = type == DType::kF32 ? KernelId::kMoeLinearF32
                            : many              ? (any ? KernelId::kMoeLinearAnyMany : KernelId::kMoeLinearMany)
                                                : (any ? KernelId::kMoeLinearAnyFew : KernelId::kMoeLinearFew);
    const uint32_t across = type == DType::kF32 ? grid_div(out.cols, 32) : grid_div(p.tiles, any_few ? 1 : 4);
    launch({kernel, type}, p, {out.data, x.data, gpu_matrix(first).data, bias, s.order, s.experts},
           {across, static_cast<uint32_t>(tiles)}, any_few ? kLinearAnyThreads : kLinearThreads);
  };
  if (!adapted) {
    product(args.x, args.k, gate_up, args.gate_up[0], gate_up_bias, s.hidden,
            args.gated ? kLinearGated : kLinearActivated);
    product(s.hidden, 1, down, args.down[0], down_bias, s.y, kLinearStore);
  } else {
    const AdaptedChoices sorted = sort_adapted(args, nullptr, choices);
    product(args.x, args.k, gate_up, args.gate_up[0], gate_up_bias, s.both, kLinearStore);
    adapt_choices(*args.lora, sorted, false, args.x, args.k, s.both);
    activate_experts(args, s.both, s.hidden);
    product(s.hidden, 1, down, args.down[0], down_bias, s.y, kLinearStore);
    adapt_choices(*args.lora, sorted, true, s.hidden, 1, s.y);
  }
  if (choices_out.data == nullptr) moe_combine(args, s.y, nullptr);
}

void GpuBackend::activate_experts(const MoeExpertsArgs& args, const Tensor& both, const Tensor& hidden) {
  if (!args.gated) return activation({both, args.activation, hidden});
  glu({both.columns(0, hidden.cols), both.columns(hidden.cols, hidden.cols), args.activation, hidden, args.limit});
}

void GpuBackend::moe_sum(const MoeSumArgs& args) {
  check(args);
  if (args.out.rows == 0) return;
  MoeExpertsArgs experts;
  experts.x = args.out;  // for the rows and the type
  experts.weights = args.weights;
  experts.k = args.k;
  experts.out = args.out;
  moe_combine(experts, args.choices, nullptr);
}

void GpuBackend::moe_combine(const MoeExpertsArgs& args, const Tensor& y, const int* places) {
  MoeCombineParams p = {};
  p.y_stride = y.stride;
  p.out_stride = args.out.stride;
  p.k = static_cast<int>(args.k);
  p.columns = static_cast<int>(args.out.cols);
  p.sorted = places != nullptr;
  p.aligned = on_16_bytes(y) && on_16_bytes(args.out) && args.out.cols % 4 == 0;
  launch({KernelId::kMoeCombine, args.x.dtype}, p, {args.out.data, y.data, args.weights, places},
         {static_cast<uint32_t>(args.x.rows), grid_div(args.out.cols, 4 * kMoeThreads)}, kMoeThreads);
}

}  // namespace quire::gpu
