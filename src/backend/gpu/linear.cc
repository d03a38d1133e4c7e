// SPDX-License-Identifier: Apache-2.0
// linear on a GPU: the list of paths, and those that every GPU has.
#include "backend/gpu/linear.h"

#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/hopper/ops.h"
#include "backend/gpu/linear_policy.h"
#include "kernels/params/linear.h"

namespace quire::gpu {
namespace {

// The type of the activations that are multiplied. After a norm it is the output's type, or if that is F32, what the
// weight was packed for.
DType product_type(const LinearArgs& args) {
  if (args.norm == nullptr) return args.x.dtype;
  return args.out.dtype == DType::kF32 ? gpu_matrix(args.weight).activation : args.out.dtype;
}

void check_linear(const LinearArgs& args) {
  check(args);
  QUIRE_CHECK(args.out.dtype == DType::kF32 || args.out.dtype == product_type(args));
  QUIRE_CHECK(args.gated == nullptr || args.out.dtype == product_type(args));
}

LinearLast last_of(const LinearArgs& args) {
  LinearLast last = {};
  last.out_stride = args.out.stride;
  last.residual_stride = args.residual.stride;
  last.epilogue = linear_epilogue(args);
  last.activation = args.gated != nullptr ? static_cast<int>(args.gated->activation) : 0;
  last.biased = args.bias != nullptr;
  last.columns = static_cast<int>(args.out.cols);
  last.scale = args.residual_scale;
  last.limit = args.gated != nullptr ? args.gated->limit : 0.0f;
  return last;
}

// ---- x whose columns stand in another order than the weight's ----

bool is_reordered(GpuBackend&, const LinearProduct& product) {
  return !product.args.columns.empty();
}

// The norm first, then the columns in the weight's order, then the product.
void run_reordered(GpuBackend& gpu, const LinearProduct& product) {
  const LinearArgs& args = product.args;
  const int64_t rows = args.x.rows, size = info(product.type).block_bytes;
  const auto taken = static_cast<int64_t>(args.columns.size());
  const int64_t stride = round_up(taken, 8), normed_stride = round_up(args.x.cols, 8);
  auto* base =
      static_cast<char*>(gpu.scratch().activations.grow(static_cast<size_t>(rows * (stride + normed_stride) * size)));
  LinearArgs next = args;
  if (args.norm != nullptr) {
    next.x = {base + rows * stride * size, product.type, rows, args.x.cols, normed_stride};
    gpu.rms_norm({args.x, args.norm->weight, args.x.cols, args.norm->eps, next.x});
    next.norm = nullptr;
  }
  const Tensor gathered = {base, product.type, rows, taken, stride};
  gpu.gather_columns({next.x, args.columns, gathered});
  next.x = gathered;
  next.columns = {};
  gpu.linear(next);
}

// ---- the vendor's library ----

// Whether out has the sums themselves, without a bias, adapters, a gate or a residual.
bool stores_sums(const LinearArgs& args) {
  const LinearEpilogue epilogue = linear_epilogue(args);
  if (args.lora != nullptr) return false;
  return epilogue == kLinearStoreF32 || (epilogue == kLinearStore && args.bias == nullptr);
}

bool library_serves(GpuBackend& gpu, const LinearProduct& product) {
  const LinearArgs& args = product.args;
  const GpuMatrix& w = product.weight;
  const DType type = product.type;
  if (args.x.rows < (w.dtype() == type ? kLibraryRows : kLibraryRowsQuantised)) return false;
  if (type == DType::kF32 || args.norm != nullptr || w.k() % 8 != 0 || !on_16_bytes(args.x)) return false;
  // The library's own results must start on 16 bytes, too.
  if (stores_sums(args) ? !on_16_bytes(args.out) : w.n() % 8 != 0) return false;
  const int64_t part = library_rows(w, type);
  return gpu.device().library_serves(type, part, w.k()) &&
         (w.n() % part == 0 || gpu.device().library_serves(type, w.n() % part, w.k()));
}

// The library stores sums as they are; what follows them (a bias, a gate, a residual) is a launch of its own.
void run_library(GpuBackend& gpu, const LinearProduct& product) {
  const LinearArgs& args = product.args;
  const GpuMatrix& w = product.weight;
  const DType type = product.type;
  const bool plain = w.dtype() == type;
  const int64_t rows = args.x.rows, n = w.n(), k = w.k(), part = library_rows(w, type), size = info(type).block_bytes;
  const LinearLast last = last_of(args);
  const bool stored = stores_sums(args);
  if (args.lora != nullptr) run_first_product(gpu, product);
  const int64_t sums_bytes = stored ? 0 : round_up(rows * n * size, 256);
  auto* base = static_cast<char*>(gpu.scratch().products.grow(
      static_cast<size_t>(std::max<int64_t>(1, sums_bytes + (plain ? 0 : part * k * size)))));
  const Tensor sums = stored ? args.out : Tensor{base, type, rows, n, n};
  for (int64_t first = 0; first < n; first += part) {
    const int64_t count = std::min(part, n - first);
    const void* weight = w.data;
    if (!plain) {
      const Tensor dequantised = {base + sums_bytes, type, count, k, k};
      gpu.dequantise_rows(w, first, dequantised);
      weight = dequantised.data;
    }
    gpu.library_product({args.x.data, weight, sums.columns(first, count).data, type, sums.dtype, rows, count, k,
                         args.x.stride, sums.stride});
  }
  if (stored && args.bias == nullptr) return;
  if (args.lora != nullptr) return hopper::finish_with_adapters(gpu, product, sums);
  LinearFinishParams p = {};
  p.last = last;
  p.y_stride = sums.stride;
  p.m = static_cast<int>(rows);
  p.aligned = on_16_bytes(sums) && last.columns % 4 == 0;
  p.plain_silu = p.aligned != 0 && on_16_bytes(args.out) && args.gated != nullptr && args.bias == nullptr &&
                 args.gated->activation == Activation::kSilu && !(args.gated->limit > 0) && last.columns % 8 == 0;
  const int each = p.plain_silu != 0 ? 8 : 4;  // columns per thread
  gpu.launch({KernelId::kLinearFinish, type}, p, {args.out.data, sums.data, args.bias, args.residual.data},
             {static_cast<uint32_t>(rows), grid_div(last.columns, each * kLinearThreads)}, kLinearThreads);
}

// ---- the portable kernels: few rows (16) or many (64) in a tile, every type of weight ----

bool always(GpuBackend&, const LinearProduct&) {
  return true;
}

void run_portable(GpuBackend& gpu, const LinearProduct& product) {
  const LinearArgs& args = product.args;
  const GpuMatrix& w = product.weight;
  const DType type = product.type;
  const int64_t rows = args.x.rows;
  LinearParams p = {};
  p.weight = weight_params(w);
  p.last = last_of(args);
  p.x_stride = args.x.stride;
  p.m = static_cast<int>(rows);
  p.normed = args.norm != nullptr;
  p.aligned = on_16_bytes(args.x);
  p.tiles = static_cast<int>(grid_div(args.out.cols, args.gated != nullptr ? 8 : 16));
  p.choices = 1;
  p.eps = args.norm != nullptr ? args.norm->eps : 0.0f;
  const auto run = [&](KernelId kernel, Grid grid, int threads) {
    gpu.launch({kernel, type}, p,
               {args.out.data, args.x.data, w.data, args.bias, args.norm != nullptr ? args.norm->weight : nullptr,
                args.residual.data},
               grid, static_cast<uint32_t>(threads));
  };
  if (type == DType::kF32) {
    return run(KernelId::kLinearF32, {grid_div(args.out.cols, 32), grid_div(rows, kLinearFloatRows)}, kLinearThreads);
  }
  const bool plain = w.dtype() == type;
  if (rows > kLinearFewRows) {
    QUIRE_CHECK(args.norm == nullptr, "only products of few rows are joined with a norm");
    return run(plain ? KernelId::kLinearMany : KernelId::kLinearAnyMany,
               {grid_div(p.tiles, 4), grid_div(rows, kLinearManyRows)}, kLinearThreads);
  }
  if (!plain) return run(KernelId::kLinearAnyFew, {static_cast<uint32_t>(p.tiles), 1}, kLinearAnyThreads);
  // Where there are few tiles, threadgroups get few of them, so that every part of the chip has some.
  p.simdgroups = 4;
  while (p.simdgroups > 1 && p.tiles < 2 * p.simdgroups * gpu.device().info().compute_units) p.simdgroups /= 2;
  run(KernelId::kLinearFew, {grid_div(p.tiles, p.simdgroups), 1}, 32 * p.simdgroups);
}

// ---- which path runs ----

constexpr LinearPath kReordered = {is_reordered, run_reordered};
constexpr LinearPath kLibrary = {library_serves, run_library};
constexpr LinearPath kPortable = {always, run_portable};

const LinearPath* const kPaths[] = {
    &kReordered,    &hopper::kTallBeforeLibrary, &hopper::kQuantisedFew, &hopper::kQuantisedWide, &kLibrary,
    &hopper::kTall, &hopper::kNormAndTall,       &hopper::kFewRows,      &hopper::kNormAndFew,    &kPortable,
};
// What the library's results must be equal to: the kernels that serve the same weights with fewer rows.
const LinearPath* const kReferencePaths[] = {&hopper::kFewRows, &hopper::kTall, &kPortable};

const LinearPath* first_path(GpuBackend& gpu, const LinearProduct& product, std::span<const LinearPath* const> paths) {
  return *std::ranges::find_if(paths, [&](const LinearPath* path) { return path->serves(gpu, product); });
}

}  // namespace

LinearEpilogue linear_epilogue(const LinearArgs& args) {
  if (args.residual.data != nullptr) return kLinearResidual;
  if (args.gated != nullptr) return kLinearGated;
  return args.out.dtype == DType::kF32 ? kLinearStoreF32 : kLinearStore;
}

void run_first_product(GpuBackend& gpu, const LinearProduct& product) {
  LoraArgs first = *product.args.lora;
  first.products = LoraProducts::kFirst;
  gpu.lora(first);
}

bool GpuBackend::joins_linear(int64_t rows) const {
  return rows <= (hopper_ ? int64_t{kLinearFewRows} : kPortableNormRows);
}

// With more rows the library serves most products, and adding after it is a launch of its own in any case.
bool GpuBackend::joins_residual(int64_t rows) const {
  return hopper_ ? rows <= kHopperTallRows : joins_linear(rows);
}

// Where the path that the product takes has adapters in its epilogue.
bool GpuBackend::joins_lora(const LinearArgs& args) {
  const LinearProduct product = {args, gpu_matrix(args.weight), product_type(args)};
  if (!hopper_ || args.lora->memory.dtype != product.type || !hopper::finishes_with_adapters(product)) return false;
  const LinearPath* path = first_path(*this, product, kPaths);
  return path == &hopper::kTallBeforeLibrary || path == &hopper::kTall || path == &kLibrary;
}

void GpuBackend::linear(const LinearArgs& args) {
  check_linear(args);
  if (args.x.rows == 0) return;
  const DType type = product_type(args);
  const LinearProduct product = {args, gpu_matrix(args.weight), type};
  if (args.lora == nullptr && joined_.join_linear(args, type)) return;
  first_path(*this, product, kPaths)->run(*this, product);
}

void GpuBackend::reference_product(const LibraryProduct& product) {
  GpuMatrix weight(product.type, product.n, product.k);
  weight.data = const_cast<void*>(product.w);
  LinearArgs args;
  args.x = {const_cast<void*>(product.x), product.type, product.m, product.k, product.x_stride};
  args.weight = &weight;
  args.out = {product.y, product.out_type, product.m, product.n, product.y_stride};
  const LinearProduct reference = {args, weight, product.type};
  first_path(*this, reference, kReferencePaths)->run(*this, reference);
}

void GpuBackend::library_product(const LibraryProduct& product) {
  recorder_.note_other();
  device_->library_product(product);
}

// run_library(), which only CUDA has: sums before what follows them, and the dequantised part of a weight.
size_t GpuBackend::product_scratch(const WorkspaceLimits& sizes) const {
  if (device_->info().api != Api::kCuda || sizes.activation == DType::kF32) return 0;
  const int64_t size = info(sizes.activation).block_bytes;
  const int64_t sums = round_up(sizes.tokens * sizes.out_columns * size, 256);
  const int64_t dequantised =
      std::max<int64_t>(64 * sizes.quantised_columns, sizes.quantised_columns > 0 ? kDequantisedElements : 0);
  return static_cast<size_t>(sums + dequantised * size);
}

// run_reordered(), and a norm before a product on sm_90a.
size_t GpuBackend::activation_scratch(const WorkspaceLimits& sizes) const {
  const int64_t reordered = sizes.tokens * 2 * round_up(sizes.reordered_columns, 8);
  // No norm has more columns than the widest product of its rows.
  const int64_t columns = std::max(sizes.quantised_columns, sizes.out_columns);
  const int64_t normed = std::min<int64_t>(sizes.tokens, kHopperQuantisedWideRows) * round_up(columns, 8);
  return static_cast<size_t>(std::max(reordered, normed) * info(sizes.activation).block_bytes);
}

}  // namespace quire::gpu
