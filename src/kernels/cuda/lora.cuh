// SPDX-License-Identifier: Apache-2.0
// The products of adapters (ops/lora.h) on sm_90a: the first product with all of K in one launch, and the second one
// together with what follows a product of another kernel.
#pragma once

#include "kernels/compat/async_copy.h"
#include "kernels/compat/tile.h"
#include "kernels/cuda/lora_add.cuh"

// ---- the first product ----

// A cluster takes a run of rows and 16 ranks. K is divided among its 32 warps in whole units of 64, so that the order
// of sums follows from K alone: each warp is one chain of k16 steps, and the chains are added in the order of their k.
// The result is scaled. Grid: (runs * kHopperLoraCluster, ranks / 16).
//
// The next launch may begin as soon as this one has waited, so what it reads but this one does not write is there.
template <typename T>
struct HopperLoraShrink {
  enum {
    kWarps = kLoraThreads / 32,
    kUnit = 64,
    kStride = kUnit + 8,
    kX = kLoraRows * kStride,   // elements of a unit of x, and of A
    kA = kUnit * kLoraGroup,
    kSums = kLoraRows * kLoraGroup,
    kOwn = kSums / kHopperLoraCluster  // sums that a threadgroup adds up
  };
  struct Smem {
    alignas(16) T x[kWarps][kHopperLoraStages][kX];
    alignas(16) T a[kWarps][kHopperLoraStages][kA];
    float parts[kWarps][kSums];
    float sums[kSums];
  };
  HOPPER_FN void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    hopper_cluster_wait();
  }
  HOPPER_FN void load_a(Smem& sm, int warp, int lane, int stage, const T* a, int k, int end) {
    UNROLL for (int i = lane; i < kUnit * 2; i += 32) {
      hopper_copy16_or_zero(ptx_shared_address(sm.a[warp][stage] + i * 8), a + (i64)k * kLoraGroup + i * 8,
                            k + i / 2 < end);
    }
  }
  HOPPER_FN void load_x(Smem& sm, int warp, int lane, int stage, const T* x, const int (&rows)[4], int k,
                        const LoraParams& p) {
    UNROLL for (int j = 0; j < 4; j++) {
      const int i = lane + 32 * j, at = k + i % 8 * 8;
      T* place = sm.x[warp][stage] + i / 8 * kStride + i % 8 * 8;
      const T* from = x + (i64)max(rows[j], 0) * p.x_stride + at;
      if (p.aligned != 0) {
        hopper_copy16_or_zero(ptx_shared_address(place), from, rows[j] >= 0 && at < p.k);
      } else {
#pragma unroll 1
        for (int e = 0; e < 8; e++) place[e] = rows[j] >= 0 && at + e < p.k ? from[e] : to<T>(0.0f);
      }
    }
  }
  HOPPER_FN void run(const LoraParams& p, float* out, const T* x, const uchar* memory, const int* rows,
                     const LoraRunParams* runs) {
    __shared__ Smem sm;
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, group = (int)blockIdx.y * kLoraGroup;
    const int rank = (int)hopper_cluster_rank();
    const LoraRunParams run = runs[blockIdx.x / kHopperLoraCluster];
    LoraSiteParams site;
    site.rank = 0;
    const uchar* slot = memory + run.slot * p.slot_bytes;
    if (run.slot >= 0) site = ((const LoraSiteParams*)slot)[p.site];
    if (group >= site.rank) {  // the same in all threadgroups of a cluster
      ptx_grid_wait();
      ptx_grid_release();
      return;
    }
    const T* a = (const T*)(slot + site.a) + (i64)group * p.k;
    const int units = (p.k + kUnit - 1) / kUnit, each = (units + 32 - 1) / 32;
    const int first = min((rank * kWarps + warp) * each, units), count = min(first + each, units) - first;
    int own_rows[4];
    UNROLL for (int j = 0; j < 4; j++) {
      const int i = (lane + 32 * j) / 8;
      const int row = i < run.count ? rows[run.first + i] - p.first : -1;
      own_rows[j] = row >= 0 && row < p.rows ? row : -1;
    }
    // A is there before the preceding launch ends, x only then.
    UNROLL for (int s = 0; s < kHopperLoraStages; s++) {
      if (s < count) load_a(sm, warp, lane, s, a, (first + s) * kUnit, p.k);
    }
    ptx_grid_wait();
    ptx_grid_release();
    UNROLL for (int s = 0; s < kHopperLoraStages; s++) {
      if (s < count) load_x(sm, warp, lane, s, x, own_rows, (first + s) * kUnit, p);
      copy_commit();
    }
    Acc16 acc;
    acc_zero(acc);
#pragma unroll 1
    for (int s = 0; s < count; s++) {
      copy_wait<kHopperLoraStages - 1>();
      __syncwarp();
      const int stage = s % kHopperLoraStages;
      UNROLL for (int k = 0; k < kUnit; k += 16) {
        FragA<T> left;
        FragB<T> right;
        frag_load_a(left, sm.x[warp][stage] + k, kStride, lane);
        frag_load_b(right, sm.a[warp][stage] + k * kLoraGroup, kLoraGroup, lane);
        acc_mma(acc, left, right);
      }
      __syncwarp();
      if (s + kHopperLoraStages < count) {
        load_a(sm, warp, lane, stage, a, (first + s + kHopperLoraStages) * kUnit, p.k);
        load_x(sm, warp, lane, stage, x, own_rows, (first + s + kHopperLoraStages) * kUnit, p);
      }
      copy_commit();
    }
    UNROLL for (int i = 0; i < 8; i++) {
      sm.parts[warp][acc_row(i, lane) * kLoraGroup + acc_col(i, lane)] = acc_get(acc, i);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < kSums; i += kLoraThreads) {
      sm.sums[i] = ((sm.parts[0][i] + sm.parts[1][i]) + sm.parts[2][i]) + sm.parts[3][i];
    }
    cluster_sync();
    if ((int)threadIdx.x < kOwn) {
      const int i = rank * kOwn + (int)threadIdx.x, j = i % kLoraGroup, in_run = i / kLoraGroup;
      float parts[kHopperLoraCluster];
      UNROLL for (int r = 0; r < kHopperLoraCluster; r++) {
        asm volatile("ld.shared::cluster.f32 %0, [%1];"
                     : "=f"(parts[r])
                     : "r"(hopper_cluster_place(ptx_shared_address(sm.sums + i), r)));
      }
      float sum = parts[0];
      UNROLL for (int r = 1; r < kHopperLoraCluster; r++) sum += parts[r];
      const int row = in_run < run.count ? rows[run.first + in_run] - p.first : -1;
      if (row >= 0 && row < p.rows) {
        const float scale = ((const float*)(slot + site.scales))[group + j];
        out[(i64)row * p.t_stride + group + j] = sum * scale;
      }
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
