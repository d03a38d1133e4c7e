// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: the router, the sort of the choices by expert, and the weighted sum of the experts' outputs; the
// contract is in ops/moe.h. The experts' products are in moe_linear.h.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/compat/float_math.h"
#include "kernels/load4.h"
#include "kernels/params/moe.h"

// Maps a float to a key: larger for larger numbers, largest for NaN, never 0.
FN uint moe_key(float v) {
  if (v != v) return 0xffffffffu;
  const uint bits = as_uint(v == 0.0f ? 0.0f : v);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// a > b, where NaN is above all numbers.
FN bool moe_above(float a, float b) {
  return a > b || (a != a && b == b);
}

// One simdgroup per token. Sums have the order of ops/norm.h, with sixteen lanes. Grid: (tokens). Threads: 32.
struct MoeRoute {
  enum { kThreads = 32 };
  struct Smem {
    float score[kMoeMaxExperts];
    uint key[kMoeMaxExperts];    // keys of the experts that may still be chosen, 0 for the others
    uint group[kMoeMaxExperts];  // keys of groups
    float weight[kMoeMaxChosen];
    int id[kMoeMaxChosen];
  };

  static FN void softmax(TGROUP float* v, int n, uint lane) {
    float top = -as_float(0x7f800000u);
    for (int i = (int)lane; i < n; i += 32) top = max(top, v[i]);
    top = simd_max(top);
    SG_BARRIER();
    for (int i = (int)lane; i < n; i += 32) v[i] = q_exp(v[i] - top);
    SG_BARRIER();
    float sum = 0.0f;
    for (int i = (int)lane; i < n && lane < 16; i += 16) sum += v[i];
    sum += simd_shuffle_xor(sum, 8u);
    sum += simd_shuffle_xor(sum, 4u);
    sum += simd_shuffle_xor(sum, 2u);
    sum += simd_shuffle_xor(sum, 1u);
    sum = simd_shuffle(sum, 0u);
    SG_BARRIER();
    for (int i = (int)lane; i < n; i += 32) v[i] = v[i] / sum;
    SG_BARRIER();
  }

  // Returns the index of the largest key, the lowest of equal ones, and removes it by setting its key to 0.
  static FN int take_best(TGROUP uint* keys, int n, uint lane) {
    uint best = 0;
    int at = 0x7fffffff;
    for (int i = (int)lane; i < n; i += 32) {
      if (keys[i] > best) {
        best = keys[i];
        at = i;
      }
    }
    const uint top = simd_max(best);
    const int found = simd_min(best == top ? at : 0x7fffffff);
    SG_BARRIER();
    if (lane == 0) keys[found] = 0;
    SG_BARRIER();
    return found;
  }

  static FN float choice(CONSTANT const MoeRouteParams& p, TGROUP const Smem& sm, DEVICE const float* bias, int e) {
    return p.biased != 0 ? sm.score[e] + bias[e] : sm.score[e];
  }

  static FN uint group_key(CONSTANT const MoeRouteParams& p, TGROUP const Smem& sm, DEVICE const float* bias, int g) {
    const int size = p.experts / p.groups;
    float first = choice(p, sm, bias, g * size), second = -as_float(0x7f800000u);
    for (int i = 1; i < size; i++) {
      const float v = choice(p, sm, bias, g * size + i);
      if (moe_above(v, first)) {
        second = first;
        first = v;
      } else if (moe_above(v, second)) {
        second = v;
      }
    }
    return moe_key(p.top_two != 0 ? first + second : first);
  }

  // Removes the experts of all but the best groups.
  static FN void keep_groups(CONSTANT const MoeRouteParams& p, TGROUP Smem& sm, DEVICE const float* bias, uint lane) {
    for (int g = (int)lane; g < p.groups; g += 32) sm.group[g] = group_key(p, sm, bias, g);
    SG_BARRIER();
    for (int i = 0; i < p.groups_kept; i++) take_best(sm.group, p.groups, lane);
    const int size = p.experts / p.groups;
    for (int e = (int)lane; e < p.experts; e += 32) {
      if (sm.group[e / size] != 0) sm.key[e] = 0;
    }
    SG_BARRIER();
  }

  // SparseMixer (Phi-3.5-MoE): the softmax over the experts whose logits are near that of choice `rank`.
  static FN void weigh_near(CONSTANT const MoeRouteParams& p, TGROUP Smem& sm, DEVICE const float* logits, int rank,
                            uint lane) {
    const float top = logits[sm.id[rank]];
    for (int e = (int)lane; e < p.experts; e += 32) {
      const float v = logits[e], size = abs(v);
      const bool away = (top - v) / (size < top ? top : size) > 2.0f * p.jitter;
      const bool taken = rank == 1 && e == sm.id[0];
      sm.score[e] = away || taken ? -as_float(0x7f800000u) : v;
    }
    SG_BARRIER();
    softmax(sm.score, p.experts, lane);
    if (lane == 0) sm.weight[rank] = sm.score[sm.id[rank]];
    SG_BARRIER();
  }

  // Chooses a token's experts: sm.id and sm.weight by rank.
  static FN void choose(CONSTANT const MoeRouteParams& p, TGROUP Smem& sm, DEVICE const float* logits,
                        DEVICE const float* bias, DEVICE const float* expert_scale, uint lane) {
    for (int e = (int)lane; e < p.experts; e += 32) {
      sm.score[e] = p.score == kMoeSigmoid ? q_sigmoid(logits[e]) : logits[e];
    }
    SG_BARRIER();
    if (p.score == kMoeSoftmax) softmax(sm.score, p.experts, lane);
    for (int e = (int)lane; e < p.experts; e += 32) sm.key[e] = moe_key(choice(p, sm, bias, e));
    SG_BARRIER();
    if (p.groups_kept < p.groups) keep_groups(p, sm, bias, lane);
    for (int r = 0; r < p.k; r++) {
      const int e = take_best(sm.key, p.experts, lane);
      if (lane == 0) {
        sm.id[r] = e;
        sm.weight[r] = sm.score[e];
      }
    }
    SG_BARRIER();
    if (p.score == kMoeSoftmaxOfChosen) softmax(sm.weight, p.k, lane);
    for (int r = 0; r < p.k && p.score == kMoeSparseMixer; r++) weigh_near(p, sm, logits, r, lane);
    SG_BARRIER();
    float sum = 0.0f;
    for (int r = 0; r < p.k; r++) sum += sm.weight[r];
    sum += p.sum_epsilon;
    SG_BARRIER();
    for (int r = (int)lane; r < p.k; r += 32) {
      float w = p.normalise != 0 ? sm.weight[r] / sum : sm.weight[r];
      w *= p.scale;
      if (p.scaled != 0) w *= expert_scale[sm.id[r]];
      sm.weight[r] = w;
    }
    SG_BARRIER();
  }

  static FN void run(Ctx c, CONSTANT const MoeRouteParams& p, TGROUP Smem& sm, DEVICE int* ids, DEVICE float* weights,
                     DEVICE const float* logits, DEVICE const float* bias, DEVICE const float* expert_scale) {
    choose(p, sm, logits + (i64)c.tgx * p.stride, bias, expert_scale, c.lane);
    for (int r = (int)c.lane; r < p.k; r += 32) {
      ids[(i64)c.tgx * p.k + r] = sm.id[r];
      weights[(i64)c.tgx * p.k + r] = sm.weight[r];
    }
  }
};

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

struct MoePlaces {
  MoeSums sums;
  int counts[kMoeThreads];
};

// Writes the choices of the threadgroup's expert into the order, and returns its first tile. Each thread takes a
// contiguous range of choices, so they stay ascending. `placed`: choice i is written as places[i].
FN int moe_place_choices(Ctx c, CONSTANT const MoeOrderParams& p, TGROUP MoePlaces& sm, DEVICE int* order,
                         DEVICE const int* counts, DEVICE const int* ids, DEVICE const int* places, int placed) {
  const int expert = (int)c.tgx, t = (int)c.tid;
  int before = 0;
  for (int e = t; e < expert; e += kMoeThreads) before += (counts[e] + p.tile_rows - 1) / p.tile_rows;
  const int first_tile = moe_sum(c, sm.sums, before), start = first_tile * p.tile_rows;
  if (counts[expert] == 0) return first_tile;

  const int stretch = (p.choices + kMoeThreads - 1) / kMoeThreads;
  const int from = t * stretch, end = min(from + stretch, p.choices);
  int mine = 0;
  for (int i = from; i < end; i++) mine += ids[i] == expert ? 1 : 0;
  sm.counts[t] = mine;
  TG_BARRIER();
  int at = start;
  for (int i = 0; i < t; i++) at += sm.counts[i];
  for (int i = from; i < end && mine > 0; i++) {
    if (ids[i] == expert) order[at++] = placed != 0 ? places[i] : i;
  }
  const int tiles = (counts[expert] + p.tile_rows - 1) / p.tile_rows;
  for (int i = counts[expert] + t; i < tiles * p.tile_rows; i += kMoeThreads) order[start + i] = -1;
  return first_tile;
}

// Writes each expert's choices into the order. Grid: (experts).
struct MoePlace {
  enum { kThreads = kMoeThreads };
  typedef MoePlaces Smem;
  static FN void run(Ctx c, CONSTANT const MoeOrderParams& p, TGROUP Smem& sm, DEVICE int* order, DEVICE int* experts,
                     DEVICE const int* counts, DEVICE const int* ids) {
    const int expert = (int)c.tgx, t = (int)c.tid;
    const int first_tile = moe_place_choices(c, p, sm, order, counts, ids, ids, 0);
    const int tiles = (counts[expert] + p.tile_rows - 1) / p.tile_rows;
    for (int i = t; i < tiles; i += kThreads) experts[first_tile + i] = expert;
    if (expert == p.experts - 1) {
      for (int i = first_tile + tiles + t; i < p.max_tiles; i += kThreads) experts[i] = -1;
    }
  }
};

// The keys of all choices (MoeLoraKeysParams). Each row of the step is in the list once. Grid: (listed / kThreads).
struct MoeLoraKeys {
  enum { kThreads = kMoeThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const MoeLoraKeysParams& p, TGROUP Smem& sm, DEVICE int* keys,
                     DEVICE const int* ids, DEVICE const int* rows, DEVICE const int* slots) {
    const int i = (int)(c.tgx * kThreads + c.tid);
    if (i >= p.listed) return;
    const int row = rows[i] - p.first, slot = slots[i];
    if (row < 0 || row >= p.tokens) return;
    for (int choice = row * p.k; choice < (row + 1) * p.k; choice++) {
      keys[choice] = slot < 0 || ids[choice] < 0 ? -1 : ids[choice] * p.slots + slot;
    }
  }
};

// Writes the choices of each key into the order, and the runs of lora's kernels. Grid: (experts * slots).
struct MoeLoraPlace {
  enum { kThreads = kMoeThreads };
  typedef MoePlaces Smem;
  static FN void run(Ctx c, CONSTANT const MoeLoraPlaceParams& p, TGROUP Smem& sm, DEVICE int* order,
                     DEVICE LoraRunParams* runs, DEVICE const int* counts, DEVICE const int* keys,
                     DEVICE const int* places) {
    const int key = (int)c.tgx, t = (int)c.tid, count = counts[key];
    const int first = moe_place_choices(c, p.order, sm, order, counts, keys, places, p.placed);
    const int end = first + (count + kLoraRows - 1) / kLoraRows;
    const int last = key == p.order.experts - 1 ? p.order.max_tiles : end;
    for (int i = first + t; i < last; i += kThreads) {
      LoraRunParams run;
      run.slot = i < end ? key % p.slots : -1;
      run.first = i * kLoraRows;
      run.count = i < end ? min((int)kLoraRows, count - (i - first) * kLoraRows) : 0;
      run.expert = key / p.slots;
      runs[i] = run;
    }
  }
};

// out[t] = the weighted sum over the token's choices, rank 0 first; four columns per thread. Grid: (tokens, columns /
// 512).
template <typename T>
struct MoeCombine {
  enum { kThreads = kMoeThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const MoeCombineParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* y,
                     DEVICE const float* weights, DEVICE const int* places) {
    const int column = (int)(c.tgy * kThreads + c.tid) * 4;
    if (column >= p.columns) return;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int r = 0; r < p.k; r++) {
      const i64 choice = (i64)c.tgx * p.k + r, row = p.sorted != 0 ? places[choice] : choice;
      const float4 v = row_load4(y + row * p.y_stride, column, p.columns, p.aligned);
      const float w = weights[choice];
      sum.x = fma(w, v.x, sum.x);
      sum.y = fma(w, v.y, sum.y);
      sum.z = fma(w, v.z, sum.z);
      sum.w = fma(w, v.w, sum.w);
    }
    row_store4(out + (i64)c.tgx * p.out_stride, column, p.columns, p.aligned, sum);
  }
};

KERNEL(moe_route, MoeRoute, MoeRouteParams, int, float, const float, const float, const float)
KERNEL(moe_count, MoeCount, MoeOrderParams, int, const int)
KERNEL(moe_place, MoePlace, MoeOrderParams, int, int, const int, const int)
KERNEL(moe_lora_keys, MoeLoraKeys, MoeLoraKeysParams, int, const int, const int, const int)
KERNEL(moe_lora_place, MoeLoraPlace, MoeLoraPlaceParams, int, LoraRunParams, const int, const int, const int)
KERNEL(moe_combine_f32, MoeCombine<float>, MoeCombineParams, float, const float, const float, const int)
KERNEL(moe_combine_f16, MoeCombine<half>, MoeCombineParams, half, const half, const float, const int)
KERNEL(moe_combine_bf16, MoeCombine<bfloat>, MoeCombineParams, bfloat, const bfloat, const float, const int)
