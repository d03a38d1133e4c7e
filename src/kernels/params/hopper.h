// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/cuda (sm_90a), and the sizes that kernel and host must agree on.
#pragma once

#include "kernels/compat/types.h"
#include "kernels/params/lora.h"

// ---- linear for few rows (kernels/cuda/linear_few.cuh): y[M, N] = x[M, K] W[N, K]^T ----

enum HopperEpilogue {
  kHopperStore = 0,     // out[m, n] = T(acc), or with a bias T(float(T(acc)) + bias)
  kHopperStoreF32 = 1,  // out F32: acc, or with a bias acc + bias
  kHopperResidual = 2,  // out F32: fma(float(the result of kHopperStore), scale, residual)
  kHopperGated = 3,  // out[m, j] = T(act(gate) * up): gate and up are kHopperStore's results of columns j and N/2 + j
  kHopperActivated = 4  // out[m, n] = T(act(the result of kHopperStore))
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

enum { kHopperLinearThreads = 128, kHopperFewThreads = 256 };

// Stages of linear_wide (64 rows of W and the rows of x, 64 k): two threadgroups fit a multiprocessor.
constexpr int hopper_wide_stages(int rows) {
  return rows == 16 ? 10 : 8;
}

// ---- linear in one wave of tiles (kernels/cuda/linear_tall.cuh) ----

// The rows of a matrix as the copy engine (TMA) addresses them: a CUDA tensor map, made by gpu::Device::map_rows().
struct alignas(64) HopperTensorMap {
  i64 words[16];
};
struct HopperTallParams {
  HopperTensorMap w, x;
  HopperLinearParams linear;
  HopperLoraParams lora;
  int rows;        // rows of x per threadgroup
  int layers;      // how many threadgroups (or pairs) share the rows of x
  int first_tile;  // of this launch
  int stages;      // of the ring
  int width;       // wide tiles: rows of W in one, at most as many as the kernel has sums for; a multiple of 16
};

// hopper_lora_finish: what follows a product of another kernel, with the second product of adapters.
struct HopperLoraFinishParams {
  HopperLinearParams linear;
  HopperLoraParams lora;
  i64 y_stride;
};
// Its shared memory without the rows of t: 64 rows of sums, and the parts of adapters.
enum { kHopperLoraFinishThreads = 128 };
enum { kHopperLoraFinishMemory = 64 * 72 * 2 + hopper_lora_room(kHopperLoraItems) };

// Of wb rows of W and xb of x: 64s of k in a stage and its bytes, stages of a ring of 200 to 220 KB, the warpgroups
// that multiply, threads, and parts of the second product of adapters that have shared memory:
// those of eight runs of rows.
constexpr int hopper_tall_deep(int wb, int xb) {
  return wb > 64 || xb > 64 ? 1 : 2;
}
constexpr int hopper_tall_stage_bytes(int wb, int xb) {
  return 128 * hopper_tall_deep(wb, xb) * (wb + xb);
}
constexpr int hopper_tall_most_stages(int wb, int xb) {
  return (hopper_tall_deep(wb, xb) == 1 ? 220 : 200) * 1024 / hopper_tall_stage_bytes(wb, xb);
}
constexpr int hopper_tall_groups(int wb, int xb) {
  return wb > 64 && xb > 64 ? 2 : 1;
}
constexpr int hopper_tall_threads(int wb, int xb) {
  return 128 * hopper_tall_groups(wb, xb) + 32;
}
// With adapters there is one warp more, which brings them, and if the launch computes their first product four more for
// that, where they have registers beside the sums.
constexpr bool hopper_tall_has_more_warps(int wb, int xb) {
  return hopper_tall_groups(wb, xb) == 1 && wb <= 192;
}
constexpr int hopper_tall_lora_threads(int wb, int xb, bool first) {
  return hopper_tall_threads(wb, xb) + 32 + (first && hopper_tall_has_more_warps(wb, xb) ? 128 : 0);
}
constexpr int hopper_tall_lora_items(int wb) {
  return wb > 64 ? 2 * wb : int{kHopperLoraItems};
}
// A wide tile gives up stages for adapters, down to these; a narrow one gives up one.
enum { kHopperTallFewestStages = 3 };

// ---- the products of experts (kernels/cuda/moe_sort.cuh, moe_linear.cuh) ----

// The choices sorted by expert: each expert's rows begin at a multiple of tile_rows, and a tile of rows has one expert.
struct HopperMoeSortParams {
  int choices;  // of all tokens together
  int of_token;
  int experts;
  int tile_rows;
  // Tiles that there is room for; unused ones at the end get the expert -1. The table of experts is followed by the
  // number of rows of each tile.
  int max_tiles;
  int pieces;                   // 16-byte pieces of a row of x
  int x_stride, sorted_stride;  // pieces
};
enum { kHopperMoeSortThreads = 1024, kHopperMoeSortExperts = 512 };

// y = x W^T for sorted rows of x, where each tile of rows has the weight of its expert. W is seen as the rows of all
// experts, one after another.
struct HopperMoeParams {
  HopperTensorMap w, x;
  HopperLinearParams linear;  // of one expert; m is not used
  int first, experts;         // W has so many experts, from this one on; tiles of others are passed over
  // Nonzero: the table of experts may be read before the preceding launch has ended, because it was complete before
  // that one began.
  int early;
};
// Of xb rows in a tile: warpgroups that multiply, 64 rows of W each; 64s of k in a stage; and stages of the ring. Two
// threadgroups fit a multiprocessor.
constexpr int hopper_moe_groups(int xb) {
  return xb >= 64 ? 2 : 1;
}
constexpr int hopper_moe_deep(int xb) {
  return xb <= 16 ? 2 : 1;
}
constexpr int hopper_moe_stages(int xb) {
  return 108 * 1024 / (128 * hopper_moe_deep(xb) * (64 * hopper_moe_groups(xb) + xb));
}
constexpr int hopper_moe_threads(int xb) {
  return 128 * hopper_moe_groups(xb) + 32;
}
// Barriers, the ring, and alignment.
constexpr int hopper_moe_memory(int xb) {
  return hopper_moe_stages(xb) * 128 * hopper_moe_deep(xb) * (64 * hopper_moe_groups(xb) + xb) + 2048;
}

// ---- attention over pages (kernels/cuda/attention_decode.cuh, attention_team.cuh, attention_prefill.cuh) ----

// Causal attention. Page b of a layer begins at pages + b * page_stride: first K
// [block_size][kv_heads][D], then V likewise, all on 16-byte boundaries. block_size is a multiple of 8.
struct HopperAttentionParams {
  i64 page_stride;  // bytes
  i64 v_offset;     // bytes from a page's K to its V
  int seqs;
  int max_blocks;  // entries per sequence in block_tables
  int block_size;
  int heads, kv_heads;
  int q_stride, out_stride;  // elements
  int max_splits;  // most splits (of 1024 positions) that a sequence sees: a dimension of the grid and of the scratch
  // This launch serves the sequences with that many rows (queries times query heads per KV head)
  int rows_from, rows_to;
  // Nonzero: positions of earlier steps, block_tables, cu_seqlens and context_lens may be read before the preceding
  // launches have ended, because none of them writes these.
  int early;
  int window;     // positions that a token sees, itself among them; 0: all
  int has_sinks;  // a logit per head that takes part in the softmax without a value
  float c;        // scale * log2(e); with a cap scale / soft cap
  float cap;      // > 0: scores become cap * tanh(score), with the soft cap * log2(e) as cap
};

enum { kHopperTile = 64, kHopperSplit = 1024, kHopperQuickThreads = 256, kHopperMergeThreads = 256 };

// Scratch for max_splits > 1, floats: o [tokens][heads][max_splits][D], then (m, l) [tokens][heads][max_splits][2].

// attention_quick: threadgroups that share one (sequence, KV head, split).
constexpr int hopper_quick_cluster(int head_dim) {
  return head_dim > 128 ? 8 : 4;
}
// Bytes of attention_quick: K of its own tiles, its columns of V (latent pages: in the same place), p, q, sums and
// maxima, position offsets.
constexpr int hopper_quick_memory(int head_dim) {
  return (head_dim > 256 ? 1 : 2) * (kHopperSplit / hopper_quick_cluster(head_dim) * head_dim * 2) +
         16 * (kHopperSplit + 8) * 2 + 16 * (head_dim + 8) * 2 + 16384 + 4352 + 3 * 1024 + (head_dim > 256 ? 128 : 0);
}
// attention_team reads pages through maps of the copy engine (gpu::Device::map_pages()).
struct HopperTeamParams {
  HopperTensorMap k, v;
  HopperAttentionParams attention;
  int group;        // query heads per KV head
  int block_shift;  // block_size is 1 << block_shift, or anything if this is negative
};
// attention_team has one warp per 16 or 32 columns of the head, and one that brings tiles. Beside its ring of tiles of
// K or V are 16 rows of weights, the queries of two units, sums, maxima, two units, barriers, and alignment.
enum { kHopperTeamStages = 6 };
constexpr int hopper_team_warps(int head_dim) {
  return head_dim < 128 ? head_dim / 16 : 8;
}
constexpr int hopper_team_threads(int head_dim) {
  return 32 * hopper_team_warps(head_dim) + 32;
}
constexpr int hopper_team_memory(int head_dim, int stages = kHopperTeamStages) {
  return stages * kHopperTile * head_dim * 2 + 16 * (2 * kHopperTile + 8) * 2 + 2 * 16 * (head_dim + 8) * 2 +
         hopper_team_warps(head_dim) * 16 * 5 * 4 + 2 * 40 + (2 * kHopperTeamStages + 4) * 8 + 1024;
}
// Teams that share a multiprocessor.
constexpr int hopper_team_at_once(int head_dim) {
  return head_dim == 256 ? 1 : head_dim == 128 ? 2 : 4;
}
// attention_latent: the sizes of a latent vector, and of its ring. Beside the ring are the queries, 16 rows of weights,
// sums, maxima, position offsets and barriers.
enum {
  kHopperLatentKey = 576,
  kHopperLatentValue = 512,
  kHopperLatentRow = kHopperLatentKey * 2 + 16,
  kHopperLatentThreads = 256,
  kHopperLatentRing = 2
};
constexpr int hopper_latent_memory() {
  return int{kHopperLatentRing} * int{kHopperTile} * kHopperLatentRow + 16 * (kHopperLatentKey + 8) * 2 +
         16 * (kHopperTile + 8) * 2 + 2048 + 512 + 1024 + 256;
}
enum { kHopperPrefillThreads = 384 };
// Tiles of K, and of V, in the ring of attention_prefill.
constexpr int hopper_prefill_ring(int head_dim) {
  return head_dim == 256 ? 2 : 4;
}
// Bytes of attention_prefill: barriers, the ring, q where it stays there, the merged result of earlier splits (at most
// 128 columns for each of two warpgroups), and alignment.
constexpr int hopper_prefill_memory(int head_dim) {
  const int tile = kHopperTile * head_dim * 2, columns = head_dim == 256 ? 128 : head_dim;
  return 1024 + 2 * hopper_prefill_ring(head_dim) * tile + (head_dim == 256 ? tile : 0) + 128 * columns * 4 + 1024;
}
