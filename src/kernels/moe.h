// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: the router, the sort of the choices by expert, and the weighted sum of the experts' outputs; the
// contract is in ops/moe.h. The experts' products are in moe_linear.h.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/load4.h"
#include "kernels/moe_choice.h"
#include "kernels/params/moe.h"

struct MoeSums {
  int parts[kMoeThreads / 32];
};

// The sum over all threads of the threadgroup; every thread gets it.
FN int moe_sum(Ctx c, TGROUP MoeSums& sm, int v) {
  v = simd_sum(v);
  TG_BARRIER();
  if (c.lane == 0) sm.parts[c.sg] = v;
  TG_BARRIER();
  int sum = 0;
  for (int i = 0; i < kMoeThreads / 32; i++) sum += sm.parts[i];
  return sum;
}

// Counts the choices of each expert. Grid: (experts).
struct MoeCount {
  enum { kThreads = kMoeThreads };
  typedef MoeSums Smem;
  static FN void run(Ctx c, CONSTANT const MoeOrderParams& p, TGROUP Smem& sm, DEVICE int* counts,
                     DEVICE const int* ids) {
    int count = 0;
    for (int i = (int)c.tid; i < p.choices; i += kThreads) count += ids[i] == (int)c.tgx ? 1 : 0;
    count = moe_sum(c, sm, count);
    if (c.tid == 0) counts[c.tgx] = count;
  }
};

// Writes each expert's choices into the order. Each thread takes a contiguous range of choices, so they stay ascending.
// Grid: (experts).
struct MoePlace {
  enum { kThreads = kMoeThreads };
  struct Smem {
    MoeSums sums;
    int counts[kMoeThreads];
  };
  static FN void run(Ctx c, CONSTANT const MoeOrderParams& p, TGROUP Smem& sm, DEVICE int* order, DEVICE int* experts,
                     DEVICE const int* counts, DEVICE const int* ids) {
    const int expert = (int)c.tgx, t = (int)c.tid;
    int before = 0;
    for (int e = t; e < expert; e += kThreads) before += (counts[e] + p.tile_rows - 1) / p.tile_rows;
    const int first_tile = moe_sum(c, sm.sums, before), start = first_tile * p.tile_rows;
    const int tiles = (counts[expert] + p.tile_rows - 1) / p.tile_rows;

    const int stretch = (p.choices + kThreads - 1) / kThreads;
    const int from = t * stretch, end = min(from + stretch, p.choices);
    int mine = 0;
    for (int i = from; i < end; i++) mine += ids[i] == expert ? 1 : 0;
    sm.counts[t] = mine;
    TG_BARRIER();
    int at = start;
    for (int i = 0; i < t; i++) at += sm.counts[i];
    for (int i = from; i < end && mine > 0; i++) {
      if (ids[i] == expert) order[at++] = i;
    }
    for (int i = counts[expert] + t; i < tiles * p.tile_rows; i += kThreads) order[start + i] = -1;
    for (int i = t; i < tiles; i += kThreads) experts[first_tile + i] = expert;
    if (expert == p.experts - 1) {
      for (int i = first_tile + tiles + t; i < p.max_tiles; i += kThreads) experts[i] = -1;
    }
  }
};

// The weighted sum over the token's choices, rank 0 first, rounded to T; four columns per thread. Grid: (tokens,
// columns / 512).
template <typename T>
struct MoeSum4 {
  static FN float4 run(CONSTANT const MoeCombineParams& p, i64 token, int column, DEVICE const T* y,
                       DEVICE const float* weights, DEVICE const int* places) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int r = 0; r < p.k; r++) {
      const i64 choice = token * p.k + r, row = p.sorted != 0 ? places[choice] : choice;
      const float4 v = row_load4(y + row * p.y_stride, column, p.columns, p.aligned);
      const float w = weights[choice];
      sum.x = fma(w, v.x, sum.x);
      sum.y = fma(w, v.y, sum.y);
      sum.z = fma(w, v.z, sum.z);
      sum.w = fma(w, v.w, sum.w);
    }
    return sum;
  }
};

template <typename T>
struct MoeCombine {
  enum { kThreads = kMoeThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const MoeCombineParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* y,
                     DEVICE const float* weights, DEVICE const int* places) {
    const int column = (int)(c.tgy * kThreads + c.tid) * 4;
    if (column >= p.columns) return;
    const float4 sum = MoeSum4<T>::run(p, c.tgx, column, y, weights, places);
    row_store4(out + (i64)c.tgx * p.out_stride, column, p.columns, p.aligned, sum);
  }
};

// The same, added to the residual stream as residual_add does it.
template <typename T>
struct MoeCombineAdd {
  enum { kThreads = kMoeThreads };
  typedef NoSmem Smem;
  static FN float add(float sum, float scale, float residual) { return fma(to_f(to<T>(sum)), scale, residual); }
  static FN void run(Ctx c, CONSTANT const MoeCombineParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const T* y,
                     DEVICE const float* weights, DEVICE const int* places) {
    const int column = (int)(c.tgy * kThreads + c.tid) * 4;
    if (column >= p.columns) return;
    const float4 sum = MoeSum4<T>::run(p, c.tgx, column, y, weights, places);
    DEVICE float* row = out + (i64)c.tgx * p.out_stride;
    const float4 old = row_load4((DEVICE const float*)row, column, p.columns, p.aligned);
    row_store4(row, column, p.columns, p.aligned,
               make_float4(add(sum.x, p.scale, old.x), add(sum.y, p.scale, old.y), add(sum.z, p.scale, old.z),
                           add(sum.w, p.scale, old.w)));
  }
};

typedef MoeRoute<kMoeMaxExperts> MoeRouteAny;
KERNEL(moe_route, MoeRouteAny, MoeRouteParams, int, float, const float, const float, const float)
KERNEL(moe_count, MoeCount, MoeOrderParams, int, const int)
KERNEL(moe_place, MoePlace, MoeOrderParams, int, int, const int, const int)
KERNEL(moe_combine_f32, MoeCombine<float>, MoeCombineParams, float, const float, const float, const int)
KERNEL(moe_combine_f16, MoeCombine<half>, MoeCombineParams, half, const half, const float, const int)
KERNEL(moe_combine_bf16, MoeCombine<bfloat>, MoeCombineParams, bfloat, const bfloat, const float, const int)
KERNEL(moe_combine_add_f16, MoeCombineAdd<half>, MoeCombineParams, float, const half, const float, const int)
KERNEL(moe_combine_add_bf16, MoeCombineAdd<bfloat>, MoeCombineParams, float, const bfloat, const float, const int)
