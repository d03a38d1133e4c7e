// SPDX-License-Identifier: Apache-2.0
// linear for 1 to 16 rows: W is streamed once from memory to the tensor cores, x stays in shared memory (sm_90a).
//
// Equal by memcmp to the chain of k16 steps of the portable linear and of cuBLASLt without split-K, for every M. A tile
// is 16 rows of W by all of K, and its chain runs in one warp: W is the 16-row operand, x the 8 columns of each
// product. That chain takes most of the time. So other warps load W (cp.async, `D` chunks of 128 k ahead), and the warp
// of the chain does nothing else (linear_chain.cuh). The first weights are loaded while the preceding launch still
// runs; x is read after it, normalised if required, and kept as T.
//
// Grid, threads and dynamic memory: hopper_linear_plan(). REQUIRES: K is a multiple of 16; x, W and out are on 16-byte
// boundaries, x_stride is a multiple of 8 (F32: 4). A threadgroup takes the tiles blockIdx.x, blockIdx.x + gridDim.x,
// ...
#pragma once

#include "kernels/cuda/linear_chain.cuh"
#include "kernels/norm_sum.h"

template <typename T, int MT, int D>
struct HopperLinearFew {
  typedef HopperChain<T, MT, true> Chain;
  enum {
    kThreads = kHopperFewThreads,
    kChunk = 128,            // k
    kRow = kChunk * 2 + 16,  // bytes of a row of W in a chunk; the padding of 16 spreads eight rows over all banks
    kStage = 16 * kRow,
    kHeld = 8  // elements that a thread keeps of a row to normalise; rows of up to 2048 are read once
  };

  // A position in a stream of chunks, tile after tile.
  struct Stream {
    int tile, k, slot, parity;
  };
  struct Smem {
    unsigned long long full[4][D], empty[4][D];  // mbarriers of the chunks of each chain
    unsigned long long x_full;
    float chains[256];
  };

  HOPPER_FN void advance(const HopperLinearParams& p, Stream& s, int chunks) {
    s.slot += chunks;
    if (s.slot >= D) {
      s.slot -= D;
      s.parity ^= 1;
    }
    s.k += chunks * kChunk;
    while (s.k >= p.k) {
      s.k -= (p.k + kChunk - 1) / kChunk * kChunk;
      s.tile += (int)gridDim.x * p.active_warps;
    }
  }

  // ---- the warps that load W ----

  // Half a warp per row, 16 pieces of 16 bytes.
  HOPPER_FN void load(const HopperLinearParams& p, const Stream& s, uint ring, uint full, const T* w, int lane) {
    const int piece = lane & 15;
    if (s.k + piece * 8 < p.k) {
      const unsigned long long policy = hopper_read_once();
      const uint to = ring + s.slot * kStage + (lane >> 4) * kRow + piece * 16;
      UNROLL for (int i = 0; i < 8; i++) {
        const T* row = w + (i64)hopper_linear_row(p, s.tile, 2 * i + (lane >> 4)) * p.k;
        hopper_copy16(to + i * 2 * kRow, row + s.k + piece * 8, policy);
      }
    }
    hopper_barrier_arrive_copied(full + s.slot * 8);
  }

  // ---- the warps that multiply ----

  HOPPER_FN void chain(const HopperLinearParams& p, Stream at, uint ring, uint full, uint empty, const T* rows,
                       void* out, const float* bias, const float* residual, int lane) {
    const uint lane_w = ring + (lane & 15) * kRow + (lane >> 4) * 16;
    uint x[MT], next_x[MT];  // absent rows repeat the last one
    UNROLL for (int j = 0; j < MT; j++) {
      x[j] = ptx_shared_address(rows + min(8 * j + (lane & 7), p.m - 1) * (p.k + 8) + (lane >> 3) * 8);
      next_x[j] = x[j];
    }
    typename Chain::Sums sums = {};
    typename Chain::Window f;
    Chain::begin(p, sums, at.tile, 0, residual, lane);
    hopper_barrier_wait(full + at.slot * 8, at.parity);
    Chain::first_four(f, lane_w + at.slot * kStage, x);
    const int stride = (int)gridDim.x * p.active_warps;
#pragma unroll 1
    while (true) {
      const int steps = min((int)kChunk, p.k - at.k) / 16;
      Chain::first_half(sums, f, steps, lane_w + at.slot * kStage, x);
      // Computed without a branch, during the latency of the products.
      const bool turned = at.slot + 1 == D, ended = at.k + kChunk >= p.k;
      const Stream next = {at.tile + (ended ? stride : 0), ended ? 0 : at.k + kChunk, turned ? 0 : at.slot + 1,
                           at.parity ^ (turned ? 1 : 0)};
      const bool more = next.tile < p.tiles;
      const uint next_w = lane_w + next.slot * kStage;
      UNROLL for (int j = 0; j < MT; j++) next_x[j] = x[j] + (next.k - at.k) * 2;
      if (more) hopper_barrier_wait(full + next.slot * 8, next.parity);
      Chain::second_half(sums, f, steps, more, next_w, next_x);
      // All lanes have read all of the chunk into registers.
      __syncwarp();
      if (lane == 0) hopper_barrier_arrive(empty + at.slot * 8);
      if (ended) {
        Chain::finish(p, sums, at.tile, 0, out, bias, residual, lane);
        if (more) Chain::begin(p, sums, next.tile, 0, residual, lane);
      }
      if (!more) return;
      at = next;
      UNROLL for (int j = 0; j < MT; j++) x[j] = next_x[j];
    }
  }

  // ---- x ----

  // Normalises one row with all threads; each has one chain of norm_sum.h.
  HOPPER_FN void norm_one(const HopperLinearParams& p, T* to_row, const float* row, const float* norm,
                          const float (&weight)[kHeld], float* chains) {
    const int tid = (int)threadIdx.x;
    float held[kHeld], sum = 0.0f;
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int k = tid + i * kThreads;
      held[i] = k < p.k ? __ldcg(row + k) : 0.0f;
    }
    UNROLL for (int i = 0; i < kHeld; i++) sum = fma(held[i], held[i], sum);
    for (int k = tid + kHeld * kThreads; k < p.k; k += kThreads) {
      const float v = __ldcg(row + k);
      sum = fma(v, v, sum);
    }
    chains[tid] = sum;
    __syncthreads();
    const float* c = chains + (tid & 31);
    const float inverse =
        norm_inverse(simd_sum(norm_fold(c[0], c[32], c[64], c[96], c[128], c[160], c[192], c[224])), p.k, p.eps);
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int k = tid + i * kThreads;
      if (k < p.k) to_row[k] = to<T>((held[i] * inverse) * weight[i]);
    }
    for (int k = tid + kHeld * kThreads; k < p.k; k += kThreads) {
      to_row[k] = to<T>((__ldcg(row + k) * inverse) * norm[k]);
    }
  }

  // Normalises several rows, one per warp; a lane has its eight chains.
  HOPPER_FN void norm_rows(const HopperLinearParams& p, T* rows, const float* x, const float* norm) {
    const int lane = (int)threadIdx.x & 31;
    for (int m = (int)threadIdx.x >> 5; m < p.m; m += kThreads / 32) {
      const float* row = x + (i64)m * p.x_stride;
      T* to_row = rows + m * (p.k + 8);
      float c[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
      for (int base = lane; base < p.k; base += 1024) {
        float v[32];
        UNROLL for (int i = 0; i < 32; i++) v[i] = base + 32 * i < p.k ? __ldcg(row + base + 32 * i) : 0.0f;
        UNROLL for (int i = 0; i < 32; i++) c[i & 7] = fma(v[i], v[i], c[i & 7]);
      }
      const float inverse =
          norm_inverse(simd_sum(norm_fold(c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7])), p.k, p.eps);
      for (int base = lane; base < p.k; base += 1024) {
        float v[32];
        UNROLL for (int i = 0; i < 32; i++) v[i] = base + 32 * i < p.k ? __ldcg(row + base + 32 * i) : 0.0f;
        UNROLL for (int i = 0; i < 32; i++) {
          const int k = base + 32 * i;
          if (k < p.k) to_row[k] = to<T>((v[i] * inverse) * norm[k]);
        }
      }
    }
  }

  HOPPER_FN void load_rows(const HopperLinearParams& p, T* rows, const void* x, const float* norm,
                           const float (&weight)[kHeld], Smem& sm) {
    if (p.normed && p.m == 1) {
      norm_one(p, rows, (const float*)x, norm, weight, sm.chains);
    } else if (p.normed) {
      norm_rows(p, rows, (const float*)x, norm);
    } else {
      const uint full = ptx_shared_address(&sm.x_full);
      if (threadIdx.x < 32) {
        if (threadIdx.x == 0) hopper_barrier_expect(full, p.m * p.k * 2);
        __syncwarp();
        if ((int)threadIdx.x < p.m) {
          asm volatile("fence.proxy.async;" ::: "memory");
          hopper_copy_bulk(ptx_shared_address(rows + threadIdx.x * (p.k + 8)),
                           (const T*)x + (i64)threadIdx.x * p.x_stride, p.k * 2, full);
        }
      }
      hopper_barrier_wait(full, 0);
      return;
    }
    __syncthreads();
  }

  HOPPER_FN void run(const HopperLinearParams& p, void* out, const void* x, const T* w, const float* bias,
                     const float* norm, const float* residual) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Smem sm;
    ptx_grid_release();
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    T* rows = (T*)(shared + p.active_warps * D * kStage);
    if ((int)threadIdx.x < 4 * D) {
      hopper_barrier_init(ptx_shared_address(&sm.full[0][0]) + threadIdx.x * 8, 32);
      hopper_barrier_init(ptx_shared_address(&sm.empty[0][0]) + threadIdx.x * 8, 1);
      if (threadIdx.x == 0) hopper_barrier_init(ptx_shared_address(&sm.x_full), 1);
      hopper_barrier_init_done();
    }
    __syncthreads();
    // Warps 0 to 3 run chains. Warps 4 to 7 load W for chain (warp - 4) % active_warps; for a single chain all four
    // take its chunks in turn.
    const int helpers = 4 / p.active_warps, helper = warp < 4 ? 0 : (warp - 4) / p.active_warps;
    const int mine = warp < 4 ? warp : (warp - 4) % p.active_warps;
    const bool idle = warp < 4 ? warp >= p.active_warps : helper >= helpers;
    const uint ring = ptx_shared_address(shared) + mine * D * kStage;
    const uint full = ptx_shared_address(sm.full[mine]), empty = ptx_shared_address(sm.empty[mine]);
    Stream at = {idle ? p.tiles : (int)(blockIdx.x + gridDim.x * mine), 0, 0, 0};
    if (warp >= 4 && helper > 0 && !idle) advance(p, at, helper);
    float weight[kHeld];  // weights of the norm, loaded ahead as well
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int k = (int)threadIdx.x + i * kThreads;
      weight[i] = p.normed && k < p.k ? norm[k] : 0.0f;
    }
    if (warp >= 4) {
#pragma unroll 1
      for (int i = 0; i < D / helpers && at.tile < p.tiles; i++) {
        load(p, at, ring, full, w, lane);
        advance(p, at, helpers);
      }
    }
    ptx_grid_wait();
    load_rows(p, rows, x, norm, weight, sm);
    if (at.tile >= p.tiles) return;
    if (warp < 4) return chain(p, at, ring, full, empty, rows, out, bias, residual, lane);
    while (at.tile < p.tiles) {
      hopper_barrier_wait(empty + at.slot * 8, at.parity ^ 1);
      load(p, at, ring, full, w, lane);
      advance(p, at, helpers);
    }
    // A thread must not exit while its own copies are in flight.
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
};

#define HOPPER_LINEAR_FEW(types, T, rows, depth)                                                                 \
  extern "C" __global__ void __launch_bounds__(kHopperFewThreads, 2) hopper_linear_##types##_m##rows##_d##depth( \
      const __grid_constant__ HopperLinearParams p, void* out, const void* x, const T* w, const float* bias,     \
      const float* norm, const float* residual) {                                                                \
    HopperLinearFew<T, rows / 8, depth>::run(p, out, x, w, bias, norm, residual);                                \
  }
HOPPER_LINEAR_FEW(bf16, bfloat, 8, 8)
HOPPER_LINEAR_FEW(bf16, bfloat, 8, 24)
HOPPER_LINEAR_FEW(bf16, bfloat, 16, 8)
HOPPER_LINEAR_FEW(bf16, bfloat, 16, 24)
HOPPER_LINEAR_FEW(f16, half, 8, 8)
HOPPER_LINEAR_FEW(f16, half, 8, 24)
HOPPER_LINEAR_FEW(f16, half, 16, 8)
HOPPER_LINEAR_FEW(f16, half, 16, 24)
