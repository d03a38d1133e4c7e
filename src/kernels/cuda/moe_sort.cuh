// SPDX-License-Identifier: Apache-2.0
// Sorts the choices of a mixture of experts by expert, and copies each choice's row of x to its place (sm_90a).
//
// A choice's place depends on the choices before it alone, so every threadgroup computes the places by itself and
// copies a part of the rows; the first one also writes the tables. Choices are taken in rounds of 1,024, one per
// thread: the choices of an expert within a warp are counted by a match, those of earlier warps by a sum over warps. A
// choice with a negative id, an expert of another rank, has no place (-1).
//
// Grid: any. Threads: kHopperMoeSortThreads. REQUIRES: at most kHopperMoeSortExperts experts; rows of x are whole
// 16-byte pieces.
#pragma once

#include "kernels/cuda/hopper.cuh"

struct HopperMoeSort {
  enum { kThreads = kHopperMoeSortThreads, kWarps = kThreads / 32, kExperts = kHopperMoeSortExperts };
  struct Smem {
    ushort in_warp[kWarps][kExperts];  // choices of the round in each warp, then in the warps before it
    int counts[kExperts];
    int places[kExperts];  // of each expert's next choice
    int place[kThreads];   // of the round's choices
    int tiles;
  };

  // Counts the choices of all experts, and gives each expert its first place and tile.
  HOPPER_FN void divide(const HopperMoeSortParams& p, Smem& sm, int* experts, const int* ids) {
    const int tid = (int)threadIdx.x;
    for (int e = tid; e < p.experts; e += kThreads) sm.counts[e] = 0;
    __syncthreads();
    for (int i = tid; i < p.choices; i += kThreads) {
      const int id = __ldcg(ids + i);
      if (id >= 0) atomicAdd(&sm.counts[id], 1);
    }
    __syncthreads();
    if (tid < 32) {
      const int each = (p.experts + 31) / 32, first = tid * each, end = min(first + each, p.experts);
      int tiles = 0;
      for (int e = first; e < end; e++) tiles += (sm.counts[e] + p.tile_rows - 1) / p.tile_rows;
      int before = tiles;
      UNROLL for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, step);
        if (tid >= step) before += other;
      }
      if (tid == 31) sm.tiles = before;
      before -= tiles;
      for (int e = first; e < end; e++) {
        sm.places[e] = before * p.tile_rows;
        before += (sm.counts[e] + p.tile_rows - 1) / p.tile_rows;
      }
    }
    __syncthreads();
    if (blockIdx.x != 0) return;
    for (int e = tid; e < p.experts; e += kThreads) {
      const int first = sm.places[e] / p.tile_rows;
      for (int i = 0; i * p.tile_rows < sm.counts[e]; i++) {
        experts[first + i] = e;
        experts[p.max_tiles + first + i] = min(p.tile_rows, sm.counts[e] - i * p.tile_rows);
      }
    }
    for (int i = sm.tiles + tid; i < p.max_tiles; i += kThreads) experts[i] = -1;
  }

  // Finds the places of the choices [from, from + kThreads).
  HOPPER_FN void find_places(const HopperMoeSortParams& p, Smem& sm, const int* ids, int from) {
    const int tid = (int)threadIdx.x, warp = tid >> 5, lane = tid & 31;
    const int id = from + tid < p.choices ? __ldcg(ids + from + tid) : -1;
    for (int e = lane; e < p.experts; e += 32) sm.in_warp[warp][e] = 0;
    __syncwarp();
    const uint same = __match_any_sync(0xffffffffu, id);
    const int rank = __popc(same & ((1u << lane) - 1));
    if (rank == 0 && id >= 0) sm.in_warp[warp][id] = (ushort)__popc(same);
    __syncthreads();
    int sum = 0;
    if (tid < p.experts) {
      UNROLL for (int w = 0; w < kWarps; w++) {
        const int count = sm.in_warp[w][tid];
        sm.in_warp[w][tid] = (ushort)sum;
        sum += count;
      }
    }
    __syncthreads();
    sm.place[tid] = id >= 0 ? sm.places[id] + sm.in_warp[warp][id] + rank : -1;
    __syncthreads();
    if (tid < p.experts) sm.places[tid] += sum;
  }

  // At most 32 choices, one per lane of the first warp, as short code: a small launch takes about as long as its
  // instructions take to arrive.
  HOPPER_FN void sort_few(const HopperMoeSortParams& p, Smem& sm, int* places, int* experts, const int* ids) {
    const int lane = (int)threadIdx.x;
    const int given = lane < p.choices ? __ldcg(ids + lane) : -1, id = given >= 0 ? given : p.experts;
    const uint same = __match_any_sync(0xffffffffu, id);
    const int rank = __popc(same & ((1u << lane) - 1));
    const int tiles = given >= 0 ? (__popc(same) + p.tile_rows - 1) / p.tile_rows : 0;
    int before = 0, all = 0;
#pragma unroll 4
    for (int i = 0; i < p.choices; i++) {
      const int other = __shfl_sync(0xffffffffu, id, i);
      const int count = __shfl_sync(0xffffffffu, rank == 0 ? tiles : 0, i);
      before += other < id ? count : 0;
      all += count;
    }
    const int place = given >= 0 ? before * p.tile_rows + rank : -1;
    sm.place[lane] = place;
    if (blockIdx.x != 0) return;
    if (lane < p.choices) places[lane] = place;
    if (rank < tiles) {
      experts[before + rank] = id;
      experts[p.max_tiles + before + rank] = min(p.tile_rows, __popc(same) - rank * p.tile_rows);
    }
    for (int i = all + lane; i < p.max_tiles; i += 32) experts[i] = -1;
  }

  // Copies the rows of choices [from, from + count), whose places are known; this threadgroup takes every `groups`-th
  // choice.
  HOPPER_FN void copy_rows(const HopperMoeSortParams& p, const Smem& sm, uint4* sorted, const uint4* x, int from,
                           int count) {
    const int groups = (int)gridDim.x, first = ((int)blockIdx.x - from % groups + groups) % groups;
    const int rows = first < count ? (count - first + groups - 1) / groups : 0;
    for (int i = (int)threadIdx.x; i < rows * p.pieces; i += kThreads) {
      const int choice = first + i / p.pieces * groups, piece = i % p.pieces;
      if (sm.place[choice] < 0) continue;
      sorted[(i64)sm.place[choice] * p.sorted_stride + piece] =
          __ldcg(x + (i64)((from + choice) / p.of_token) * p.x_stride + piece);
    }
  }

  HOPPER_FN void run(const HopperMoeSortParams& p, int* places, int* experts, uint4* sorted, const int* ids,
                     const uint4* x) {
    __shared__ Smem sm;
    ptx_grid_wait();
    ptx_grid_release();
    const int tid = (int)threadIdx.x;
    if (p.choices <= 32) {
      if (tid < 32) sort_few(p, sm, places, experts, ids);
      __syncthreads();
      copy_rows(p, sm, sorted, x, 0, p.choices);
      return;
    }
    divide(p, sm, experts, ids);
#pragma unroll 1
    for (int from = 0; from < p.choices; from += kThreads) {
      find_places(p, sm, ids, from);
      const int count = min((int)kThreads, p.choices - from);
      if (blockIdx.x == 0 && tid < count) places[from + tid] = sm.place[tid];
      copy_rows(p, sm, sorted, x, from, count);
      __syncthreads();
    }
  }
};

extern "C" __global__ void __launch_bounds__(kHopperMoeSortThreads)
    hopper_moe_sort(const __grid_constant__ HopperMoeSortParams p, int* places, int* experts, uint4* sorted,
                    const int* ids, const uint4* x) {
  HopperMoeSort::run(p, places, experts, sorted, ids, x);
}
