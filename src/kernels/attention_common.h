// SPDX-License-Identifier: Apache-2.0
// What all attention kernels share: finding a threadgroup's work, masks, scores, softmax states and how they merge.
//
// This is FlashAttention (Dao et al. 2022) with the online softmax of Milakov and Gimelshein (2018), over pages. The
// order of the arithmetic is the same for every kernel and device (T is the type of the activations, L = log2(e),
// exponentials are to base 2); ops/attention.h defines the names, and where this differs, the matrix tile is the
// reason:
// - Scores: s = sum over head_dim of T(q * c) * k with c = scale * L, or scale / soft_cap. The sum is a chain of
//   acc_mma from zero, 16 dims at a time, ascending (T = float: a chain of fma). With a cap, s = (soft_cap * L) *
//   q_tanh(s); with a bias by distance, s = fma(bias, L, s).
// - Tiles have 64 positions and splits 1024, by absolute position. For each tile m' = max(m, visible scores), a =
//   q_exp2(m - m'), p = q_exp2(s - m'), or 0 for positions that the row does not see.
// - l is kept as four sums, one for each t = (column % 8) / 2: l_t = fma(l_t, a, ((e0 + e1) + (e2 + e3)) + ((e4 + e5) +
//   (e6 + e7))) with e_b = p[8b + 2t] + p[8b + 2t + 1].
// - o = o * a, then the tile's four acc_mma of T(p) and V (T = float: chains of fma over the visible positions).
// - A split ends with l = (l_0 + l_1) + (l_2 + l_3). Splits are merged from left to right, and a sink is added last.
// - out = T((o + 0) / l). Adding 0 makes the sign of a zero independent of the tile of rows that it came from.
//
// V is zero in a tile for positions that no row of the threadgroup sees, whatever the page holds.
#pragma once

#include "kernels/attention_pages.h"
#include "kernels/compat/async_copy.h"
#include "kernels/compat/dialect.h"
#include "kernels/compat/float_math.h"
#include "kernels/params/attention.h"

FN float attention_log2e() {
  return 1.44269504088896341f;
}
// m before the first visible position. It is finite, so that the difference of two of them is 0 and not NaN.
FN float attention_min_score() {
  return -1e30f;
}

// The tokens and heads of a threadgroup.
struct AttentionWork {
  int seq;
  int first;     // row of q that holds the sequence's first token
  int queries;   // tokens of the sequence in this step
  int position;  // position of its token 0
  int token;     // the threadgroup's first token, counted in the sequence
  int context;
  int kv_head;
  int head;        // the first query head
  int tile_heads;  // query heads that the tile really has
};

// The last sequence whose first group of tokens is at most `group`, where sequence s begins at group cu[s] / n + s.
FN int attention_search(DEVICE const int* cu, int seqs, int group, int n) {
  int low = 0, high = seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (cu[middle] / n + middle <= group) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Finds the work of threadgroup `index`; returns false if there is none.
FN bool attention_work(CONSTANT const AttentionParams& p, int index, DEVICE const int* cu, DEVICE const int* contexts,
                       DEVICE const int* map, THREAD AttentionWork& w) {
  const int heads = p.kv.kv_heads * p.head_tiles;
  int group = index / heads;
  if (group >= p.groups) return false;
  const int head = index - group * heads;
  if (p.by_sequence == 0) group = p.groups - 1 - group;  // late tokens see most positions: start them first
  w.kv_head = head / p.head_tiles;
  const int first_head = (head - w.kv_head * p.head_tiles) * p.tile_heads;
  w.head = w.kv_head * p.group + first_head;
  w.tile_heads = min(p.tile_heads, p.group - first_head);
  w.token = 0;
  if (p.by_sequence != 0) {
    w.seq = group;
  } else if (p.mapped != 0) {
    w.seq = map[2 * group];
    w.token = map[2 * group + 1];
  } else {
    w.seq = attention_search(cu, p.seqs, group, p.tokens_a_group);
    w.token = (group - (cu[w.seq] / p.tokens_a_group + w.seq)) * p.tokens_a_group;
  }
  w.first = cu[w.seq];
  w.queries = cu[w.seq + 1] - w.first;
  w.context = contexts[w.seq];
  w.position = w.context - w.queries;
  return w.queries >= p.least_queries && w.queries <= p.most_queries && w.token < w.queries;
}

// A token at `position` sees the positions [low, high).
FN int attention_low(CONSTANT const AttentionParams& p, int position) {
  return p.window > 0 ? max(0, position - p.window + 1) : 0;
}
FN int attention_high(CONSTANT const AttentionParams& p, int position, int context) {
  if (p.causal != 0) return position + 1;
  return p.window > 0 ? min(context, position + p.window) : context;
}

// The positions that at least one row of the threadgroup sees, limited to one split where the threadgroup has only one.
struct AttentionSpan {
  int low, high;
  int first_split;  // the first split that the rows see; unaffected by the limit
  int splits;
};
FN AttentionSpan attention_span(CONSTANT const AttentionParams& p, THREAD const AttentionWork& w) {
  AttentionSpan s;
  const int last = min(w.token + p.tokens_a_group, w.queries) - 1;
  s.low = attention_low(p, w.position + w.token);
  s.high = attention_high(p, w.position + last, w.context);
  s.first_split = s.low / kAttentionSplitPositions;
  s.splits = (s.high - 1) / kAttentionSplitPositions - s.first_split + 1;
  return s;
}
// Limits the span to split `index`, counted from the first visible one; returns false if there is no such split.
FN bool attention_clip_to_split(THREAD AttentionSpan& s, int index) {
  if (index >= s.splits) return false;
  const int begin = (s.first_split + index) * kAttentionSplitPositions;
  s.low = max(s.low, begin);
  s.high = min(s.high, begin + kAttentionSplitPositions);
  return true;
}

// A row of a tile: row r is token r / tile_heads and head r % tile_heads of the tile. Unused rows see nothing.
struct AttentionRow {
  int active;
  int low, high;  // the visible positions
  int position;
  int head;
  i64 q, out;  // offsets of its first element
};
FN AttentionRow attention_row(CONSTANT const AttentionParams& p, THREAD const AttentionWork& w, int first_token,
                              int row) {
  AttentionRow r;
  const int token = row / p.tile_heads;
  const int head = row - token * p.tile_heads;
  r.active = token < p.tile_tokens && first_token + token < w.queries && head < w.tile_heads ? 1 : 0;
  const int position = w.position + first_token + token;
  r.position = position;
  r.low = attention_low(p, position);
  r.high = r.active != 0 ? attention_high(p, position, w.context) : 0;
  r.head = w.head + head;
  const i64 at = (i64)w.first + first_token + token;
  r.q = at * p.q_stride + (i64)r.head * p.kv.head_dim;
  r.out = at * p.out_stride + (i64)r.head * p.kv.v_dim;
  return r;
}

FN bool attention_sees(THREAD const AttentionRow& r, int j) {
  return j >= r.low && j < r.high;
}

// The score of position j for a row. A model has sinks or a bias by distance, and both are in the buffer of the sinks:
// the bias as [heads, 2 * max_distance + 1].
FN float attention_score(CONSTANT const AttentionParams& p, DEVICE const float* sinks, THREAD const AttentionRow& r,
                         int j, float s) {
  if (p.cap > 0.0f) s = p.cap * q_tanh(s);
  if (p.max_distance > 0 && attention_sees(r, j)) {
    const int distance = max(-p.max_distance, min(p.max_distance, j - r.position));
    s = fma(sinks[(i64)r.head * (2 * p.max_distance + 1) + p.max_distance + distance], attention_log2e(), s);
  }
  return s;
}

// Merging two softmax states: the new maximum, and the factors of the left and the right state.
struct AttentionMerged {
  float m, left, right;
};
FN AttentionMerged attention_merge(float m1, float m2) {
  AttentionMerged a;
  a.m = max(m1, m2);
  a.left = q_exp2(m1 - a.m);
  a.right = q_exp2(m2 - a.m);
  return a;
}

// Adds the sink, if there is one, to l; returns the factor for o.
FN float attention_sink(CONSTANT const AttentionParams& p, DEVICE const float* sinks, int head, float m,
                        THREAD float& l) {
  if (p.has_sinks == 0) return 1.0f;
  const AttentionMerged a = attention_merge(m, sinks[head] * attention_log2e());
  l = fma(l, a.left, a.right);
  return a.left;
}

// A slot of scratch: m [rows], l [rows], then o [rows][partial_dim].
FN i64 attention_slot(CONSTANT const AttentionParams& p, i64 slot) {
  return slot * p.partial_rows * (p.partial_dim + 2);
}

// ---- tiles of K and V in threadgroup memory: 64 positions, 64 of the dims, for 128 threads ----

// Rows are padded by 16 bytes, so that eight of them fall into different banks (ldmatrix reads eight rows at a time).
enum { kChunkDims = 64, kChunkPitch = 72, kChunkCells = 64 * 72 };

// A thread's part of a tile: piece tid % 8 (of 16 bytes) of the positions tid / 8 + 16 i.
struct AttentionRows {
  int page[4];
  int row[4];  // index in the page, as for kv_row_at; negative: not visible
};
FN void attention_rows(THREAD AttentionRows& r, CONSTANT const AttentionParams& p, THREAD const AttentionSpan& s,
                       DEVICE const int* table, int kv_head, int tile, uint tid) {
  UNROLL for (int i = 0; i < 4; i++) {
    const int j = tile + (int)(tid >> 3) + 16 * i;
    r.page[i] = 0;
    r.row[i] = -1;
    if (j >= s.low && j < s.high) {
      const int block = j / p.kv.block_size;
      r.page[i] = table[block];
      r.row[i] = (j - block * p.kv.block_size) * p.kv.kv_heads + kv_head;
    }
  }
}

// Loads a chunk from pages of another type than T. The loop bound is p.positions, not kAttentionPositions, so that the
// compiler does not unroll the loop.
template <typename T>
FN void attention_convert(TGROUP T* to, CONSTANT const AttentionParams& p, THREAD const AttentionSpan& s,
                          DEVICE const int* table, int kv_head, int tile, DEVICE const uchar* pages, bool values,
                          int first, uint tid) {
  const int dim = values ? p.kv.v_dim : p.kv.head_dim;
  const int at = first + (int)(tid & 7u) * 8;
  for (int i = (int)(tid >> 3); i < p.positions; i += 16) {
    uint4 piece = make_uint4(0u, 0u, 0u, 0u);
    if (tile + i >= s.low && tile + i < s.high && at < dim) {
      const int block = (tile + i) / p.kv.block_size;
      const int row = (tile + i - block * p.kv.block_size) * p.kv.kv_heads + kv_head;
      float scale = 1.0f;
      if (p.kv.type == kKvI8) scale = *(DEVICE const float*)(pages + kv_scale_at(p.kv, table[block], row, values));
      piece = kv_piece<T>(pages + kv_row_at(p.kv, table[block], row, values), p.kv.type, at, dim, scale);
    }
    *(TGROUP uint4*)(to + i * kChunkPitch + (int)(tid & 7u) * 8) = piece;
  }
}

// Starts to load dims [first, first + 64) of the tile's K or V into `to`. Invisible positions become zeros, because a
// page may hold anything there.
template <typename T>
FN void attention_load(TGROUP T* to, THREAD const AttentionRows& r, CONSTANT const AttentionParams& p,
                       DEVICE const uchar* pages, bool values, int first, uint tid) {
  const int dim = values ? p.kv.v_dim : p.kv.head_dim;
  const int at = first + (int)(tid & 7u) * 8;
  UNROLL for (int i = 0; i < 4; i++) {
    TGROUP T* cell = to + ((int)(tid >> 3) + 16 * i) * kChunkPitch + (int)(tid & 7u) * 8;
    if (r.row[i] < 0 || at >= dim) {
      *(TGROUP uint4*)cell = make_uint4(0u, 0u, 0u, 0u);
    } else {
      copy16_async(cell, pages + kv_row_at(p.kv, r.page[i], r.row[i], values) + (i64)at * 2);
    }
  }
}

// The order in which a threadgroup reads chunks of 64 dims: those of K of a tile, then those of V, then the next tile.
struct AttentionWalk {
  AttentionRows rows;
  int tile;
  int chunk;
  int stage;  // where the next chunk goes
};
template <typename T>
FN void attention_next_chunk(THREAD AttentionWalk& next, TGROUP T* to, CONSTANT const AttentionParams& p,
                             THREAD const AttentionSpan& s, DEVICE const int* table, int kv_head,
                             DEVICE const uchar* pages, uint tid) {
  if (next.tile < s.high) {
    const bool values = next.chunk >= p.k_chunks;
    const int first = (values ? next.chunk - p.k_chunks : next.chunk) * kChunkDims;
    if (p.kv.type == KvTypeOf<T>::kType) {
      if (next.chunk == 0) attention_rows(next.rows, p, s, table, kv_head, next.tile, tid);
      attention_load<T>(to, next.rows, p, pages, values, first, tid);
    } else {
      attention_convert<T>(to, p, s, table, kv_head, next.tile, pages, values, first, tid);
    }
    next.chunk++;
    if (next.chunk == p.k_chunks + p.v_chunks) {
      next.chunk = 0;
      next.tile += kAttentionPositions;
    }
  }
  copy_commit();
}

// The entry point of an attention kernel; all of them have the same buffers.
#define QUIRE_ATTENTION(name, Body, T)                                                                              \
  KERNEL(name, Body, AttentionParams, T, const T, const uchar, const int, const int, const int, const float, float, \
         const int)
