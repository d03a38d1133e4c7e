// SPDX-License-Identifier: Apache-2.0
// The products of adapters (ops/lora.h) on sm_90a: the first product with all of K in one launch, and the second one
// together with what follows a product of another kernel.
#pragma once

#include "kernels/cuda/lora_add.cuh"

// ---- the first product ----

// A cluster takes a run of rows and 16 ranks, and each of its threadgroups a part of K (kernels/cuda/lora_first.cuh).
// Grid: (runs * kHopperLoraCluster, ranks / 16). REQUIRES: K is a multiple of 16, rows of x begin on 4 bytes.
//
// Operands go to registers directly. So a threadgroup needs little shared memory, and the next launch, a product that
// fills almost all of it, runs beside this one: it may begin as soon as x is there, and only its epilogue waits for t.
template <typename T>
struct HopperLoraShrink {
  enum {
    kWarps = kLoraThreads / 32,
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
  HOPPER_FN void run(const LoraParams& p, float* out, const T* x, const uchar* memory, const int* rows,
                     const LoraRunParams* runs) {
    __shared__ Smem sm;
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, first = (int)blockIdx.y * kLoraGroup;
    const int rank = (int)hopper_cluster_rank();
    const auto group =
        HopperLoraGroup<T>::find(memory, p.slot_bytes, p.site, runs[blockIdx.x / kHopperLoraCluster], first, p.k);
    if (group.a == nullptr) return begin();  // the same in all threadgroups of a cluster
    const int low = group.row_of(rows, lane >> 2, p.first, p.rows);
    const int high = group.row_of(rows, (lane >> 2) + 8, p.first, p.rows);
    const float scale = group.scales[(threadIdx.x + rank * kOwn) % kLoraGroup];
    float acc[2][4] = {};
    HopperLoraChain<T>::of(rank * kWarps + warp, p.k).add_up(acc, group.a, x, p.x_stride, low, high, [] { begin(); });
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
      const int i = rank * kOwn + (int)threadIdx.x, row = group.row_of(rows, i / kLoraGroup, p.first, p.rows);
      float parts[kHopperLoraCluster];
      UNROLL for (int r = 0; r < kHopperLoraCluster; r++) {
        asm volatile("ld.shared::cluster.f32 %0, [%1];"
                     : "=f"(parts[r])
                     : "r"(hopper_cluster_place(ptx_shared_address(sm.sums + i), r)));
      }
      float sum = parts[0];
      UNROLL for (int r = 1; r < kHopperLoraCluster; r++) sum += parts[r];
      if (row >= 0) out[(i64)row * p.t_stride + first + i % kLoraGroup] = sum * scale;
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
    HopperLoraTile<T, kHopperLoraItems, decltype(output_column)> tile = {
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
    tile.add(sums, kStride, rest, (int)threadIdx.x, kThreads);
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
