// SPDX-License-Identifier: Apache-2.0
// Products by the kernels of sm_90a.
#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/hopper/linear_plan.h"
#include "backend/gpu/hopper/ops.h"

namespace quire::gpu::hopper {
namespace {

HopperLinearParams params_of(const LinearProduct& product) {
  const LinearArgs& args = product.args;
  HopperLinearParams p = {};
  p.m = static_cast<int>(args.x.rows);
  p.n = static_cast<int>(product.weight.n());
  p.k = static_cast<int>(product.weight.k());
  p.x_stride = static_cast<int>(args.x.stride);
  p.out_stride = static_cast<int>(args.out.stride);
  p.residual_stride = static_cast<int>(args.residual.stride);
  p.epilogue = linear_epilogue(args);  // HopperEpilogue begins with the same values
  p.activation = args.gated != nullptr ? static_cast<int>(args.gated->activation) : 0;
  p.limit = args.gated != nullptr ? args.gated->limit : 0.0f;
  p.normed = args.norm != nullptr;
  p.biased = args.bias != nullptr;
  p.eps = args.norm != nullptr ? args.norm->eps : 0.0f;
  p.scale = args.residual_scale;
  return p;
}

HopperLoraParams params_of(const LoraArgs* lora) {
  HopperLoraParams p = {};
  if (lora == nullptr) return p;
  p.slot_bytes = lora->memory.slot_bytes;
  p.t_stride = lora->t.stride;
  p.site = static_cast<int>(lora->site);
  p.first = static_cast<int>(lora->rows.first);
  p.runs = static_cast<int>(lora->rows.runs.size());
  return p;
}

// Where linear_tall computes the first product itself: the sums of its parts, and counters.
struct LoraScratch {
  void *parts = nullptr, *counters = nullptr;
};
LoraScratch join_first_product(GpuBackend& gpu, const HopperTallPlan& plan, int k, const LoraArgs& lora,
                               HopperLoraParams& p) {
  const auto groups = static_cast<int>(grid_div(lora.rank, kLoraGroup));
  if (!hopper_tall_joins_lora(plan, k, p.runs, groups)) return {};
  p.groups = groups;
  const auto floats = static_cast<size_t>(hopper_lora_first_floats(p.runs * groups));
  const auto counters = static_cast<size_t>(hopper_lora_first_counters(p.runs * groups));
  return {gpu.scratch().products.grow(floats * sizeof(float)), gpu.scratch().arrivals.grow(counters * sizeof(int32_t))};
}

// Bytes of shared memory of linear_tall, with the adapters' parts of a tile where there is room for them. A wide tile
// has fewer stages then.
int tall_memory(HopperTallParams& p, const HopperTallPlan& plan, const LoraArgs* lora) {
  const auto with = [&](int stages, int more) { return stages * plan.stage_bytes + kHopperTallBeside + more; };
  p.stages = plan.stages;
  if (lora == nullptr) return with(p.stages, 0);
  const int room = hopper_lora_room(plan.lora_items);
  const i64 rows_of_t = plan.rows * lora->rank * 4;
  for (const i64 more : {room + rows_of_t, i64{room}}) {
    if (with(plan.fewest_stages, 0) + more > kHopperMostShared) continue;
    p.lora.room = 1;
    p.lora.staged_ranks = more > room ? static_cast<int>(lora->rank) : 0;
    while (with(p.stages, 0) + more > kHopperMostShared) p.stages--;
    return with(p.stages, static_cast<int>(more));
  }
  return with(p.stages, 0);
}

// 16-bit activations, of which no more than so many rows, on the boundaries that the kernels' loads need.
bool fits(const GpuBackend& gpu, const LinearProduct& product, int64_t most_rows) {
  const LinearArgs& args = product.args;
  return gpu.hopper() && args.x.rows <= most_rows && product.type != DType::kF32 && on_16_bytes(args.x) &&
         on_16_bytes(args.out.data);
}

// The norm of x, in a launch of its own.
Tensor normed_rows(GpuBackend& gpu, const LinearProduct& product) {
  const LinearArgs& args = product.args;
  const int64_t rows = args.x.rows, k = args.x.cols;
  const auto bytes = static_cast<size_t>(rows * k * info(product.type).block_bytes);
  const Tensor normed = {gpu.scratch().activations.grow(bytes), product.type, rows, k, k};
  gpu.rms_norm({args.x, args.norm->weight, k, args.norm->eps, normed});
  return normed;
}

// ---- one wave of tiles ----

HopperTallPlan tall_plan(const GpuBackend& gpu, const LinearProduct& product) {
  if (!fits(gpu, product, kHopperTallRows) || product.weight.dtype() != product.type) return {};
  if (reinterpret_cast<uintptr_t>(product.args.residual.data) % 8 != 0) return {};
  return hopper_tall_plan(params_of(product), product.args.lora != nullptr, gpu.device().info().compute_units);
}

// Describes W and x for the copy engine. False where the driver cannot.
bool map_operands(GpuBackend& gpu, const LinearProduct& product, const HopperTallPlan& plan, HopperTallParams& p) {
  const GpuMatrix& w = product.weight;
  const Tensor& x = product.args.x;
  return gpu.device().map_rows({w.data, w.n(), w.k(), w.k(), plan.w_halves, plan.w_box, plan.w_box_halves}, &p.w) &&
         gpu.device().map_rows({x.data, x.rows, w.k(), x.stride, 1, plan.rows, 1}, &p.x);
}

bool tall_serves(GpuBackend& gpu, const LinearProduct& product) {
  const HopperTallPlan plan = tall_plan(gpu, product);
  HopperTallParams p;
  return plan.kernel != KernelId::kNone && map_operands(gpu, product, plan, p);
}

bool tall_beats_library(GpuBackend& gpu, const LinearProduct& product) {
  const HopperTallPlan plan = tall_plan(gpu, product);
  HopperTallParams p;
  return plan.beats_library && map_operands(gpu, product, plan, p);
}

void run_tall(GpuBackend& gpu, const LinearProduct& product) {
  const LinearArgs& args = product.args;
  const HopperTallPlan plan = tall_plan(gpu, product);
  HopperTallParams p = {};
  p.linear = params_of(product);
  p.lora = params_of(args.lora);
  p.rows = plan.rows;
  p.layers = plan.layers;
  p.width = plan.w_rows;
  const LoraArgs none, &lora = args.lora != nullptr ? *args.lora : none;
  const LoraScratch scratch = join_first_product(gpu, plan, p.linear.k, lora, p.lora);
  if (p.lora.runs > 0 && p.lora.groups == 0) {
    run_first_product(gpu, product);
    p.lora.early = 1;
  }
  const int memory = tall_memory(p, plan, args.lora);
  QUIRE_CHECK(map_operands(gpu, product, plan, p), "tall_serves() has mapped these operands");
  const int each = static_cast<int>(grid_div(plan.grid, plan.launches));
  const int threads = p.lora.groups > 0 ? plan.lora_first_threads : p.lora.runs > 0 ? plan.lora_threads : plan.threads;
  for (; p.first_tile < plan.grid; p.first_tile += each) {
    gpu.launch({plan.kernel, product.type}, p,
               {args.out.data, args.bias, args.residual.data, lora.memory.data, lora.rows.rows.data(),
                lora.rows.runs.data(), lora.t.data, args.x.data, scratch.parts, scratch.counters},
               {static_cast<uint32_t>(std::min(each, plan.grid - p.first_tile))}, static_cast<uint32_t>(threads),
               static_cast<uint32_t>(memory));
  }
}

// ---- adapters ----

}  // namespace

bool finishes_with_adapters(const LinearProduct& product) {
  const LinearArgs& args = product.args;
  const int64_t n = args.gated != nullptr ? product.weight.n() / 2 : product.weight.n();
  // The first product must be the one that is complete and scaled (GpuBackend::lora()).
  const bool whole = product.weight.k() % 16 == 0 && on_16_bytes(args.x) && on_16_bytes(args.lora->t);
  return whole && args.x.rows <= kHopperTallRows && product.type != DType::kF32 && args.norm == nullptr &&
         args.columns.empty() && linear_epilogue(args) != kLinearStoreF32 && n % 8 == 0 && args.out.stride % 2 == 0 &&
         args.residual.stride % 2 == 0 && on_16_bytes(args.out.data) &&
         reinterpret_cast<uintptr_t>(args.residual.data) % 8 == 0;
}

void finish_with_adapters(GpuBackend& gpu, const LinearProduct& product, const Tensor& sums) {
  const LinearArgs& args = product.args;
  const LoraArgs& lora = *args.lora;
  HopperLoraFinishParams p = {};
  p.linear = params_of(product);
  p.lora = params_of(args.lora);
  p.lora.room = 1;
  const int64_t rows_of_t = std::min<int64_t>(sums.rows, 64) * lora.rank * 4;
  if (rows_of_t <= hopper_lora_room(kHopperLoraItems)) p.lora.staged_ranks = static_cast<int>(lora.rank);
  p.y_stride = sums.stride;
  gpu.launch({KernelId::kHopperLoraFinish, product.type}, p,
             {args.out.data, sums.data, args.bias, args.residual.data, lora.memory.data, lora.rows.rows.data(),
              lora.rows.runs.data(), lora.t.data},
             {grid_div(args.out.cols, args.gated != nullptr ? 32 : 64), grid_div(sums.rows, 64)},
             kHopperLoraFinishThreads,
             static_cast<uint32_t>(kHopperLoraFinishMemory + (p.lora.staged_ranks > 0 ? rows_of_t : 0)));
}

namespace {

// ---- a norm, and then narrow tiles ----

// The kernel for few rows computes the norm itself, but streams a large weight more slowly than the narrow tiles do.
constexpr int64_t kNormFirst = int64_t{1} << 23;  // elements of the weight

LinearProduct without_norm(const LinearProduct& product, LinearArgs& args) {
  args = product.args;
  args.norm = nullptr;
  args.x.data = args.out.data;  // where the norm will be is not known yet; the plan only asks for 16 bytes
  args.x.dtype = product.type;
  args.x.stride = args.x.cols;
  return {args, product.weight, product.type};
}

bool norm_and_tall_serve(GpuBackend& gpu, const LinearProduct& product) {
  const GpuMatrix& w = product.weight;
  if (product.args.norm == nullptr || w.n() * w.k() < kNormFirst || w.k() % 8 != 0) return false;
  LinearArgs args;
  return tall_serves(gpu, without_norm(product, args));
}

// The norm, and then the product by `run`.
void run_after_norm(GpuBackend& gpu, const LinearProduct& product, void (*run)(GpuBackend&, const LinearProduct&)) {
  LinearArgs args;
  const LinearProduct next = without_norm(product, args);
  args.x = normed_rows(gpu, product);
  run(gpu, next);
}

void run_norm_and_tall(GpuBackend& gpu, const LinearProduct& product) {
  run_after_norm(gpu, product, run_tall);
}

// ---- few rows ----

void launch_planned(GpuBackend& gpu, const LinearProduct& product, const HopperLinearPlan& plan, const auto& params,
                    const void* x) {
  const LinearArgs& args = product.args;
  gpu.launch({plan.kernel, product.type}, params,
             {args.out.data, x, product.weight.data, args.bias, args.norm != nullptr ? args.norm->weight : nullptr,
              args.residual.data},
             {static_cast<uint32_t>(plan.grid)}, static_cast<uint32_t>(plan.threads),
             static_cast<uint32_t>(plan.dynamic_memory));
}

bool few_serves(GpuBackend& gpu, const LinearProduct& product) {
  if (!fits(gpu, product, kHopperFewRows) || product.weight.dtype() != product.type) return false;
  HopperLinearParams p = params_of(product);
  return hopper_linear_plan(p, gpu.device().info().compute_units).kernel != KernelId::kNone;
}

void run_few(GpuBackend& gpu, const LinearProduct& product) {
  HopperLinearParams p = params_of(product);
  const HopperLinearPlan plan = hopper_linear_plan(p, gpu.device().info().compute_units);
  launch_planned(gpu, product, plan, p, product.args.x.data);
}

// ---- a norm, and then few rows: where the rows do not fit the memory of the kernel that computes it itself ----

bool norm_and_few_serve(GpuBackend& gpu, const LinearProduct& product) {
  if (product.args.norm == nullptr || product.weight.k() % 8 != 0) return false;
  LinearArgs args;
  return few_serves(gpu, without_norm(product, args));
}

void run_norm_and_few(GpuBackend& gpu, const LinearProduct& product) {
  run_after_norm(gpu, product, run_few);
}

// ---- quantised weights, few rows ----

// The kernel computes the norm of one or two rows, where that fits its memory; that of more rows comes before it.
HopperLinearPlan quantised_few_plan(const GpuBackend& gpu, const LinearProduct& product, HopperQuantisedParams& p) {
  p = {};
  p.linear = params_of(product);
  p.weight = weight_params(product.weight);
  const int normed = product.args.norm != nullptr && product.args.x.rows <= kHopperQuantisedNormRows;
  for (p.linear.normed = normed; p.linear.normed >= 0; p.linear.normed--) {
    const HopperLinearPlan plan = hopper_quantised_few_plan(p, gpu.device().info().compute_units);
    if (plan.kernel != KernelId::kNone) return plan;
  }
  return {};
}

bool quantised_few_serves(GpuBackend& gpu, const LinearProduct& product) {
  HopperQuantisedParams p;
  return is_quantised(product.weight.dtype()) && fits(gpu, product, kHopperQuantisedFewRows) &&
         quantised_few_plan(gpu, product, p).kernel != KernelId::kNone;
}

void run_quantised_few(GpuBackend& gpu, const LinearProduct& product) {
  const LinearArgs& args = product.args;
  const int64_t k = product.weight.k();
  HopperQuantisedParams p;
  const HopperLinearPlan plan = quantised_few_plan(gpu, product, p);
  const void* x = args.x.data;
  if (args.norm != nullptr && p.linear.normed == 0) {
    x = normed_rows(gpu, product).data;
    p.linear.x_stride = static_cast<int>(k);
  }
  launch_planned(gpu, product, plan, p, x);
}

// ---- quantised weights, more rows ----

HopperQuantisedWidePlan wide_plan(const GpuBackend& gpu, const LinearProduct& product, HopperQuantisedWideParams& p) {
  const LinearArgs& args = product.args;
  if (!is_quantised(product.weight.dtype()) || !fits(gpu, product, kHopperQuantisedWideRows)) return {};
  if (reinterpret_cast<uintptr_t>(args.residual.data) % 16 != 0) return {};
  p = {};
  p.product.linear = params_of(product);
  p.product.linear.normed = 0;
  p.product.weight = weight_params(product.weight);
  return hopper_quantised_wide_plan(p, gpu.device().info().compute_units);
}

bool map_rows_of_x(GpuBackend& gpu, const LinearProduct& product, HopperQuantisedWideParams& p) {
  const Tensor& x = product.args.x;
  return gpu.device().map_rows({x.data, x.rows, x.cols, x.stride, 1, p.rows, 1}, &p.x);
}

bool wide_serves(GpuBackend& gpu, const LinearProduct& product) {
  HopperQuantisedWideParams p;
  if (product.args.norm != nullptr) {
    LinearArgs args;
    return product.weight.k() % 8 == 0 && wide_serves(gpu, without_norm(product, args));
  }
  return wide_plan(gpu, product, p).launch.kernel != KernelId::kNone && map_rows_of_x(gpu, product, p);
}

void run_wide(GpuBackend& gpu, const LinearProduct& product) {
  const LinearArgs& args = product.args;
  if (args.norm != nullptr) return run_after_norm(gpu, product, run_wide);
  HopperQuantisedWideParams p;
  const HopperQuantisedWidePlan plan = wide_plan(gpu, product, p);
  QUIRE_CHECK(map_rows_of_x(gpu, product, p), "wide_serves() has mapped these rows");
  gpu.launch({plan.launch.kernel, product.type}, p,
             {args.out.data, product.weight.data, args.bias, args.residual.data, nullptr},
             {static_cast<uint32_t>(plan.launch.grid), static_cast<uint32_t>(plan.parts)},
             static_cast<uint32_t>(plan.launch.threads), static_cast<uint32_t>(plan.launch.dynamic_memory));
}

}  // namespace

const LinearPath kTallBeforeLibrary = {tall_beats_library, run_tall};
const LinearPath kTall = {tall_serves, run_tall};
const LinearPath kNormAndTall = {norm_and_tall_serve, run_norm_and_tall};
const LinearPath kFewRows = {few_serves, run_few};
const LinearPath kNormAndFew = {norm_and_few_serve, run_norm_and_few};
const LinearPath kQuantisedWide = {wide_serves, run_wide};
const LinearPath kQuantisedFew = {quantised_few_serves, run_quantised_few};

}  // namespace quire::gpu::hopper
