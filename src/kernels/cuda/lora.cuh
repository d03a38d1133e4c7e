// SPDX-License-Identifier: Apache-2.0
// The products of adapters (ops/lora.h) on sm_90a: the first product with all of K in one launch, and the second one
// together with what follows a product of another kernel.
#pragma once

#include "kernels/cuda/lora_add.cuh"

// ---- the first product ----

// A cluster takes a run of rows and 16 ranks. K is divided among its 32 warps in whole units of 64, so that the order
// of sums follows from K alone: each warp is one chain of k16 steps, and the chains are added in the order of their k.
// The result is scaled. Grid: (runs * kHopperLoraCluster, ranks / 16). REQUIRES: K is a multiple of 16, rows of x begin
// on 4 bytes.
//
// Operands go to registers directly. So a threadgroup needs little shared memory, and the next launch, a product that
// fills almost all of it, runs beside this one: it may begin as soon as x is there, and only its epilogue waits for t.
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
  // What precedes this launch has ended, and then the next one may begin (HopperLoraParams::early).
  HOPPER_FN void begin() {
    ptx_grid_wait();
    ptx_grid_release();
  }
  // Lane 4 g + t passes elements (g, 2 t) and (g, 2 t + 1) of an 8x8 matrix and gets (2 t, g) and (2 t + 1, g).
  HOPPER_FN uint transposed(uint pair) {
    uint r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
  }
  // The row of x and t that is row i of the run; -1 if this call does not have it.
  HOPPER_FN int row_of(const LoraParams& p, const LoraRunParams& run, const int* rows, int i) {
    const int row = i < run.count ? rows[run.first + i] - p.first : -1;
    return row < p.rows ? row : -1;
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
    if (group >= site.rank) return begin();  // the same in all threadgroups of a cluster
    const int units = (p.k + kUnit - 1) / kUnit, each = (units + 32 - 1) / 32;
    const int first = min((rank * kWarps + warp) * each, units) * kUnit, end = min(first + each * kUnit, p.k);
    // The lane's elements of A, which is stored as [K][16], and of its rows of x; null where there is no such row.
    const int g = lane >> 2, pair = (lane & 3) * 2;
    const T* a = (const T*)(slot + site.a) + (i64)group * p.k + g * kLoraGroup + pair;
    const int low = row_of(p, run, rows, g), high = row_of(p, run, rows, g + 8);
    const T* of_row[2] = {low >= 0 ? x + low * p.x_stride + pair : nullptr,
                          high >= 0 ? x + high * p.x_stride + pair : nullptr};
    const float scale = ((const float*)(slot + site.scales))[group + (threadIdx.x + rank * kOwn) % kLoraGroup];
#pragma unroll 1
    for (int k = first + 16 * kSteps + lane * 4; k < end; k += 128) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"((const T*)(slot + site.a) + (i64)(group + k) * kLoraGroup));
    }
    if (first >= end) begin();
    float acc[2][4] = {};
#pragma unroll 1
    for (int k = first; k < end; k += 16 * kSteps) {
      uint of_a[kSteps][4], of_x[kSteps][4];
      UNROLL for (int s = 0; s < kSteps; s++) {
        UNROLL for (int i = 0; i < 4; i++) {
          const T* from = a + (i64)(k + 16 * s + 8 * (i & 1)) * kLoraGroup + 8 * (i >> 1);
          of_a[s][i] = k + 16 * s < end ? *(const uint*)from : 0;
        }
      }
      if (k == first) begin();  // the first part of A was requested before the preceding launch ended
      UNROLL for (int s = 0; s < kSteps; s++) {
        UNROLL for (int i = 0; i < 4; i++) {
          const T* from = of_row[i & 1];
          const bool here = from != nullptr && k + 16 * s < end;
          of_x[s][i] = here ? __ldcg((const uint*)(from + k + 16 * s + 8 * (i >> 1))) : 0;
        }
      }
      UNROLL for (int s = 0; s < kSteps; s++) {
        UNROLL for (int n = 0; n < 2; n++) {
          hopper_mma<T>(acc[n], of_x[s], transposed(of_a[s][2 * n]), transposed(of_a[s][2 * n + 1]));
        }
      }
    }
    UNROLL for (int i = 0; i < 8; i++) {
      const int row = (lane >> 2) + 8 * ((i >> 1) & 1), column = (lane & 3) * 2 + (i & 1) + 8 * (i >> 2);
      sm.parts[warp][row * kLoraGroup + column] = acc[i >> 2][i & 3];
    }
    __syncthreads();
#pragma unroll 1
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

#define HOPPER_LORA_SHRINK(types, T)                                                                                \
  extern "C" __global__ void __launch_bounds__(kLoraThreads) __cluster_dims__(kHopperLoraCluster, 1, 1)             \
      hopper_lora_shrink_##types(const __grid_constant__ LoraParams p, float* out, const T* x, const uchar* memory, \
                                 const int* rows, const LoraRunParams* runs) {                                      \
    HopperLoraShrink<T>::run(p, out, x, memory, rows, runs);                                                        \
  }
HOPPER_LORA_SHRINK(bf16, bfloat)
HOPPER_LORA_SHRINK(f16, half)

// ---- what follows a product of another kernel ----

// The sums y of a product (of type T, without a bias) with the bias and the adapters, then the gate or the residual. A
// threadgroup has 64 rows by 64 columns of y: gated, 32 of gate and the matching 32 of up.
// Grid: (columns of out / 64, or gated / 32; rows / 64), kHopperLoraFinishThreads threads. REQUIRES: columns are a
// multiple of eight, rows of y begin on 16 bytes, those of out on 4.
template <typename T>
struct HopperLoraFinish {
  enum { kRows = 64, kColumns = 64, kStride = kColumns + 8, kThreads = kHopperLoraFinishThreads };
  HOPPER_FN void run(const HopperLoraFinishParams& p, void* out, const T* y, const float* bias, const float* residual,
                     const HopperLoraMemory& m) {
    extern __shared__ __align__(16) unsigned char shared[];
    T* sums = (T*)shared;
    ptx_grid_release();
    const HopperLinearParams& l = p.linear;
    const bool gated = l.epilogue == kHopperGated;
    const int half_n = l.n / 2, width = gated ? kColumns / 2 : kColumns, first = (int)blockIdx.x * width;
    const int end = gated ? half_n : l.n, first_row = (int)blockIdx.y * kRows, end_row = min(first_row + kRows, l.m);
    const auto output_column = [=](int column) {
      return gated && column >= width ? half_n + first + column - width : first + column;
    };
    HopperLoraTile<T, kHopperLoraItems, kThreads, decltype(output_column)> tile = {
        p.lora,       m,       (HopperLoraRoom<T, kHopperLoraItems>*)(shared + kRows * kStride * 2),
        first_row,    end_row, kColumns / 4,
        output_column};
    bool some = tile.prepare_runs((int)threadIdx.x, kThreads);
    __syncthreads();
    some |= tile.prepare_items((int)threadIdx.x, kThreads);
    ptx_grid_wait();
    tile.request_t((int)threadIdx.x, kThreads);
#pragma unroll 1
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
    tile.await();
    const bool rest = __syncthreads_or(some) != 0;
    tile.add(sums, kStride, rest);
    __syncthreads();
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < kRows * width / 2; i += kThreads) {
      const int r = i / (width / 2), column = i % (width / 2) * 2, row = first_row + r, n = first + column;
      if (row >= end_row || n >= end) continue;
      const T* pair = sums + r * kStride + column;
      const i64 place = (i64)row * l.out_stride + n;
      if (l.epilogue == kHopperResidual) {
        const float2 before = *(const float2*)(residual + (i64)row * l.residual_stride + n);
        *(float2*)((float*)out + place) =
            make_float2(fma(to_f(pair[0]), l.scale, before.x), fma(to_f(pair[1]), l.scale, before.y));
        continue;
      }
      uint packed = *(const uint*)pair;
      if (gated) {
        packed = hopper_pack<T>(activate_glu(l.activation, l.limit, to_f(pair[0]), to_f(pair[width])),
                                activate_glu(l.activation, l.limit, to_f(pair[1]), to_f(pair[width + 1])));
      }
      *(uint*)((T*)out + place) = packed;
    }
  }
};

#define HOPPER_LORA_FINISH(types, T)                                                                            \
  extern "C" __global__ void __launch_bounds__(kHopperLoraFinishThreads) hopper_lora_finish_##types(            \
      const __grid_constant__ HopperLoraFinishParams p, void* out, const T* y, const float* bias,               \
      const float* residual, const uchar* memory, const int* rows, const LoraRunParams* runs, const float* t) { \
    HopperLoraFinish<T>::run(p, out, y, bias, residual, {memory, rows, runs, t});                               \
  }
HOPPER_LORA_FINISH(bf16, bfloat)
HOPPER_LORA_FINISH(f16, half)
