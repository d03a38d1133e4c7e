// SPDX-License-Identifier: Apache-2.0
// linear_heads on a GPU: one launch for all heads, on the portable kernels.
#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/weight_layout.h"
#include "kernels/params/linear.h"

namespace quire::gpu {
namespace {

// Head 0's weight, and the way to the next one.
WeightParams head_params(const GpuMatrix& w, int64_t n) {
  WeightParams p = weight_params(w);
  p.expert_stride = p.stride * (p.form == kWeightQuantised ? head_rows(n) / kPanelRows : head_rows(n));
  p.n = static_cast<int>(n);
  return p;
}

}  // namespace

void GpuBackend::linear_heads(const LinearHeadsArgs& args) {
  static_assert(head_rows(1) == kPanelRows);
  check(args);
  const int64_t rows = args.x.rows;
  if (rows == 0) return;
  const GpuMatrix& w = gpu_matrix(args.weight);
  const DType type = args.x.dtype;
  const int64_t size = info(type).block_bytes;
  LinearHeadsParams p = {};
  p.x_head = args.x.cols / args.heads * size;
  p.out_head = args.out.cols / args.heads * size;
  LinearParams& one = p.linear;
  one.weight = head_params(w, args.n);
  one.last.out_stride = args.out.stride;
  one.last.epilogue = type == DType::kF32 ? kLinearStoreF32 : kLinearStore;
  one.last.columns = static_cast<int>(args.n);
  one.x_stride = args.x.stride;
  one.m = static_cast<int>(rows);
  one.aligned = on_16_bytes(args.x) && p.x_head % 16 == 0;
  one.tiles = static_cast<int>(grid_div(args.n, 16));
  one.choices = 1;
  const auto heads = static_cast<uint32_t>(args.heads);
  const auto run = [&](KernelId kernel, uint32_t across, int64_t tile_rows, int threads) {
    launch({kernel, type}, p, {args.out.data, args.x.data, w.data}, {across, grid_div(rows, tile_rows), heads},
           static_cast<uint32_t>(threads));
  };
  if (type == DType::kF32) {
    return run(KernelId::kLinearHeadsF32, grid_div(args.n, 32), kLinearFloatRows, kLinearThreads);
  }
  const bool plain = w.dtype() == type;
  const int units = device_->info().compute_units;
  const auto tiles = static_cast<uint32_t>(one.tiles);
  // Tiles of 64 rows read a weight less often, but leave most of the chip idle where there are few of them.
  const int64_t wide = int64_t{grid_div(one.tiles, 4)} * grid_div(rows, kLinearManyRows) * args.heads;
  if (rows > kLinearFewRows && (wide >= units || rows > 4 * kLinearManyRows)) {
    return run(plain ? KernelId::kLinearHeadsMany : KernelId::kLinearHeadsAnyMany, grid_div(one.tiles, 4),
               kLinearManyRows, kLinearThreads);
  }
  if (!plain) return run(KernelId::kLinearHeadsAnyFew, tiles, kLinearFewRows, kLinearAnyThreads);
  const int64_t all = args.heads * one.tiles * grid_div(rows, kLinearFewRows);
  one.simdgroups = 4;
  while (one.simdgroups > 1 && all < int64_t{2} * one.simdgroups * units) one.simdgroups /= 2;
  if (one.simdgroups == 1) return run(KernelId::kLinearHeadsDeep, tiles, kLinearFewRows, 32);
  run(KernelId::kLinearHeadsFew, grid_div(one.tiles, one.simdgroups), kLinearFewRows, 32 * one.simdgroups);
}

}  // namespace quire::gpu
