// SPDX-License-Identifier: Apache-2.0
// What all attention kernels share: finding a threadgroup's work, masks, scores, states and how they merge.
//
// The arithmetic, for every form and device (T: the activations' type; L = log2(e)); ops/attention.h says what the
// names mean, and where this differs it is because of the matrix tile:
//   qs = T(q * c), c = scale * L, or scale / soft_cap; s = a chain of acc_mma over head_dim, 16 at a time, ascending,
//   from zero (T = float: an fma chain); cap: s = (soft_cap * L) * q_tanh(s).
//   A tile has 64 positions, a split 1024, by absolute position. m' = max(m, seen scores); a = q_exp2(m - m');
//   p = q_exp2(s - m'), 0 where unseen. l is four sums, of columns with (column % 8) / 2 = t: l_t = fma(l_t, a,
//   ((e0 + e1) + (e2 + e3)) + ((e4 + e5) + (e6 + e7))), e_b = p[8b + 2t] + p[8b + 2t + 1]. o = o * a, then the tile's
//   four acc_mma of T(p) and V (T = float: fma chains over seen positions). A split ends with l = (l_0 + l_1) + (l_2 +
//   l_3). Splits merge left to right, a sink joins last, out = T((o + 0) / l): the 0 makes a zero's sign the same
//   whatever tile of rows it came from.
// V at positions that no row of a threadgroup sees is zero in the tile, whatever the page holds.
#pragma once

#include "kernels/attention_pages.h"
#include "kernels/compat/async_copy.h"
#include "kernels/compat/dialect.h"
#include "kernels/compat/float_math.h"
#include "kernels/params/attention.h"

FN float attention_log2e() {
  return 1.44269504088896341f;
}
// m of a state that has seen nothing: finite, so that the difference of two of them is zero.
FN float attention_nothing() {
  return -1e30f;
}

// The tokens and heads of a threadgroup.
struct AttentionWork {
  int seq;
  int first;     // row of q of the sequence's first token
  int queries;   // of the sequence
  int position;  // where its token 0 stands
  int token;     // the threadgroup's first, counted in the sequence
  int context;
  int kv_head;
  int head;        // the first query head
  int tile_heads;  // that the tile of heads really has
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

// False: the threadgroup has nothing to do. `index` is the grid's x.
FN bool attention_work(CONSTANT const AttentionParams& p, int index, DEVICE const int* cu, DEVICE const int* contexts,
                       DEVICE const int* map, THREAD AttentionWork& w) {
  const int heads = p.kv.kv_heads * p.head_tiles;
  int group = index / heads;
  if (group >= p.groups) return false;
  const int head = index - group * heads;
  if (p.by_sequence == 0) group = p.groups - 1 - group;  // a sequence's last tokens see most, so they begin first
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

// Positions that a token at `position` sees are [low, high).
FN int attention_low(CONSTANT const AttentionParams& p, int position) {
  return p.window > 0 ? max(0, position - p.window + 1) : 0;
}
FN int attention_high(CONSTANT const AttentionParams& p, int position, int context) {
  if (p.causal != 0) return position + 1;
  return p.window > 0 ? min(context, position + p.window) : context;
}

// The positions of a threadgroup: those that one of its rows sees, and of a split alone where it has one.
struct AttentionSpan {
  int low, high;
  int first_split;  // of the rows' positions, whatever the threadgroup has of them
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
// Cuts the span to split `index`, counted from the first; false: there is none.
FN bool attention_cut(THREAD AttentionSpan& s, int index) {
  if (index >= s.splits) return false;
  const int begin = (s.first_split + index) * kAttentionSplitPositions;
  s.low = max(s.low, begin);
  s.high = min(s.high, begin + kAttentionSplitPositions);
  return true;
}

// A row of a tile: row r is token r / tile_heads and head r % tile_heads of the tile. Idle rows see nothing.
struct AttentionRow {
  int active;
  int low, high;  // what it sees
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

FN float attention_score(CONSTANT const AttentionParams& p, float s) {
  return p.cap > 0.0f ? p.cap * q_tanh(s) : s;
}

// The factors of two states that merge: the left one's and the right one's.
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

// What o is multiplied by where a sink joins, and l with it; 1 without a sink.
FN float attention_sink(CONSTANT const AttentionParams& p, DEVICE const float* sinks, int head, float m,
                        THREAD float& l) {
  if (p.has_sinks == 0) return 1.0f;
  const AttentionMerged a = attention_merge(m, sinks[head] * attention_log2e());
  l = fma(l, a.left, a.right);
  return a.left;
}

// A slot of scratch: m of its rows, l of its rows, then o [rows][partial_dim].
FN i64 attention_slot(CONSTANT const AttentionParams& p, i64 slot) {
  return slot * p.partial_rows * (p.partial_dim + 2);
}

// ---- tiles of K and V in threadgroup memory: 64 positions, 64 of the dims, for 128 threads ----

// 16 bytes more than a row: eight rows meet all banks.
enum { kChunkDims = 64, kChunkPitch = 72, kChunkCells = 64 * 72 };

// A thread's share of a tile: 16 bytes (tid % 8) of the rows of positions tid / 8 + 16 i.
struct AttentionRows {
  int page[4];
  int row[4];  // in the page, as kv_row_at wants it; negative: no row sees it
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

// Pages of another type than T. p.positions is kAttentionPositions, but the compiler does not know and writes the loop
// once.
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

// Begins to bring dims [first, first + 64) of the tile's K or V to `to`; zeros where no row sees, for a page may hold
// anything there.
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

// The chunks of 64 dims that a threadgroup reads in turn: K's of a tile, then V's, then the next tile.
struct AttentionWalk {
  AttentionRows rows;
  int tile;
  int chunk;
  int stage;  // where the next one goes
};
template <typename T>
FN void attention_bring(THREAD AttentionWalk& next, TGROUP T* to, CONSTANT const AttentionParams& p,
                        THREAD const AttentionSpan& s, DEVICE const int* table, int kv_head, DEVICE const uchar* pages,
                        uint tid) {
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

// The entry of one form; all have the same buffers.
#define QUIRE_ATTENTION(name, Body, T)                                                                              \
  KERNEL(name, Body, AttentionParams, T, const T, const uchar, const int, const int, const int, const float, float, \
         const int)
