// SPDX-License-Identifier: Apache-2.0
// linear for 1 to 16 rows: W streams once from memory to the tensor cores, x waits in shared memory (sm_90a).
//
// Equal, by memcmp, to the chain of k16 steps of the portable linear and of the library without split-K, for every M.
// A tile is 16 rows of W by all of K: one warp brings it in by itself (the copy engine, `D` stages of 512 k ahead) and
// runs its chain, W as the 16-row operand, x as the 8 columns of each product. No barrier among warps in the loop.
// Weights are asked for before the launch before this one has ended; x is read after that, normed if asked, kept as T.
// The copy engine, because a warp has few copies of its own in flight: 16 of cp.async, 8 KB.
//
// Grid, threads and dynamic memory: hopper_linear_plan(). Needs: K a multiple of 16; x, W, out on 16-byte boundaries,
// x_stride a multiple of 8 (F32: 4); one threadgroup takes tiles blockIdx.x, + gridDim.x, ...
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/norm_sum.h"

template <typename T, int MT, int D>
struct HopperLinearFew {
  enum {
    kStageK = kHopperStageK,
    kRow = kStageK * 2 + 16,  // bytes; what is over lets eight rows meet all banks
    kStage = 16 * kRow,
    kChunk = 128,  // k that go to registers at once
    kHeld = 16     // elements of a row to norm that a thread keeps: rows of up to 2048 are read once
  };

  // Where this warp's stream stands: tile after tile. `k` runs in stages (loads) or in chunks (products).
  struct Stream {
    int tile, k, slot, parity;
  };
  struct Fragments {
    uint w[8][4];
    uint x[MT][4][4];  // two k16 steps each
  };
  struct Sums {
    float acc[MT][4];
    float before[MT][4];  // of the residual
  };
  struct Smem {
    unsigned long long full[4][D];
    unsigned long long x_full;
    float chains[256];
  };

  template <int kStep>
  HOPPER_FN void next(const HopperLinearParams& p, Stream& s) {
    s.k += kStep;
    if (s.k >= p.k || s.k % kStageK == 0) {
      s.slot++;
      if (s.slot == D) {
        s.slot = 0;
        s.parity ^= 1;
      }
    }
    if (s.k >= p.k) {
      s.k = 0;
      s.tile += (int)gridDim.x * p.active_warps;
    }
  }

  // Lane r < 16 brings row r of the tile.
  HOPPER_FN void load(const HopperLinearParams& p, Stream& s, const T*& row, uint ring, uint full, const T* w,
                      int lane) {
    if (s.tile >= p.tiles) return;
    if (s.k == 0) row = w + (i64)hopper_linear_row(p, s.tile, lane & 15) * p.k;
    const uint bytes = min(p.k - s.k, (int)kStageK) * 2;
    if (lane == 0) hopper_barrier_expect(full + s.slot * 8, bytes * 16);
    __syncwarp();
    if (lane < 16) hopper_copy_bulk(ring + s.slot * kStage + lane * kRow, row + s.k, bytes, full + s.slot * 8);
    next<kStageK>(p, s);
  }

  HOPPER_FN void fetch(Fragments& f, const Stream& s, uint ring, uint full, const uint* x_rows, int lane) {
    if (s.k % kStageK == 0) hopper_barrier_wait(full + s.slot * 8, s.parity);
    const uint row = ring + s.slot * kStage + (lane & 15) * kRow + (lane >> 4) * 16 + (s.k % kStageK) * 2;
    UNROLL for (int i = 0; i < 8; i++) hopper_ldmatrix(f.w[i], row + i * 32);
    UNROLL for (int j = 0; j < MT; j++) {
      UNROLL for (int i = 0; i < 4; i++) hopper_ldmatrix(f.x[j][i], x_rows[j] + (s.k + 32 * i) * 2);
    }
  }

  HOPPER_FN void multiply(const HopperLinearParams& p, const Fragments& f, int k, float (&acc)[MT][4]) {
    if (k + kChunk <= p.k) {
      UNROLL for (int i = 0; i < 8; i++) {
        UNROLL for (int j = 0; j < MT; j++) {
          hopper_mma<T>(acc[j], f.w[i], f.x[j][i >> 1][(i & 1) * 2], f.x[j][i >> 1][(i & 1) * 2 + 1]);
        }
      }
    } else {
      UNROLL for (int i = 0; i < 8; i++) {
        if (k + 16 * i < p.k) {
          UNROLL for (int j = 0; j < MT; j++) {
            hopper_mma<T>(acc[j], f.w[i], f.x[j][i >> 1][(i & 1) * 2], f.x[j][i >> 1][(i & 1) * 2 + 1]);
          }
        }
      }
    }
  }

  HOPPER_FN void begin(const HopperLinearParams& p, Sums& sums, int tile, const float* residual, int lane) {
    UNROLL for (int j = 0; j < MT; j++) {
      UNROLL for (int i = 0; i < 4; i++) sums.acc[j][i] = 0.0f;
      hopper_linear_before(p, sums.before[j], tile, lane >> 2, 8 * j + (lane & 3) * 2, residual);
    }
  }

  // One row, all threads. The order of norm_sum.h: thread t has the chains t / 32 and t / 32 + 4 of lane t % 32.
  HOPPER_FN void norm_one(const HopperLinearParams& p, T* to_row, const float* row, const float* norm,
                          const float (&weight)[kHeld], float* chains) {
    const int tid = (int)threadIdx.x;
    float held[kHeld];
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int k = tid + i * kHopperLinearThreads;
      held[i] = k < p.k ? __ldcg(row + k) : 0.0f;
    }
    float s0 = 0.0f, s1 = 0.0f;
    UNROLL for (int i = 0; i < kHeld; i += 2) {
      s0 = fma(held[i], held[i], s0);
      s1 = fma(held[i + 1], held[i + 1], s1);
    }
    for (int k = tid + kHeld * kHopperLinearThreads; k < p.k; k += 2 * kHopperLinearThreads) {
      const float a = __ldcg(row + k),
                  b = k + kHopperLinearThreads < p.k ? __ldcg(row + k + kHopperLinearThreads) : 0.0f;
      s0 = fma(a, a, s0);
      s1 = fma(b, b, s1);
    }
    chains[tid] = s0;
    chains[128 + tid] = s1;
    __syncthreads();
    const float* c = chains + (tid & 31);
    const float sum = simd_sum(norm_fold(c[0], c[32], c[64], c[96], c[128], c[160], c[192], c[224]));
    const float inverse = norm_inverse(sum, p.k, p.eps);
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int k = tid + i * kHopperLinearThreads;
      if (k < p.k) to_row[k] = to<T>((held[i] * inverse) * weight[i]);
    }
    for (int k = tid + kHeld * kHopperLinearThreads; k < p.k; k += kHopperLinearThreads) {
      to_row[k] = to<T>((__ldcg(row + k) * inverse) * norm[k]);
    }
  }

  // Several rows, a warp each: a lane keeps its eight chains.
  HOPPER_FN void norm_rows(const HopperLinearParams& p, T* rows, const float* x, const float* norm) {
    const int lane = (int)threadIdx.x & 31;
    for (int m = (int)threadIdx.x >> 5; m < p.m; m += kHopperLinearThreads / 32) {
      const float* row = x + (i64)m * p.x_stride;
      T* to_row = rows + m * (p.k + 8);
      float c[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
      for (int base = lane; base < p.k; base += 1024) {
        float v[32];
        UNROLL for (int i = 0; i < 32; i++) v[i] = base + 32 * i < p.k ? __ldcg(row + base + 32 * i) : 0.0f;
        UNROLL for (int i = 0; i < 32; i++) c[i & 7] = fma(v[i], v[i], c[i & 7]);
      }
      const float sum = simd_sum(norm_fold(c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]));
      const float inverse = norm_inverse(sum, p.k, p.eps);
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

  HOPPER_FN void bring_rows(const HopperLinearParams& p, T* rows, const void* x, const float* norm,
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
    const uint ring = ptx_shared_address(shared) + warp * D * kStage, full = ptx_shared_address(sm.full[warp]);
    T* rows = (T*)(shared + p.active_warps * D * kStage);
    if (lane == 0) {
      for (int i = 0; i < D; i++) hopper_barrier_init(full + i * 8, 1);
      if (warp == 0) hopper_barrier_init(ptx_shared_address(&sm.x_full), 1);
      hopper_barrier_init_done();
    }
    __syncwarp();
    const Stream start = {warp < p.active_warps ? (int)(blockIdx.x + gridDim.x * warp) : p.tiles, 0, 0, 0};
    Stream ahead = start;
    const T* row = w;
#pragma unroll 1
    for (int i = 0; i < D; i++) load(p, ahead, row, ring, full, w, lane);
    float weight[kHeld];  // of the norm: asked for ahead as well
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int k = (int)threadIdx.x + i * kHopperLinearThreads;
      weight[i] = p.normed && k < p.k ? norm[k] : 0.0f;
    }
    __syncthreads();  // the barriers' beginnings
    ptx_grid_wait();
    bring_rows(p, rows, x, norm, weight, sm);
    if (start.tile >= p.tiles) return;

    uint x_rows[MT];  // rows that are not there repeat the last one
    UNROLL for (int j = 0; j < MT; j++) {
      x_rows[j] = ptx_shared_address(rows + min(8 * j + (lane & 7), p.m - 1) * (p.k + 8) + (lane >> 3) * 8);
    }
    Sums sums = {};
    begin(p, sums, start.tile, residual, lane);
    Fragments even, odd;
    Stream at = start;
    fetch(even, at, ring, full, x_rows, lane);
    while (true) {
      if (step(p, even, odd, at, ahead, row, sums, ring, full, x_rows, out, w, bias, residual, lane)) break;
      if (step(p, odd, even, at, ahead, row, sums, ring, full, x_rows, out, w, bias, residual, lane)) break;
    }
  }

  // Multiplies one chunk while the next one goes to registers; true at the end of the warp's stream.
  HOPPER_FN bool step(const HopperLinearParams& p, const Fragments& now, Fragments& then, Stream& at, Stream& ahead,
                      const T*& row, Sums& sums, uint ring, uint full, const uint* x_rows, void* out, const T* w,
                      const float* bias, const float* residual, int lane) {
    const Stream here = at;
    next<kChunk>(p, at);
    if (at.tile < p.tiles) fetch(then, at, ring, full, x_rows, lane);
    multiply(p, now, here.k, sums.acc);
    // The stage's last chunk is in registers, in all lanes: fill it again.
    if (at.slot != here.slot) {
      __syncwarp();
      load(p, ahead, row, ring, full, w, lane);
    }
    if (at.k == 0) {
      UNROLL for (int j = 0; j < MT; j++) {
        hopper_linear_finish<T>(p, sums.acc[j], sums.before[j], here.tile, lane >> 2, 8 * j + (lane & 3) * 2, out,
                                bias);
      }
      if (at.tile < p.tiles) begin(p, sums, at.tile, residual, lane);
    }
    return at.tile >= p.tiles;
  }
};

#define HOPPER_LINEAR_FEW(types, T, rows, depth)                                                                 \
  extern "C" __global__ void __launch_bounds__(kHopperLinearThreads) hopper_linear_##types##_m##rows##_d##depth( \
      const __grid_constant__ HopperLinearParams p, void* out, const void* x, const T* w, const float* bias,     \
      const float* norm, const float* residual) {                                                                \
    HopperLinearFew<T, rows / 8, depth>::run(p, out, x, w, bias, norm, residual);                                \
  }
HOPPER_LINEAR_FEW(bf16, bfloat, 8, 2)
HOPPER_LINEAR_FEW(bf16, bfloat, 8, 6)
HOPPER_LINEAR_FEW(bf16, bfloat, 16, 2)
HOPPER_LINEAR_FEW(bf16, bfloat, 16, 6)
HOPPER_LINEAR_FEW(f16, half, 8, 2)
HOPPER_LINEAR_FEW(f16, half, 8, 6)
HOPPER_LINEAR_FEW(f16, half, 16, 2)
HOPPER_LINEAR_FEW(f16, half, 16, 6)
