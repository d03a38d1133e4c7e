// SPDX-License-Identifier: Apache-2.0
// Recurrent layers on a GPU. Grids depend only on the sizes of the spans, so that a step can be recorded.
#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "base/math.h"
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
  p.keeps_rows = sequences.row_destination.empty() ? 0 : 1;
  p.channels = static_cast<int>(conv.channels);
  p.taps = static_cast<int>(conv.kernel);
  p.biased = conv.bias != nullptr;
  p.scratch = p.channels + p.pairs + 2 * p.heads;
  p.tasks = p.pairs + static_cast<int>(grid_div(p.channels - 2 * p.pairs * p.matrix_rows, kStatePlain)) + 1;
  p.blocks = static_cast<int>(grid_div(p.matrix_cols, kStateColumns));
  const bool several = p.rows >= kStateRows * p.seqs && p.taps == 4 && (p.pairs == 0 || p.matrix_rows <= 128);
  p.row_block = several ? kStateRows : 1;
}

Grid prepare_grid(const StateParams& p) {
  const int64_t tasks = int64_t{grid_div(p.rows, p.row_block)} * p.tasks;
  QUIRE_CHECK(tasks < INT32_MAX);
  return {grid_div(tasks, kStatePrepareThreads / 32)};
}
Grid recurrence_grid(const StateParams& p) {
  return {static_cast<uint32_t>(p.seqs) * static_cast<uint32_t>(p.heads * p.blocks)};
}

// What the two recurrences launch: for prefill and for decode, by the rows of the matrix, and Hopper's for decode.
struct StateKernels {
  KernelId r128, r256, r128_one, r256_one;
  KernelId hopper;
  int hopper_columns;
};
constexpr StateKernels kDeltaKernels = {KernelId::kGatedDeltaNetR128,       KernelId::kGatedDeltaNetR256,
                                        KernelId::kGatedDeltaNetR128One,    KernelId::kGatedDeltaNetR256One,
                                        KernelId::kHopperGatedDeltaNetC128, 128};
constexpr StateKernels kMambaKernels = {KernelId::kMamba2R128,    KernelId::kMamba2R256,      KernelId::kMamba2R128One,
                                        KernelId::kMamba2R256One, KernelId::kHopperMamba2C64, 64};

struct StateOperands {
  const Tensor& out;
  const Tensor& x;
  const void *a, *b;
  const CausalConv& conv;
  const float *decay, *dt_bias, *skip;
  const StateLayer& state;
  const StateSequences& sequences;
};

// Whether sequences have about one token each.
bool is_decode(const StateParams& p) {
  return p.rows <= p.seqs;
}

// A counter for each sequence and for what its heads share.
void* arrivals_of(GpuBackend& gpu, const StateParams& p) {
  return gpu.scratch().arrivals.grow(static_cast<size_t>(p.seqs * p.shared) * sizeof(int32_t));
}

// Everything in one launch, where Hopper's kernel for decode serves these sizes.
bool run_at_once(GpuBackend& gpu, const StateParams& p, const StateOperands& o, const StateKernels& kernels) {
  const int columns = kernels.hopper_columns;
  if (!gpu.hopper() || p.type == kStateF32 || !is_decode(p) || p.keeps_rows != 0 || p.matrix_rows != kHopperStateRows ||
      p.matrix_cols != columns || p.taps != 4 || p.channels % 4 != 0 || p.page % 4 != 0 ||
      !on_16_bytes(o.state.pages) || !on_16_bytes(o.conv.weight)) {
    return false;
  }
  gpu.launch(
      {kernels.hopper, o.x.dtype}, p,
      {o.out.data, o.x.data, o.a, o.b, o.conv.weight, o.conv.bias, o.decay, o.dt_bias, o.skip, o.state.pages,
       o.sequences.cu_seqlens_q.data(), o.sequences.source.data(), o.sequences.destination.data(), arrivals_of(gpu, p)},
      {static_cast<uint32_t>(p.seqs * p.heads)}, static_cast<uint32_t>(4 * columns),
      static_cast<uint32_t>(hopper_state_memory(columns)));
  return true;
}

void run_states(GpuBackend& gpu, const StateParams& p, const StateOperands& o, const StateKernels& kernels) {
  if (p.seqs == 0 || run_at_once(gpu, p, o, kernels)) return;
  const StateSequences& s = o.sequences;
  const auto floats = static_cast<size_t>(std::max<int64_t>(p.rows, 1) * p.scratch);
  void* scratch = gpu.scratch().recurrent.grow(floats * sizeof(float));
  if (p.rows > 0) {
    gpu.launch({KernelId::kStatePrepare, o.x.dtype}, p,
               {scratch, o.x.data, o.a, o.b, o.conv.weight, o.conv.bias, o.decay, o.dt_bias, o.state.pages,
                s.cu_seqlens_q.data(), s.source.data()},
               prepare_grid(p), kStatePrepareThreads);
  }
  const KernelId kernel = p.matrix_rows <= 128 ? (is_decode(p) ? kernels.r128_one : kernels.r128)
                                               : (is_decode(p) ? kernels.r256_one : kernels.r256);
  gpu.launch(kernel, p,
             {o.out.data, o.x.data, scratch, o.skip, o.state.pages, s.cu_seqlens_q.data(), s.source.data(),
              s.destination.data(), s.row_destination.data()},
             recurrence_grid(p), kStateThreads);
}

// Decode of states in chunks in one launch, where Hopper's kernel serves these sizes.
bool run_chunks_at_once(GpuBackend& gpu, const StateParams& p, const StateOperands& o) {
  if (!gpu.hopper() || p.delta == 0 || !is_decode(p) || p.keeps_rows != 0 || p.matrix_rows != kHopperStateRows ||
      p.matrix_cols != kHopperStateRows || p.taps != 4 || !on_16_bytes(o.conv.weight)) {
    return false;
  }
  const StateSequences& s = o.sequences;
  gpu.launch({KernelId::kHopperDeltaDecode, o.x.dtype}, p,
             {o.out.data, o.x.data, o.a, o.b, o.conv.weight, o.conv.bias, o.decay, o.dt_bias, o.state.pages,
              s.cu_seqlens_q.data(), s.lengths.data(), s.source.data(), s.destination.data(), arrivals_of(gpu, p)},
             {static_cast<uint32_t>(p.seqs * p.heads)}, kHopperDeltaThreads, kHopperDeltaMemory);
  return true;
}

// Four launches over chunks of 64 positions (kernels/delta_chunks.h), or one.
void run_chunks(GpuBackend& gpu, const StateParams& p, const StateOperands& o) {
  if (p.seqs == 0 || run_chunks_at_once(gpu, p, o)) return;
  const StateSequences& s = o.sequences;
  const auto floats = static_cast<size_t>(std::max<int64_t>(p.rows, 1) * p.scratch);
  void* scratch = gpu.scratch().recurrent.grow(floats * sizeof(float));
  const auto type = o.x.dtype;
  if (p.rows > 0) {
    gpu.launch({KernelId::kStatePrepare, type}, p,
               {scratch, o.x.data, o.a, o.b, o.conv.weight, o.conv.bias, o.decay, o.dt_bias, o.state.pages,
                s.cu_seqlens_q.data(), s.source.data()},
               prepare_grid(p), kStatePrepareThreads);
    // A sequence has at most two blocks that are not full.
    const int64_t blocks = std::min<int64_t>(p.rows / kDeltaRows + 2 * int64_t{p.seqs}, p.rows);
    gpu.launch({KernelId::kDeltaScores, type}, p,
               {scratch, o.state.pages, s.cu_seqlens_q.data(), s.lengths.data(), s.source.data()},
               {static_cast<uint32_t>(blocks * p.shared)}, kDeltaThreads);
  }
  if (p.delta != 0) {
    gpu.launch({KernelId::kDeltaChunks, type}, p,
               {o.out.data, scratch, o.state.pages, s.cu_seqlens_q.data(), s.lengths.data(), s.source.data(),
                s.destination.data(), s.row_destination.data()},
               recurrence_grid(p), kDeltaThreads);
  } else {
    gpu.launch({KernelId::kMambaChunks, type}, p,
               {o.out.data, scratch, o.skip, o.state.pages, s.cu_seqlens_q.data(), s.lengths.data(), s.source.data(),
                s.destination.data(), s.row_destination.data()},
               recurrence_grid(p), kDeltaThreads);
  }
  gpu.launch({KernelId::kDeltaKeys, type}, p,
             {o.x.data, scratch, o.state.pages, s.cu_seqlens_q.data(), s.lengths.data(), s.source.data(),
              s.destination.data(), s.row_destination.data()},
             {static_cast<uint32_t>(p.seqs * p.shared)}, kDeltaThreads);
}

// What chunks need besides.
void complete_chunks(StateParams& p, const DeltaChunkLayout& layout) {
  p.chunked = 1;
  p.chunk_state = layout.state;
  p.chunk_values = layout.values;
  p.chunk_keys = layout.keys;
  p.chunk_decays = layout.decays;
  p.scores = round_up(p.scratch, 4);  // rows on 16 bytes
  p.scratch = p.scores + int64_t{p.shared} * 2 * kDeltaChunk;
}

}  // namespace

// The kernels of chunks serve every GPU, but without Hopper's kernel for decode their four launches cost a step of few
// sequences more than chunks save. The emulator has them for the tests.
bool GpuBackend::chunks_delta_net(int64_t dk, int64_t dv, DType activation) const {
  return fits_delta_chunks(dk, dv) && activation != DType::kF32 &&
         (hopper_ ? dk == kHopperStateRows && dv == kHopperStateRows : device_->info().api == Api::kEmulator);
}

// Mamba-2 in chunks prefills faster, but without a Hopper kernel for decode that is slower by half: only the emulator
// has it, for the tests.
bool GpuBackend::chunks_mamba2(int64_t state_size, int64_t head_dim, DType activation) const {
  return fits_delta_chunks(state_size, head_dim) && activation != DType::kF32 && device_->info().api == Api::kEmulator;
}

void GpuBackend::gated_delta_net(const GatedDeltaNetArgs& args) {
  check(args);
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
  const StateOperands operands = {args.out,   args.qkv,     args.a.data, args.b.data, args.conv,
                                  args.decay, args.dt_bias, nullptr,     args.state,  args.sequences};
  if (!args.chunked) return run_states(*this, p, operands, kDeltaKernels);
  QUIRE_CHECK(on_16_bytes(args.state.pages));
  complete_chunks(p, {args.key_heads, args.value_heads, args.dk, args.dv, args.conv.kernel});
  run_chunks(*this, p, operands);
}

void GpuBackend::mamba2(const Mamba2Args& args) {
  check(args);
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
  const StateOperands operands = {args.out,   args.xbc,     args.dt.data, nullptr,    args.conv,
                                  args.decay, args.dt_bias, args.skip,    args.state, args.sequences};
  if (!args.chunked) return run_states(*this, p, operands, kMambaKernels);
  QUIRE_CHECK(on_16_bytes(args.state.pages));
  complete_chunks(p, {args.groups, args.heads, args.state_size, args.head_dim, args.conv.kernel});
  run_chunks(*this, p, operands);
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
  p.keeps_rows = s.row_destination.empty() ? 0 : 1;
  p.parts = rows <= p.seqs ? 1 : static_cast<int>(std::min(64u, grid_div(rows, kShortConvBlock)));
  if (p.seqs == 0) return;
  const Grid grid = {grid_div(channels, kShortConvThreads), static_cast<uint32_t>(p.seqs),
                     static_cast<uint32_t>(p.parts)};
  launch({KernelId::kShortConv, args.bcx.dtype}, p,
         {args.out.data, args.bcx.data, args.conv.weight, args.conv.bias, args.state.pages, s.cu_seqlens_q.data(),
          s.source.data(), s.destination.data(), s.row_destination.data()},
         grid, kShortConvThreads);
}

size_t GpuBackend::recurrent_scratch(const WorkspaceLimits& sizes) const {
  return static_cast<size_t>(sizes.tokens * sizes.state_columns) * sizeof(float);
}

}  // namespace quire::gpu
