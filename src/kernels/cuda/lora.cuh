// SPDX-License-Identifier: Apache-2.0
// The products of adapters (ops/lora.h) on sm_90a: the first product with all of K in one launch, and the second one
// together with what follows a product of another kernel.
#pragma once

#include "kernels/cuda/lora_add.cuh"

// ---- the first product ----

// A cluster takes a run of rows and 16 ranks. K is divided among its 32 warps in whole units of 64, so that the order
// of sums follows from K alone: each warp is one chain of k16 steps, and the chains are added in the order of their k.
// The result is scaled. Grid: (runs * kHopperLoraCluster, ranks / 16).
//
// Operands go to registers directly. So a threadgroup needs little shared memory, and the next launch, a product that
// fills almost all of it, can begin beside this one and load its weights.
template <typename T>
struct HopperLoraShrink {
  enum {
    kWarps = kLoraThreads / 32,
    kUnit = 64,
    kSteps = 8,  // of k16 whose operands are loaded together
    kSums = kLoraRows * kLoraGroup,
    kOwn = kSums / kHopperLoraCluster  // sums that a threadgroup adds up
  };
  struct Smem {
    float parts[kWarps][kSums];
    float sums[kSums];
  };
  HOPPER_FN void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    hopper_cluster_wait();
  }
  // Elements `first` and `second` of a row or a column, those of them that are there.
  HOPPER_FN uint pair_of(const T* first, const T* second, bool here, bool both) {
    const uint low = here ? to_bits16(*first) : 0, high = both ? to_bits16(*second) : 0;
    return low | high << 16;
  }
  // The second operand of kSteps k16 from k on: elements (k, n) of A, which is stored as [K][16].
  HOPPER_FN void load_a(uint (&b)[kSteps][4], const T* a, int k, int end) {
    const int lane = (int)threadIdx.x & 31, n = lane >> 2, t = (lane & 3) * 2;
    UNROLL for (int s = 0; s < kSteps; s++) {
      UNROLL for (int i = 0; i < 4; i++) {
        const int at = k + 16 * s + t + 8 * (i & 1);
        const T* from = a + (i64)at * kLoraGroup + n + 8 * (i >> 1);
        b[s][i] = pair_of(from, from + kLoraGroup, at < end, at + 1 < end);
      }
    }
  }
  // The first operand: rows `low` and `high` of x, null where there is none.
  HOPPER_FN void load_x(uint (&a)[kSteps][4], const T* low, const T* high, int k, int end, bool aligned) {
    const int t = ((int)threadIdx.x & 3) * 2;
    UNROLL for (int s = 0; s < kSteps; s++) {
      UNROLL for (int i = 0; i < 4; i++) {
        const int at = k + 16 * s + t + 8 * (i >> 1);
        const T* from = i & 1 ? high : low;
        if (aligned) {
          a[s][i] = from != nullptr && at < end ? __ldcg((const uint*)(from + at)) : 0;
        } else {
          a[s][i] = pair_of(from + at, from + at + 1, from != nullptr && at < end, from != nullptr && at + 1 < end);
        }
      }
    }
  }
  // The row of x and t that is row i of the run; -1 if this call does not have it.
  HOPPER_FN int row_of(const LoraParams& p, const LoraRunParams& run, const int* rows, int i) {
    const int row = i < run.count ? rows[run.first + i] - p.first : -1;
    return row < p.rows ? row : -1;
  }
  HOPPER_FN void run(const LoraParams& p, float* out, const T* x, const uchar* memory, const int* rows,
                     const LoraRunParams* runs) {
    __shared__ Smem sm;
    ptx_grid_release();
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, group = (int)blockIdx.y * kLoraGroup;
    const int rank = (int)hopper_cluster_rank();
    const LoraRunParams run = runs[blockIdx.x / kHopperLoraCluster];
    LoraSiteParams site;
    site.rank = 0;
    const uchar* slot = memory + run.slot * p.slot_bytes;
    if (run.slot >= 0) site = ((const LoraSiteParams*)slot)[p.site];
    if (group >= site.rank) return ptx_grid_wait();  // the same in all threadgroups of a cluster
    const T* a = (const T*)(slot + site.a) + (i64)group * p.k;
    const int units = (p.k + kUnit - 1) / kUnit, each = (units + 32 - 1) / 32;
    const int first = min((rank * kWarps + warp) * each, units) * kUnit, end = min(first + each * kUnit, p.k);
    // A is loaded before the preceding launch ends, x after it.
    uint of_a[kSteps][4], of_x[kSteps][4];
    load_a(of_a, a, first, end);
    for (int k = first + 16 * kSteps + lane * 4; k < end; k += 128) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(a + (i64)k * kLoraGroup));
    }
    const int low = row_of(p, run, rows, lane >> 2), high = row_of(p, run, rows, (lane >> 2) + 8);
    const T* of_low = low >= 0 ? x + low * p.x_stride : nullptr;
    const T* of_high = high >= 0 ? x + high * p.x_stride : nullptr;
    const float scale = ((const float*)(slot + site.scales))[group + (threadIdx.x + rank * kOwn) % kLoraGroup];
    ptx_grid_wait();
    float acc[2][4] = {};
#pragma unroll 1
    for (int k = first; k < end; k += 16 * kSteps) {
      if (k > first) load_a(of_a, a, k, end);
      load_x(of_x, of_low, of_high, k, end, p.aligned != 0);
      UNROLL for (int s = 0; s < kSteps; s++) {
        if (k + 16 * s >= end) continue;
        hopper_mma<T>(acc[0], of_x[s], of_a[s][0], of_a[s][1]);
        hopper_mma<T>(acc[1], of_x[s], of_a[s][2], of_a[s][3]);
      }
    }
    UNROLL for (int i = 0; i < 8; i++) {
      const int row = (lane >> 2) + 8 * ((i >> 1) & 1), column = (lane & 3) * 2 + (i & 1) + 8 * (i >> 2);
      sm.parts[warp][row * kLoraGroup + column] = acc[i >> 2][i & 3];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < kSums; i += kLoraThreads) {
      sm.sums[i] = ((sm.parts[0][i] + sm.parts[1][i]) + sm.parts[2][i]) + sm.parts[3][i];
    }
    cluster_sync();
    if ((int)threadIdx.x < kOwn) {
      const int i = rank * kOwn + (int)threadIdx.x, row = row_of(p, run, rows, i / kLoraGroup);
      float parts[kHopperLoraCluster];
      UNROLL for (int r = 0; r < kHopperLoraCluster; r++) {
        asm volatile("ld.shared::cluster.f32 %0, [%1];"
                     : "=f"(parts[r])
                     : "r"(hopper_cluster_place(ptx_shared_address(sm.sums + i), r)));
      }
      float sum = parts[0];
      UNROLL for (int r = 1; r < kHopperLoraCluster; r++) sum += parts[r];
      if (row >= 0) out[(i64)row * p.t_stride + group + i % kLoraGroup] = sum * scale;
    }
    cluster_sync();  // no threadgroup exits while another reads its sums
  }
};

#define HOPPER_LORA_SHRINK(types, T)                                                                                  \
  extern "C" __global__ void __launch_bounds__(kLoraThreads) __cluster_dims__(kHopperLoraCluster, 1, 1)              \
      hopper_lora_shrink_##types(const __grid_constant__ LoraParams p, float* out, const T* x, const uchar* memory,   \
                                 const int* rows, const LoraRunParams* runs) {                                        \
    HopperLoraShrink<T>::run(p, out, x, memory, rows, runs);                                                          \
  }
HOPPER_LORA_SHRINK(bf16, bfloat)
HOPPER_LORA_SHRINK(f16, half)

// ---- what follows a product of another kernel ----

// The sums of the product y (of type T, without a bias) with the bias and the adapters, then the gate or the residual. A
// threadgroup has 64 rows by 64 columns of y: gated, 32 of gate and the matching 32 of up.
// Grid: (columns of out / 64, or gated / 32; rows / 64). REQUIRES: columns are a multiple of eight, rows of y begin on
// 16 bytes, those of out on 8.
template <typename T>
struct HopperLoraFinish {
  enum { kRows = 64, kColumns = 64, kStride = kColumns + 8, kThreads = kHopperLoraFinishThreads };
  HOPPER_FN void run(const HopperLoraFinishParams& p, void* out, const T* y, const float* bias, const float* residual,
                     const HopperLoraMemory& m) {
    __shared__ alignas(16) T sums[kRows * kStride];
    ptx_grid_release();
    const HopperLinearParams& l = p.linear;
    const bool gated = l.epilogue == kHopperGated;
    const int half_n = l.n / 2, width = gated ? kColumns / 2 : kColumns, first = (int)blockIdx.x * width;
    const int end = gated ? half_n : l.n, first_row = (int)blockIdx.y * kRows, end_row = min(first_row + kRows, l.m);
    const auto output_column = [&](int column) {
      return gated && column >= width ? half_n + first + column - width : first + column;
    };
    typedef HopperLoraAdd<T, kThreads> Add;
    Add::prefetch(p.lora, m, kColumns, output_column);
    ptx_grid_wait();
    for (int i = (int)threadIdx.x; i < kRows * kColumns / 8; i += kThreads) {
      const int r = i / (kColumns / 8), column = i % (kColumns / 8) * 8, n = output_column(column);
      uint4 eight = make_uint4(0, 0, 0, 0);
      if (first_row + r < end_row && first + column % width < end) {
        eight = __ldcg((const uint4*)(y + (i64)(first_row + r) * p.y_stride + n));
        if (l.biased) {
          T* of = (T*)&eight;
          UNROLL for (int e = 0; e < 8; e++) of[e] = to<T>(to_f(of[e]) + bias[n + e]);
        }
      }
      *(uint4*)(sums + r * kStride + column) = eight;
    }
    __syncthreads();
    Add::add(p.lora, m, sums, kStride, kColumns, first_row, end_row, output_column);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < kRows * width / 2; i += kThreads) {
      const int r = i / (width / 2), column = i % (width / 2) * 2, row = first_row + r, n = first + column;
      if (row >= end_row || n >= end) continue;
      const T* pair = sums + r * kStride + column;
      const i64 place = (i64)row * l.out_stride + n;
      if (gated) {
        *(uint*)((T*)out + place) = hopper_pack<T>(activate_glu(l.activation, l.limit, to_f(pair[0]), to_f(pair[width])),
                                                   activate_glu(l.activation, l.limit, to_f(pair[1]),
                                                                to_f(pair[width + 1])));
      } else if (l.epilogue == kHopperResidual) {
        const float2 before = *(const float2*)(residual + (i64)row * l.residual_stride + n);
        *(float2*)((float*)out + place) =
            make_float2(fma(to_f(pair[0]), l.scale, before.x), fma(to_f(pair[1]), l.scale, before.y));
      } else {
        *(uint*)((T*)out + place) = *(const uint*)pair;
      }
    }
  }
};

#define HOPPER_LORA_FINISH(types, T)                                                                                 \
  extern "C" __global__ void __launch_bounds__(kHopperLoraFinishThreads) hopper_lora_finish_##types(                 \
      const __grid_constant__ HopperLoraFinishParams p, void* out, const T* y, const float* bias,                    \
      const float* residual, const uchar* memory, const int* rows, const LoraRunParams* runs, const float* t) {      \
    HopperLoraFinish<T>::run(p, out, y, bias, residual, {memory, rows, runs, t});                                    \
  }
HOPPER_LORA_FINISH(bf16, bfloat)
HOPPER_LORA_FINISH(f16, half)
