// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/cuda (sm_90a), and what the host needs to start them: names, grids, memory.
#pragma once

#include "kernels/compat/types.h"

// ---- linear for few rows (kernels/cuda/linear_few.cuh): y[M, N] = x[M, K] W[N, K]^T ----

enum HopperEpilogue {
  kHopperStore = 0,     // out[m, n] = T(acc), or with a bias T(float(T(acc)) + bias)
  kHopperStoreF32 = 1,  // out F32: acc, or with a bias acc + bias
  kHopperResidual = 2,  // out F32: fma(float(the result of kHopperStore), scale, residual)
  kHopperGated = 3  // out[m, j] = T(act(gate) * up): gate and up are kHopperStore's results of columns j and N/2 + j
};

struct HopperLinearParams {
  int m, n, k;
  int x_stride, out_stride, residual_stride;  // elements
  int epilogue;                               // HopperEpilogue
  int activation;                             // the value of quire::Activation
  int normed;                                 // x is F32, and the kernel applies an RMS norm to it first
  int biased;
  int tiles;         // tiles of 16 rows of W (gated: 8 rows of gate and the matching 8 of up)
  int active_warps;  // warps with tiles; the others only help to load x
  float eps;         // of the norm
  float scale;       // of the residual
  float limit;       // > 0: the limit of GPT-OSS's clamped gate
};

// How to start it. `kernel` is the name without the types: hopper_linear_<types>_<kernel>.
struct HopperLinearPlan {
  const char* kernel;  // null: not served
  int grid;
  int threads;
  int dynamic_memory;
};

enum {
  kHopperLinearThreads = 128,
  kHopperFewThreads = 256,
  kHopperStageBytes = 16 * (128 * 2 + 16),  // of linear_few: 16 rows of W, 128 k
  kHopperMaxShared = 229376,                // that a threadgroup may have, beside 3 KB of its own
  kHopperMaxRows = 32                       // from 33 rows on the library is faster everywhere
};

// Stages of linear_wide (64 rows of W and the rows of x, 64 k): two threadgroups fit a multiprocessor.
constexpr int hopper_wide_stages(int rows) {
  return rows == 16 ? 10 : 8;
}

constexpr int hopper_linear_tiles(int n, bool gated) {
  return gated ? (n / 2 + 7) / 8 : (n + 15) / 16;
}

// linear_few keeps all of x in threadgroup memory (at most 16 rows) and may norm it; linear_wide streams it.
constexpr HopperLinearPlan hopper_linear_plan(HopperLinearParams* p, int multiprocessors) {
  HopperLinearPlan plan = {nullptr, 0, kHopperLinearThreads, 0};
  if (p->m < 1 || p->m > kHopperMaxRows || p->k % 16 != 0) return plan;
  p->tiles = hopper_linear_tiles(p->n, p->epilogue == kHopperGated);
  const int per_group = (p->tiles + multiprocessors - 1) / multiprocessors;
  p->active_warps = per_group < 4 ? per_group : 4;
  const int depth = p->active_warps == 1 ? 24 : 8;
  const i64 few = (i64)p->active_warps * depth * kHopperStageBytes + (i64)p->m * (p->k + 8) * 2 + 256;
  if (p->m <= 16 && few <= kHopperMaxShared) {
    plan.kernel = p->m <= 8 ? (depth == 8 ? "m8_d8" : "m8_d24") : (depth == 8 ? "m16_d8" : "m16_d24");
    plan.grid = (p->tiles + per_group - 1) / per_group;
    plan.threads = kHopperFewThreads;
    plan.dynamic_memory = (int)few;
    return plan;
  }
  if (p->normed || p->k % 64 != 0) return plan;
  const int rows = p->m <= 16 ? 16 : 32;
  plan.kernel = rows == 16 ? "m16_wide" : "m32_wide";
  plan.grid = (p->tiles + 3) / 4;
  plan.dynamic_memory = hopper_wide_stages(rows) * (64 + rows) * 128 + 1024;
  return plan;
}

// ---- linear in one wave of narrow tiles (kernels/cuda/linear_tall.cuh) ----

// The rows of a matrix as the copy engine (TMA) addresses them: a CUDA tensor map, made by gpu::Device::map_rows().
struct alignas(64) HopperTensorMap {
  i64 words[16];
};
struct HopperTallParams {
  HopperTensorMap w, x;
  HopperLinearParams linear;
  int rows;    // rows of x per threadgroup
  int layers;  // how many threadgroups (or pairs) share the rows of x
};

struct HopperTallPlan {
  const char* kernel;  // hopper_linear_<types>_<kernel>; null: not served
  bool pays;           // beside the library; without that the plan is always the quicker way
  int grid;
  int dynamic_memory;
  int rows;             // of a threadgroup: what the map of x brings in at a time
  int layers;           // of threadgroups or pairs that take the rows of x
  int w_box, w_halves;  // what the map of W brings in at a time, and into how many halves its rows are cut
  int w_box_halves;
};

enum { kHopperTallThreads = 160, kHopperTallRows = 256 };

// Of wb rows of W and xb of x: 64s of k in a stage, and stages of a ring of 200 to 220 KB.
constexpr int hopper_tall_deep(int xb) {
  return xb > 64 ? 1 : 2;
}
constexpr int hopper_tall_stages(int wb, int xb) {
  return (xb > 64 ? 220 : 200) * 1024 / (128 * hopper_tall_deep(xb) * (wb + xb));
}

struct HopperTallForm {
  const char* kernel;
  int wb, xb, peers;
};
// From the narrowest tiles of W to the widest.
constexpr HopperTallForm kHopperTallForms[] = {
    {"tall_n16", 16, 64, 1},          {"tall_n32", 32, 64, 1},      {"tall_n48", 48, 64, 1},       // up to 64 rows
    {"tall_n32_pair", 32, 64, 2},     {"tall_n48_pair", 48, 64, 2}, {"tall_n64_pair", 64, 64, 2},  // more
    {"tall_across_pair", 64, 128, 2},                                                              // more than 128
};

// Whether it is quicker than the library at more than 128 rows, as measured on an H200. What follows the sums costs the
// library a launch of its own.
constexpr bool hopper_tall_pays(const HopperLinearParams& p, const HopperTallForm& form, int groups,
                                int multiprocessors) {
  const bool followed =
      p.epilogue == kHopperGated || p.epilogue == kHopperResidual || (p.biased && p.epilogue == kHopperStore);
  if (form.xb == 64) return form.wb == 32 || followed;
  if (followed) return groups * 10 >= multiprocessors * 7;
  return groups * 10 >= multiprocessors * 9 && p.k >= (p.m > 160 ? 8192 : 4096);
}

// The narrowest tiles of W that fit the chip at once: all of it waits for memory.
constexpr HopperTallPlan hopper_tall_plan(const HopperLinearParams& p, int multiprocessors) {
  HopperTallPlan plan = {};
  const bool gated = p.epilogue == kHopperGated, many = p.m > 128;
  if (p.m > kHopperTallRows || p.k % 16 != 0 || p.n % (gated ? 16 : 8) != 0 || p.normed) return plan;
  if (p.out_stride % 2 != 0 || p.residual_stride % 2 != 0) return plan;
  for (const HopperTallForm& form : kHopperTallForms) {
    const bool pair = form.peers == 2;
    if (pair != (p.m > 64) || (form.xb > 64 && !many)) continue;
    const int layers = (p.m + form.xb * form.peers - 1) / (form.xb * form.peers), parts = layers * form.peers;
    const int groups = (p.n + form.wb - 1) / form.wb * parts;
    if (groups > multiprocessors) continue;
    plan.kernel = form.kernel;
    plan.pays = !many || hopper_tall_pays(p, form, groups, multiprocessors);
    plan.grid = groups;
    plan.dynamic_memory =
        hopper_tall_stages(form.wb, form.xb) * hopper_tall_deep(form.xb) * 128 * (form.wb + form.xb) + 2048;
    plan.rows = ((p.m + parts - 1) / parts + 7) / 8 * 8;
    plan.layers = layers;
    plan.w_box = gated || pair ? form.wb / 2 : form.wb;
    plan.w_halves = gated ? 2 : 1;
    plan.w_box_halves = gated && !pair ? 2 : 1;
    break;
  }
  return plan;
}

// ---- attention over pages (kernels/cuda/attention_decode.cuh, attention_team.cuh, attention_prefill.cuh) ----

// Causal attention without window, cap or sinks. Page b of a layer begins at pages + b * page_stride: first K
// [block_size][kv_heads][D], then V likewise, all on 16-byte boundaries. block_size is a multiple of 8.
struct HopperAttentionParams {
  i64 page_stride;  // bytes
  i64 v_offset;     // bytes from a page's K to its V
  int seqs;
  int max_blocks;  // entries per sequence in block_tables
  int block_size;
  int heads, kv_heads;
  int q_stride, out_stride;  // elements
  int max_splits;  // most splits (of 1024 positions) of a sequence: a dimension of the grid and of the scratch
  // This launch serves the sequences with that many rows (queries times query heads per KV head)
  int rows_from, rows_to;
  // Nonzero: positions of earlier steps, block_tables, cu_seqlens and context_lens may be read before the preceding
  // launches have ended, because none of them writes these.
  int early;
  int stages;  // stages of attention_team's ring
  float c;     // scale * log2(e)
};

enum {
  kHopperTile = 64,
  kHopperSplit = 1024,
  kHopperClusterSize = 4,  // attention_quick: threadgroups that share one (sequence, KV head, split)
  kHopperQuickThreads = 256,
  kHopperMergeThreads = 256
};

// Scratch for max_splits > 1, floats: o [tokens][heads][max_splits][D], then (m, l) [tokens][heads][max_splits][2].
constexpr i64 hopper_attention_scratch(i64 tokens, i64 heads, i64 max_splits, i64 head_dim) {
  return tokens * heads * max_splits * (head_dim + 2);
}
// Bytes of attention_quick: K of its tiles, V's columns of all, P, q, sums and maxima, where positions stand.
constexpr int hopper_quick_memory(int head_dim) {
  return kHopperSplit / kHopperClusterSize * head_dim * 2 + kHopperSplit * (head_dim / kHopperClusterSize) * 2 +
         16 * (kHopperSplit + 8) * 2 + 16 * (head_dim + 8) * 2 + 16384 + 4352 + 3 * 1024;
}
// attention_team has one warp per 16 or 32 columns of the head. Its ring has `stages` tiles of K or V; beside it are 16
// rows of weights, sums, maxima, position offsets and barriers.
enum { kHopperTeamMostStages = 12 };
constexpr int hopper_team_threads(int head_dim) {
  return head_dim < 128 ? head_dim * 2 : 256;
}
constexpr int hopper_team_memory(int head_dim, int stages) {
  return stages * kHopperTile * head_dim * 2 + 16 * ((head_dim < 128 ? 128 : head_dim) + 8) * 2 +
         hopper_team_threads(head_dim) * 10 + 1024 + 8 * kHopperTeamMostStages + 128;
}
// A team on a multiprocessor alone asks for all of a short context at once; of many, two share it.
constexpr int hopper_team_stages(i64 units, int head_dim, int multiprocessors) {
  return head_dim <= 128 && 2 * units <= multiprocessors ? 12 : 6;
}
enum { kHopperPrefillThreads = 384 };
// Bytes of attention_prefill: barriers, four tiles each of K and V, the merged result of earlier splits, and alignment.
constexpr int hopper_prefill_memory(int head_dim) {
  return 1024 + 8 * kHopperTile * head_dim * 2 + 128 * head_dim * 4 + 1024;
}
constexpr int hopper_prefill_grid(int tokens, int seqs, int heads, int kv_heads) {
  const int group = heads / kv_heads;
  return group % 2 == 0 ? (tokens / 64 + seqs) * (heads / 2) : (tokens / 128 + seqs) * heads;
}
