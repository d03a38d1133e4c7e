// SPDX-License-Identifier: Apache-2.0
// The start of a mixture of experts for at most 32 choices: the router's choice, the sort of the choices by expert, and
// the norm of each choice's row on the way to its place (sm_90a).
//
// Equal by memcmp to moe_route, rms_norm and moe_sort.cuh one after another. All of this takes less time than a launch,
// so every threadgroup makes the choices of all tokens by itself and then writes the row of one choice.
//
// Grid: (choices). Threads: kHopperMoeBeginThreads.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/moe_choice.h"
#include "kernels/norm_sum.h"

template <typename T>
struct HopperMoeBegin {
  typedef MoeRoute<kHopperMoeBeginExperts> Route;
  enum { kThreads = kHopperMoeBeginThreads, kWarps = kThreads / 32, kHeld = 16 };
  struct Smem {
    Route::Smem route[kWarps];
    int ids[kHopperMoeBeginChoices];
    float chains[kThreads];
  };

  // A warp has one choice per lane; lanes past the last choice have expert -1. Returns the lane's place.
  HOPPER_FN int place_of(const HopperMoeSortParams& p, int id, int* places, int* experts, int lane) {
    const uint same = __match_any_sync(0xffffffffu, id);
    const int rank = __popc(same & ((1u << lane) - 1));
    const int tiles = rank == 0 && id >= 0 ? (__popc(same) + p.tile_rows - 1) / p.tile_rows : 0;
    int before = 0, all = 0;
    UNROLL for (int j = 0; j < 32; j++) {
      const int other = __shfl_sync(0xffffffffu, id, j), its_tiles = __shfl_sync(0xffffffffu, tiles, j);
      before += other < id ? its_tiles : 0;
      all += its_tiles;
    }
    const int place = before * p.tile_rows + rank;
    if (places != nullptr) {
      if (id >= 0) places[lane] = place;
      for (int i = 0; i < tiles; i++) experts[before + i] = id;
      for (int i = all + lane; i < p.max_tiles; i += 32) experts[i] = -1;
    }
    return place;
  }

  HOPPER_FN void run(const HopperMoeBeginParams& p, int* ids, float* weights, int* places, int* experts, T* sorted,
                     const float* logits, const float* bias, const float* expert_scale, const float* x,
                     const float* norm) {
    __shared__ Smem sm;
    const int tid = (int)threadIdx.x, warp = tid >> 5, lane = tid & 31, choice = (int)blockIdx.x;
    const int tokens = p.sort.choices / p.sort.of_token;
    const float* row = x + (i64)(choice / p.sort.of_token) * p.sort.x_stride;
    float held[kHeld], weight[kHeld];
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int k = tid + i * kThreads;
      weight[i] = k < p.columns ? norm[k] : 0.0f;
    }
    ptx_grid_wait();
    ptx_grid_release();
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int k = tid + i * kThreads;
      held[i] = k < p.columns ? __ldcg(row + k) : 0.0f;
    }
    for (int t = warp; t < tokens; t += kWarps) {
      Route::Smem& route = sm.route[warp];
      Route::choose(p.route, route, logits + (i64)t * p.route.stride, bias, expert_scale, (uint)lane);
      for (int r = lane; r < p.sort.of_token; r += 32) {
        const int at = t * p.sort.of_token + r;
        sm.ids[at] = route.id[r];
        if (choice == 0) {
          ids[at] = route.id[r];
          weights[at] = route.weight[r];
        }
      }
      __syncwarp();
    }
    float sum = 0.0f;
    UNROLL for (int i = 0; i < kHeld; i++) sum = fma(held[i], held[i], sum);
    for (int k = tid + kHeld * kThreads; k < p.columns; k += kThreads) {
      const float v = __ldcg(row + k);
      sum = fma(v, v, sum);
    }
    sm.chains[tid] = sum;
    __syncthreads();
    const bool writes = choice == 0 && warp == 0;
    const int place = place_of(p.sort, lane < p.sort.choices ? sm.ids[lane] : -1, writes ? places : nullptr, experts, lane);
    T* to_row = sorted + (i64)__shfl_sync(0xffffffffu, place, choice) * p.sort.sorted_stride;
    const float* c = sm.chains + lane;
    const float inverse =
        norm_inverse(simd_sum(norm_fold(c[0], c[32], c[64], c[96], c[128], c[160], c[192], c[224])), p.columns, p.eps);
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int k = tid + i * kThreads;
      if (k < p.columns) to_row[k] = to<T>((held[i] * inverse) * weight[i]);
    }
    for (int k = tid + kHeld * kThreads; k < p.columns; k += kThreads) {
      to_row[k] = to<T>((__ldcg(row + k) * inverse) * norm[k]);
    }
  }
};

#define HOPPER_MOE_BEGIN(types, T)                                                                                 \
  extern "C" __global__ void __launch_bounds__(kHopperMoeBeginThreads)                                             \
      hopper_moe_begin_##types(const __grid_constant__ HopperMoeBeginParams p, int* ids, float* weights, int* places, \
                               int* experts, T* sorted, const float* logits, const float* bias,                    \
                               const float* expert_scale, const float* x, const float* norm) {                     \
    HopperMoeBegin<T>::run(p, ids, weights, places, experts, sorted, logits, bias, expert_scale, x, norm);         \
  }
HOPPER_MOE_BEGIN(bf16, bfloat)
HOPPER_MOE_BEGIN(f16, half)
