// SPDX-License-Identifier: Apache-2.0
// Recurrent layers on a GPU. Grids depend only on the sizes of the spans, so that a step can be recorded.
#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "kernels/params/recurrent.h"

namespace quire::gpu {
namespace {

// Fills in what both recurrences have in common. REQUIRES: channels, heads and the size of the matrix are set.
void complete(StateParams& p, const Tensor& x, const Tensor& out, const CausalConv& conv, const StateLayer& state,
              const StateSequences& sequences) {
  p.x_stride = x.stride;
  p.out_stride = out.stride;
  p.type = x.dtype == DType::kF32 ? kStateF32 : x.dtype == DType::kF16 ? kStateF16 : kStateBF16;
  p.page = state.page_stride / static_cast<int64_t>(sizeof(float));
  p.rows = static_cast<int>(x.rows);
  p.seqs = static_cast<int>(sequences.source.size());
  p.channels = static_cast<int>(conv.channels);
  p.taps = static_cast<int>(conv.kernel);
  p.biased = conv.bias != nullptr;
  p.scratch = p.channels + p.pairs + 2 * p.heads;
  p.tasks = p.pairs + static_cast<int>(grid_div(p.channels - 2 * p.pairs * p.matrix_rows, kStatePlain)) + 1;
  p.blocks = static_cast<int>(grid_div(p.matrix_cols, kStateColumns));
}

Grid prepare_grid(const StateParams& p) {
  QUIRE_CHECK(int64_t{p.rows} * p.tasks < INT32_MAX);
  return {grid_div(int64_t{p.rows} * p.tasks, kStatePrepareThreads / 32)};
}
Grid recurrence_grid(const StateParams& p) {
  return {static_cast<uint32_t>(p.seqs) * static_cast<uint32_t>(p.heads * p.blocks)};
}

// By the size of the matrix, and whether sequences have about one token each.
KernelId recurrence(const StateParams& p, KernelId r128, KernelId r256, KernelId r128_one, KernelId r256_one) {
  const bool one = p.rows <= p.seqs;
  return p.matrix_rows <= 128 ? (one ? r128_one : r128) : (one ? r256_one : r256);
}

}  // namespace

void GpuBackend::gated_delta_net(const GatedDeltaNetArgs& args) {
  check(args);
  const int64_t rows = args.qkv.rows;
  const DType type = args.qkv.dtype;
  StateParams p = {};
  p.delta = 1;
  p.pairs = p.shared = static_cast<int>(args.key_heads);
  p.heads = static_cast<int>(args.value_heads);
  p.tiled = args.tiled;
  p.matrix_rows = static_cast<int>(args.dk);
  p.matrix_cols = static_cast<int>(args.dv);
  p.right = 0;
  p.left = p.pairs * p.matrix_rows;
  p.own = 2 * p.left;
  p.a_stride = args.a.stride;
  p.b_stride = args.b.stride;
  complete(p, args.qkv, args.out, args.conv, args.state, args.sequences);
  if (p.seqs == 0) return;
  const StateSequences& s = args.sequences;
  void* scratch = scratch_.recurrent.grow(static_cast<size_t>(std::max<int64_t>(rows, 1) * p.scratch) * sizeof(float));
  if (rows > 0) {
    launch({KernelId::kStatePrepare, type}, p,
           {scratch, args.qkv.data, args.a.data, args.b.data, args.conv.weight, args.conv.bias, args.decay,
            args.dt_bias, args.state.pages, s.cu_seqlens_q.data(), s.source.data()},
           prepare_grid(p), kStatePrepareThreads);
  }
  launch(recurrence(p, KernelId::kGatedDeltaNetR128, KernelId::kGatedDeltaNetR256, KernelId::kGatedDeltaNetR128One,
                    KernelId::kGatedDeltaNetR256One),
         p,
         {args.out.data, args.qkv.data, scratch, nullptr, args.state.pages, s.cu_seqlens_q.data(), s.source.data(),
          s.destination.data()},
         recurrence_grid(p), kStateThreads);
}

void GpuBackend::mamba2(const Mamba2Args& args) {
  check(args);
  const int64_t rows = args.xbc.rows;
  const DType type = args.xbc.dtype;
  StateParams p = {};
  p.shared = static_cast<int>(args.groups);
  p.heads = static_cast<int>(args.heads);
  p.matrix_rows = static_cast<int>(args.state_size);
  p.matrix_cols = static_cast<int>(args.head_dim);
  p.own = 0;
  p.left = static_cast<int>(args.heads * args.head_dim);
  p.right = p.left + p.shared * p.matrix_rows;
  p.a_stride = args.dt.stride;
  p.least = args.dt_min;
  p.most = args.dt_max;
  complete(p, args.xbc, args.out, args.conv, args.state, args.sequences);
  if (p.seqs == 0) return;
  const StateSequences& s = args.sequences;
  void* scratch = scratch_.recurrent.grow(static_cast<size_t>(std::max<int64_t>(rows, 1) * p.scratch) * sizeof(float));
  if (rows > 0) {
    launch({KernelId::kStatePrepare, type}, p,
           {scratch, args.xbc.data, args.dt.data, nullptr, args.conv.weight, args.conv.bias, args.decay, args.dt_bias,
            args.state.pages, s.cu_seqlens_q.data(), s.source.data()},
           prepare_grid(p), kStatePrepareThreads);
  }
  launch(
      recurrence(p, KernelId::kMamba2R128, KernelId::kMamba2R256, KernelId::kMamba2R128One, KernelId::kMamba2R256One),
      p,
      {args.out.data, args.xbc.data, scratch, args.skip, args.state.pages, s.cu_seqlens_q.data(), s.source.data(),
       s.destination.data()},
      recurrence_grid(p), kStateThreads);
}

void GpuBackend::short_conv(const ShortConvArgs& args) {
  check(args);
  const int64_t channels = args.conv.channels, rows = args.bcx.rows;
  const StateSequences& s = args.sequences;
  ShortConvParams p = {};
  p.x_stride = args.bcx.stride;
  p.out_stride = args.out.stride;
  p.page = args.state.page_stride / static_cast<int64_t>(sizeof(float));
  p.seqs = static_cast<int>(s.source.size());
  p.channels = static_cast<int>(channels);
  p.taps = static_cast<int>(args.conv.kernel);
  p.biased = args.conv.bias != nullptr;
  p.parts = rows <= p.seqs ? 1 : static_cast<int>(std::min(64u, grid_div(rows, kShortConvBlock)));
  if (p.seqs == 0) return;
  const Grid grid = {grid_div(channels, kShortConvThreads), static_cast<uint32_t>(p.seqs),
                     static_cast<uint32_t>(p.parts)};
  launch({KernelId::kShortConv, args.bcx.dtype}, p,
         {args.out.data, args.bcx.data, args.conv.weight, args.conv.bias, args.state.pages, s.cu_seqlens_q.data(),
          s.source.data(), s.destination.data()},
         grid, kShortConvThreads);
}

size_t GpuBackend::recurrent_scratch(const WorkspaceLimits& sizes) const {
  return static_cast<size_t>(sizes.tokens * sizes.state_columns) * sizeof(float);
}

}  // namespace quire::gpu
