// SPDX-License-Identifier: Apache-2.0
// linear for 1 to 16 rows: W streams once from memory to the tensor cores, x waits in shared memory (sm_90a).
//
// Equal, by memcmp, to the chain of k16 steps of the portable linear and of the library without split-K, for every M.
// A tile is 16 rows of W by all of K: one warp brings it in by itself (cp.async, `D` stages of 128 k ahead) and runs
// its chain, W as the 16-row operand, x as the 8 columns of each product. No barrier in the loop. Weights are asked for
// before the launch before this one has ended; x is read after that, normed if asked, and kept as T.
//
// Grid, threads and dynamic memory: hopper_linear_plan(). Needs: K a multiple of 16; x, W, out on 16-byte boundaries,
// x_stride a multiple of 8 (F32: 4); one threadgroup takes tiles blockIdx.x, + gridDim.x, ...
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/norm_sum.h"

template <typename T, int MT, int D>
struct HopperLinearFew {
  enum { kStage = kHopperStageBytes };

  // Where this warp's stream of stages stands: tile after tile, 128 k at a time.
  struct Stream {
    int tile, k, slot;
  };
  struct Fragments {
    uint w[8][4];
    uint x[MT][4][4];  // two k16 steps each
  };
  // What a lane brings in: half a warp a row, 16 pieces of 16 bytes, piece c of row r at c ^ (r % 8).
  struct Lane {
    uint rows[8];  // of W, rows 2i + lane / 16 of the tile, in pieces of 16 bytes
    uint to[4];    // where rows 2i + lane / 16 of a stage go, and 2048 bytes on rows + 8
  };

  HOPPER_FN void next(const HopperLinearParams& p, Stream& s) {
    s.slot = s.slot + 1 == D ? 0 : s.slot + 1;
    s.k += 128;
    if (s.k >= p.k) {
      s.k = 0;
      s.tile += (int)gridDim.x * p.active_warps;
    }
  }

  HOPPER_FN void begin(Lane& mine, uint ring, int lane) {
    UNROLL for (int i = 0; i < 4; i++) {
      const int r = 2 * i + (lane >> 4);
      mine.to[i] = ring + r * 256 + (((lane & 15) ^ r) << 4);
    }
  }

  // Always closes a group, also past the stream's end.
  HOPPER_FN void load(const HopperLinearParams& p, Stream& s, Lane& mine, const T* w, int lane) {
    const int piece = lane & 15;
    if (s.tile < p.tiles) {
      if (s.k == 0) {
        UNROLL for (int i = 0; i < 8; i++) {
          mine.rows[i] = (uint)hopper_linear_row(p, s.tile, 2 * i + (lane >> 4)) * (uint)(p.k >> 3) + piece;
        }
      }
      if (s.k + piece * 8 < p.k) {
        const uint stage = s.slot * kStage;
        UNROLL for (int i = 0; i < 8; i++) {
          hopper_copy16(mine.to[i & 3] + stage + (i >> 2) * 2048, (const uint4*)w + (mine.rows[i] + (uint)(s.k >> 3)));
        }
      }
    }
    ptx_copy_commit();
    next(p, s);
  }

  HOPPER_FN void fetch(Fragments& f, const Stream& s, uint ring, const uint* x_rows, int lane) {
    const uint row = ring + s.slot * kStage + (lane & 15) * 256;
    const int turn = (lane >> 4) ^ (lane & 7);
    UNROLL for (int i = 0; i < 8; i++) hopper_ldmatrix(f.w[i], row + (((2 * i) ^ turn) << 4));
    UNROLL for (int j = 0; j < MT; j++) {
      UNROLL for (int i = 0; i < 4; i++) hopper_ldmatrix(f.x[j][i], x_rows[j] + (s.k + 32 * i) * 2);
    }
  }

  HOPPER_FN void multiply(const HopperLinearParams& p, const Fragments& f, int k, float (&acc)[MT][4]) {
    if (k + 128 <= p.k) {
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

  HOPPER_FN void bring_rows(const HopperLinearParams& p, T* rows, const void* x, const float* norm, float* chains) {
    const int tid = (int)threadIdx.x, stride = p.k + 8;
    if (!p.normed) {
      const int pieces = p.k / 8, all = p.m * pieces;
      for (int i0 = tid; i0 < all; i0 += 4 * kHopperLinearThreads) {
        uint4 v[4];
        UNROLL for (int u = 0; u < 4; u++) {
          const int i = i0 + u * kHopperLinearThreads;
          if (i < all) v[u] = __ldcg((const uint4*)((const T*)x + (i64)(i / pieces) * p.x_stride + (i % pieces) * 8));
        }
        UNROLL for (int u = 0; u < 4; u++) {
          const int i = i0 + u * kHopperLinearThreads;
          if (i < all) *(uint4*)(rows + (i / pieces) * stride + (i % pieces) * 8) = v[u];
        }
      }
      return;
    }
    for (int m = 0; m < p.m; m++) norm_row(p, rows + m * stride, (const float*)x + (i64)m * p.x_stride, norm, chains);
  }

  // The order of norm_sum.h: thread t has the chains t / 32 and t / 32 + 4 of lane t % 32.
  HOPPER_FN void norm_row(const HopperLinearParams& p, T* to_row, const float* row, const float* norm, float* chains) {
    enum { kHeld = 16 };  // elements a thread keeps: rows of up to 2048 are read once
    const int tid = (int)threadIdx.x;
    float held[kHeld], weight[kHeld];
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int k = tid + i * kHopperLinearThreads;
      held[i] = k < p.k ? __ldcg(row + k) : 0.0f;
      weight[i] = k < p.k ? norm[k] : 0.0f;
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
    __syncthreads();
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

  HOPPER_FN void run(const HopperLinearParams& p, void* out, const void* x, const T* w, const float* bias,
                     const float* norm, const float* residual) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ float chains[256];
    ptx_grid_release();
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    const uint ring = ptx_shared_address(shared) + warp * D * kStage;
    T* rows = (T*)(shared + p.active_warps * D * kStage);
    const bool active = warp < p.active_warps;

    const Stream start = {active ? (int)(blockIdx.x + gridDim.x * warp) : p.tiles, 0, 0};
    Stream ahead = start;
    Lane mine;
    begin(mine, ring, lane);
#pragma unroll 1
    for (int i = 0; i < D; i++) load(p, ahead, mine, w, lane);
    ptx_grid_wait();
    bring_rows(p, rows, x, norm, chains);
    __syncthreads();
    if (start.tile >= p.tiles) return;

    uint x_rows[MT];  // rows that are not there repeat the last one
    UNROLL for (int j = 0; j < MT; j++) {
      x_rows[j] = ptx_shared_address(rows + min(8 * j + (lane & 7), p.m - 1) * (p.k + 8) + (lane >> 3) * 8);
    }
    float acc[MT][4] = {};
    Fragments even, odd;
    Stream at = start;
    ptx_copy_wait<D - 1>();
    __syncwarp();
    fetch(even, at, ring, x_rows, lane);
    while (true) {
      if (step(p, even, odd, at, ahead, mine, acc, ring, x_rows, out, w, bias, residual, lane)) break;
      if (step(p, odd, even, at, ahead, mine, acc, ring, x_rows, out, w, bias, residual, lane)) break;
    }
  }

  // Multiplies one stage while the next one goes to registers; true at the end of the warp's stream.
  HOPPER_FN bool step(const HopperLinearParams& p, const Fragments& now, Fragments& then, Stream& at, Stream& ahead,
                      Lane& mine, float (&acc)[MT][4], uint ring, const uint* x_rows, void* out, const T* w,
                      const float* bias, const float* residual, int lane) {
    const Stream here = at;
    next(p, at);
    if (at.tile < p.tiles) {
      ptx_copy_wait<D - 2>();
      __syncwarp();
      fetch(then, at, ring, x_rows, lane);
    }
    multiply(p, now, here.k, acc);
    load(p, ahead, mine, w, lane);
    if (at.k == 0) {
      UNROLL for (int j = 0; j < MT; j++) {
        hopper_linear_finish<T>(p, acc[j], here.tile, lane >> 2, 8 * j + (lane & 3) * 2, out, bias, residual);
        UNROLL for (int i = 0; i < 4; i++) acc[j][i] = 0.0f;
      }
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
HOPPER_LINEAR_FEW(bf16, bfloat, 8, 8)
HOPPER_LINEAR_FEW(bf16, bfloat, 8, 24)
HOPPER_LINEAR_FEW(bf16, bfloat, 16, 8)
HOPPER_LINEAR_FEW(bf16, bfloat, 16, 24)
HOPPER_LINEAR_FEW(f16, half, 8, 8)
HOPPER_LINEAR_FEW(f16, half, 8, 24)
HOPPER_LINEAR_FEW(f16, half, 16, 8)
HOPPER_LINEAR_FEW(f16, half, 16, 24)
