// SPDX-License-Identifier: Apache-2.0
// gated_delta_net and mamba2 in chunks: 64 tokens at absolute positions become small matrix products. ops/recurrent.h
// has the form and what a state keeps. Mamba-2's B and C are the keys and queries here, and a group of its heads shares
// a key.
//
// After state_prepare (kernels/recurrent.h) there are three launches. delta_scores multiplies the keys and queries of
// 16 tokens with the keys of their chunk (of Mamba-2 only the queries). In delta_chunks and mamba_chunks a threadgroup
// computes 32 columns of one head over all tokens of a sequence, 16 tokens at a time: it reads the chunk's first state,
// the transformed values and the decays, and writes the state only when a chunk ends or the page changes. delta_keys
// writes what several threadgroups read before: the keys and the convolution's tails.
//
// Order of sums. Each is a chain of k16 steps of acc_mma in ascending order from zero, and always over all 16 tokens of
// a block, with zeros for those that come later. So the bits of a token are the same whether it is computed alone or
// with others. A state is the sum of two numbers of type T, the second of which is the rounding error of the first; the
// weights of earlier tokens are split in the same way before they are multiplied.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/compat/float_math.h"
#include "kernels/compat/tile.h"
#include "kernels/params/recurrent.h"
#include "kernels/recurrent_parts.h"

// The tokens of a sequence in a step.
struct DeltaTokens {
  int first, count;  // rows
  int start;         // the position of the first
  int source;        // page
};
FN DeltaTokens delta_tokens(int sequence, DEVICE const int* cu_seqlens, DEVICE const int* lengths,
                            DEVICE const int* source) {
  DeltaTokens s;
  s.first = cu_seqlens[sequence];
  s.count = cu_seqlens[sequence + 1] - s.first;
  s.start = lengths[sequence] - s.count;
  s.source = source[sequence];
  return s;
}

// The key at `position`: the step computes it, or it is in the state; null if it is neither.
template <typename T>
FN DEVICE const T* delta_key(CONSTANT const StateParams& p, DeltaTokens s, int key, int position,
                             DEVICE const float* scratch, DEVICE const uchar* pages) {
  const int t = position - s.start;
  if (t >= s.count || (t < 0 && s.source < 0)) return 0;
  if (t >= 0) return (DEVICE const T*)(scratch + (s.first + t) * p.scratch + p.left) + key * p.matrix_rows;
  DEVICE const T* keys = (DEVICE const T*)(pages + s.source * p.page * 4 + p.chunk_keys);
  return keys + ((i64)key * kDeltaChunk + position % kDeltaChunk) * p.matrix_rows;
}

// Copies a piece of 8 elements, or zeros.
template <typename T>
FN void delta_piece(TGROUP T* to, DEVICE const T* row, int piece) {
  *(TGROUP uint4*)(to + piece * 8) = row != 0 ? ((DEVICE const uint4*)row)[piece] : make_uint4(0u, 0u, 0u, 0u);
}

// Block `index` of the 16 tokens that the sequences of a step have, counted from absolute positions; false if there are
// fewer. REQUIRES: all lanes of a simdgroup call it.
FN bool delta_find(CONSTANT const StateParams& p, int index, uint lane, DEVICE const int* cu_seqlens,
                   DEVICE const int* lengths, THREAD int* sequence, THREAD int* block) {
  for (int base = 0; base < p.seqs; base += 32) {
    const int s = base + (int)lane;
    int mine = 0;
    if (s < p.seqs) {
      const int count = cu_seqlens[s + 1] - cu_seqlens[s], start = lengths[s] - count;
      mine = count > 0 ? (start % kDeltaRows + count + kDeltaRows - 1) / kDeltaRows : 0;
    }
    int sum = mine;
    for (uint back = 1; back < 32; back <<= 1) {
      const int other = simd_shuffle(sum, (lane - back) & 31u);
      sum += lane >= back ? other : 0;
    }
    const int total = simd_shuffle(sum, 31u);
    if (index < total) {
      const int before = simd_sum(sum <= index ? 1 : 0);
      *sequence = base + before;
      *block = index - simd_shuffle(sum - mine, (uint)before);
      return true;
    }
    index -= total;
  }
  return false;
}

// k_j * k_l (not of Mamba-2) and q_j * k_l of 16 tokens j and the tokens l of their chunk up to their block, one
// simdgroup per 16 l.
template <typename T>
struct DeltaScores {
  enum { kThreads = 128 };
  struct Smem {
    T keys[kDeltaRows * kDeltaKeyLd], queries[kDeltaRows * kDeltaKeyLd];
    T others[kDeltaChunk * kDeltaKeyLd];
  };

  static FN void run(Ctx c, CONSTANT const StateParams& p, TGROUP Smem& sm, DEVICE float* scratch,
                     DEVICE const uchar* pages, DEVICE const int* cu_seqlens, DEVICE const int* lengths,
                     DEVICE const int* source) {
    const int key = (int)c.tgx % p.shared;
    int sequence = 0, index = 0;
    if (!delta_find(p, (int)c.tgx / p.shared, c.lane, cu_seqlens, lengths, &sequence, &index)) return;
    const DeltaTokens s = delta_tokens(sequence, cu_seqlens, lengths, source);
    const int position = (s.start / kDeltaRows + index) * kDeltaRows;  // of the block's first token
    const int chunk = position / kDeltaChunk * kDeltaChunk, block = (position - chunk) / kDeltaRows;
    const int pieces = p.matrix_rows / 8;
    for (int e = (int)c.tid; e < (block + 1) * kDeltaRows * pieces; e += kThreads) {
      const int r = e / pieces;
      delta_piece(sm.others + r * kDeltaKeyLd, delta_key<T>(p, s, key, chunk + r, scratch, pages), e % pieces);
    }
    for (int e = (int)c.tid; e < kDeltaRows * pieces; e += kThreads) {
      const int r = e / pieces, t = position + r - s.start;
      DEVICE const float* row = scratch + (s.first + t) * p.scratch;
      const bool live = t >= 0 && t < s.count;
      DEVICE const T* k = live ? (DEVICE const T*)(row + p.left) + key * p.matrix_rows : 0;
      DEVICE const T* q = live ? (DEVICE const T*)(row + p.right) + key * p.matrix_rows : 0;
      delta_piece(sm.keys + r * kDeltaKeyLd, k, e % pieces);
      delta_piece(sm.queries + r * kDeltaKeyLd, q, e % pieces);
    }
    TG_BARRIER();
    if ((int)c.sg > block) return;
    Acc16 kk, qk;
    acc_zero(kk);
    acc_zero(qk);
    for (int i = 0; i < p.matrix_rows; i += 16) {
      FragA<T> a;
      FragB<T> b;
      frag_load_b_trans(b, sm.others + (int)c.sg * 16 * kDeltaKeyLd + i, kDeltaKeyLd, c.lane);
      if (p.delta != 0) {
        frag_load_a(a, sm.keys + i, kDeltaKeyLd, c.lane);
        acc_mma(kk, a, b);
      }
      frag_load_a(a, sm.queries + i, kDeltaKeyLd, c.lane);
      acc_mma(qk, a, b);
    }
    UNROLL for (int i = 0; i < 8; i++) {
      const int t = position + acc_row(i, c.lane) - s.start;
      if (t < 0 || t >= s.count) continue;
      DEVICE float* to = scratch + (s.first + t) * p.scratch + p.scores + key * 2 * kDeltaChunk;
      if (p.delta != 0) to[(int)c.sg * 16 + acc_col(i, c.lane)] = acc_get(kk, i);
      to[kDeltaChunk + (int)c.sg * 16 + acc_col(i, c.lane)] = acc_get(qk, i);
    }
  }
};

// Both recurrences.
template <typename T, int kMamba>
struct StateChunks {
  enum { kThreads = kDeltaThreads };
  // `room` holds one after the other: keys and queries of a block; weights [2][kDeltaTile] with, behind them, what the
  // tokens of a block wait for [16][kDeltaSumLd] and their weights for each other [16][kDeltaInnerLd]; at the end of a
  // chunk the low parts of the decayed values and a block of keys.
  struct Smem {
    T high[kDeltaColumns * kDeltaKeyLd], low[kDeltaColumns * kDeltaKeyLd];  // the state: [column][row]
    T values[kDeltaColumns * kDeltaTokenLd];                                // [column][token of the chunk]
    uint4 room[560];
    float decay[kDeltaChunk];  // sums of logarithms from the chunk's beginning
    float step[kDeltaRows];
  };
  static FN TGROUP T* weights(TGROUP Smem& sm) { return (TGROUP T*)sm.room; }
  static FN TGROUP float* sums(TGROUP Smem& sm) { return (TGROUP float*)((TGROUP T*)sm.room + 2 * kDeltaTile); }
  static FN TGROUP float* inner(TGROUP Smem& sm) { return sums(sm) + kDeltaRows * kDeltaSumLd; }
  static FN TGROUP T* late_keys(TGROUP Smem& sm) { return (TGROUP T*)sm.room + kDeltaColumns * kDeltaTokenLd; }

  struct Place {
    int head, key, part, column;  // part: which 32 columns of the head
    DeltaTokens tokens;
  };
  // Rows [begin, end) of a block of 16 tokens, the first of which has index t in its sequence.
  struct Block {
    int chunk, before;  // the chunk's position; the tokens of the chunk before the block
    int begin, end, t;
  };

  // Where a page has this threadgroup's part of the state, of the values and of the decays.
  static FN DEVICE uchar* state_at(CONSTANT const StateParams& p, Place at, DEVICE uchar* page) {
    return page + p.chunk_state + ((i64)at.head * p.blocks + at.part) * kDeltaColumns * p.matrix_rows * 4;
  }
  static FN DEVICE T* values_at(CONSTANT const StateParams& p, Place at, DEVICE uchar* page) {
    return (DEVICE T*)(page + p.chunk_values) + (i64)at.head * kDeltaChunk * p.matrix_cols + at.column;
  }
  static FN DEVICE float* decay_at(CONSTANT const StateParams& p, Place at, DEVICE uchar* page) {
    return (DEVICE float*)(page + p.chunk_decays) + (at.head * p.blocks + at.part) * kDeltaChunk;
  }

  static FN void get(Ctx c, CONSTANT const StateParams& p, Place at, DEVICE uchar* pages, TGROUP Smem& sm) {
    DEVICE uchar* page = pages + (at.tokens.source < 0 ? 0 : at.tokens.source * p.page * 4);
    const bool there = at.tokens.source >= 0;
    const int pieces = p.matrix_rows / 8, count = there ? at.tokens.start % kDeltaChunk : 0;
    DEVICE const T* state = (DEVICE const T*)state_at(p, at, page);
    for (int e = (int)c.tid; e < 2 * kDeltaColumns * pieces; e += kThreads) {
      const int row = e / pieces;
      TGROUP T* to = row < kDeltaColumns ? sm.high + row * kDeltaKeyLd : sm.low + (row - kDeltaColumns) * kDeltaKeyLd;
      delta_piece(to, there ? state + row * p.matrix_rows : (DEVICE const T*)0, e % pieces);
    }
    DEVICE const T* values = values_at(p, at, page);
    DEVICE const float* decay = decay_at(p, at, page);
    for (int e = (int)c.tid; e < kDeltaChunk * kDeltaColumns; e += kThreads) {
      const int l = e / kDeltaColumns, column = e % kDeltaColumns;
      sm.values[column * kDeltaTokenLd + l] = l < count ? values[(i64)l * p.matrix_cols + column] : to<T>(0.0f);
    }
    for (int l = (int)c.tid; l < kDeltaChunk; l += kThreads) sm.decay[l] = l < count ? decay[l] : 0.0f;
  }

  // Writes the state after the token before `position` to a page.
  static FN void put(Ctx c, CONSTANT const StateParams& p, Place at, DEVICE uchar* pages, int page, int position,
                     TGROUP const Smem& sm) {
    DEVICE uchar* into = pages + page * p.page * 4;
    const int count = position % kDeltaChunk, pieces = p.matrix_rows / 8;
    const bool same = page == at.tokens.source && position / kDeltaChunk == at.tokens.start / kDeltaChunk;
    if (!same) {
      DEVICE T* state = (DEVICE T*)state_at(p, at, into);
      for (int e = (int)c.tid; e < 2 * kDeltaColumns * pieces; e += kThreads) {
        const int row = e / pieces;
        TGROUP const T* from =
            row < kDeltaColumns ? sm.high + row * kDeltaKeyLd : sm.low + (row - kDeltaColumns) * kDeltaKeyLd;
        ((DEVICE uint4*)(state + row * p.matrix_rows))[e % pieces] = ((TGROUP const uint4*)from)[e % pieces];
      }
    }
    const int begin = same ? at.tokens.start % kDeltaChunk : 0;
    DEVICE T* values = values_at(p, at, into);
    DEVICE float* decay = decay_at(p, at, into);
    for (int e = begin * kDeltaColumns + (int)c.tid; e < count * kDeltaColumns; e += kThreads) {
      const int l = e / kDeltaColumns, column = e % kDeltaColumns;
      values[(i64)l * p.matrix_cols + column] = sm.values[column * kDeltaTokenLd + l];
    }
    for (int l = begin + (int)c.tid; l < count; l += kThreads) decay[l] = sm.decay[l];
  }

  // The weights of tokens for the block's rows. A thread has column tid % 64 of every other row: their scores are
  // loaded early, and those of queries wait in registers until the weights for the values have been read.
  struct Weights {
    float keys[8], queries[8];
  };
  static FN void load_scores(Ctx c, CONSTANT const StateParams& p, Place at, Block b, DEVICE const float* scratch,
                             THREAD Weights& w) {
    const int l = (int)c.tid % kDeltaChunk;
    UNROLL for (int n = 0; n < 8; n++) {
      const int r = 2 * n + (int)c.tid / kDeltaChunk;
      w.keys[n] = w.queries[n] = 0.0f;
      if (r < b.begin || r >= b.end || l > b.before + r) continue;
      DEVICE const float* scores = scratch + (at.tokens.first + b.t + r - b.begin) * p.scratch + p.scores;
      if (kMamba == 0) w.keys[n] = scores[at.key * 2 * kDeltaChunk + l];
      w.queries[n] = scores[(at.key * 2 + 1) * kDeltaChunk + l];
    }
  }
  // Scores times the decay between the two tokens.
  static FN void weigh(Ctx c, Block b, TGROUP const Smem& sm, THREAD Weights& w) {
    const int l = (int)c.tid % kDeltaChunk;
    UNROLL for (int n = 0; n < 8; n++) {
      const int r = 2 * n + (int)c.tid / kDeltaChunk;
      const bool there = r >= b.begin && r < b.end && l <= b.before + r;
      const float g = there ? q_exp(sm.decay[b.before + r] - sm.decay[l]) : 0.0f;
      w.keys[n] = l < b.before + r ? g * w.keys[n] : 0.0f;
      w.queries[n] = g * w.queries[n];
    }
  }
  // As operands, for tokens before `end`; those of the block itself also as they are, if `inside` is not null.
  static FN void store_weights(Ctx c, Block b, THREAD const float* w, int end, TGROUP Smem& sm, TGROUP float* inside) {
    const int l = (int)c.tid % kDeltaChunk;
    UNROLL for (int n = 0; n < 8; n++) {
      const int r = 2 * n + (int)c.tid / kDeltaChunk;
      TGROUP T* to = weights(sm) + r * kDeltaTokenLd + l;
      if (l < end) delta_split(w[n], to, to + kDeltaTile);
      if (inside != 0 && l >= b.before && l < b.before + kDeltaRows) inside[r * kDeltaInnerLd + l - b.before] = w[n];
    }
  }

  // Adds the values of `blocks` blocks, weighed, for 16 of the columns.
  static FN void add_values(TGROUP Smem& sm, int blocks, int tile, uint lane, THREAD Acc16& acc) {
    TGROUP const T* w = weights(sm);
    for (int n = 0; n < blocks; n++) {
      FragA<T> a;
      FragB<T> v;
      frag_load_b_trans(v, sm.values + tile * 16 * kDeltaTokenLd + n * 16, kDeltaTokenLd, lane);
      frag_load_a(a, w + n * 16, kDeltaTokenLd, lane);
      acc_mma(acc, a, v);
      frag_load_a(a, w + kDeltaTile + n * 16, kDeltaTokenLd, lane);
      acc_mma(acc, a, v);
    }
  }

  // The values of the block's tokens, one column per lane: each waits for those before it.
  static FN void solve(TGROUP Smem& sm, Block b, uint lane) {
    TGROUP const float* sum = sums(sm);
    TGROUP const float* w = inner(sm);
    TGROUP T* values = sm.values + lane * kDeltaTokenLd + b.before;
    float y[kDeltaRows];
    UNROLL for (int r = 0; r < kDeltaRows; r++) y[r] = r >= b.begin && r < b.end ? sum[r * kDeltaSumLd + lane] : 0.0f;
    UNROLL for (int l = 0; l < kDeltaRows; l++) {
      if (l >= b.begin) values[l] = l < b.end ? to<T>(delta_bounded(sm.step[l] * y[l], T())) : to<T>(0.0f);
      const float u = to_f(values[l]);
      UNROLL for (int r = l + 1; r < kDeltaRows; r++) y[r] = fma(-w[r * kDeltaInnerLd + l], u, y[r]);
    }
  }

  // The sums of decays, and beta or dt, of the block's tokens; `rows` is row 0 of the block.
  static FN void put_gates(Ctx c, CONSTANT const StateParams& p, Place at, Block b, DEVICE const float* rows,
                           TGROUP Smem& sm) {
    if (c.sg != 0) return;
    DEVICE const float* gates = rows + p.channels + p.pairs + at.head;
    const bool live = (int)c.lane >= b.begin && (int)c.lane < b.end;
    const float mine = live ? gates[c.lane * p.scratch] : 0.0f;
    float sum = b.before + b.begin > 0 ? sm.decay[b.before + b.begin - 1] : 0.0f;
    for (int r = b.begin; r < b.end; r++) {
      sum += simd_shuffle(mine, (uint)r);
      if ((int)c.lane == r) sm.decay[b.before + r] = sum;
    }
    if (c.lane < kDeltaRows) sm.step[c.lane] = live ? gates[c.lane * p.scratch + p.heads] : 0.0f;
  }

  static FN void block(Ctx c, CONSTANT const StateParams& p, Place at, Block b, DEVICE uchar* out,
                       DEVICE const float* scratch, TGROUP Smem& sm) {
    const int pieces = p.matrix_rows / 8, tile = (int)c.sg & 1;
    const bool asks = c.sg >= 2;  // simdgroups 2 and 3 have the queries
    DEVICE const float* rows = scratch + (at.tokens.first + b.t - b.begin) * p.scratch;  // row 0 of the block
    TGROUP T* inputs = (TGROUP T*)sm.room;
    for (int e = (int)c.tid; e < 2 * kDeltaRows * pieces; e += kThreads) {
      const int n = e / pieces, r = n % kDeltaRows;
      DEVICE const T* row = 0;
      if (r >= b.begin && r < b.end) {
        row = (DEVICE const T*)(rows + r * p.scratch + (n < kDeltaRows ? p.left : p.right)) + at.key * p.matrix_rows;
      }
      delta_piece(inputs + n * kDeltaKeyLd, row, e % pieces);
    }
    put_gates(c, p, at, b, rows, sm);
    float own[8];
    UNROLL for (int i = 0; i < 8; i++) {
      const int r = acc_row(i, c.lane), column = at.column + tile * 16 + acc_col(i, c.lane);
      const bool live = !asks && r >= b.begin && r < b.end;
      own[i] = live ? rows[r * p.scratch + p.own + at.head * p.matrix_cols + column] : 0.0f;
    }
    Weights w;
    load_scores(c, p, at, b, scratch, w);
    TG_BARRIER();

    Acc16 high, low;
    acc_zero(high);
    acc_zero(low);
    for (int i = 0; i < p.matrix_rows; i += 16) {
      FragA<T> a;
      FragB<T> s;
      frag_load_a(a, inputs + (asks ? kDeltaRows * kDeltaKeyLd : 0) + i, kDeltaKeyLd, c.lane);
      frag_load_b_trans(s, sm.high + tile * 16 * kDeltaKeyLd + i, kDeltaKeyLd, c.lane);
      acc_mma(high, a, s);
      frag_load_b_trans(s, sm.low + tile * 16 * kDeltaKeyLd + i, kDeltaKeyLd, c.lane);
      acc_mma(low, a, s);
    }
    weigh(c, b, sm, w);
    TG_BARRIER();
    store_weights(c, b, w.keys, b.before, sm, inner(sm));
    TG_BARRIER();
    const float top = q_exp(sm.decay[b.before + acc_row(0, c.lane)]);
    const float bottom = q_exp(sm.decay[b.before + acc_row(4, c.lane)]);
    if (!asks) {
      Acc16 z;
      acc_zero(z);
      add_values(sm, b.before / 16, tile, c.lane, z);
      TGROUP float* sum = sums(sm);
      UNROLL for (int i = 0; i < 8; i++) {
        const float m = acc_get(high, i) + acc_get(low, i), g = i < 4 ? top : bottom;
        sum[acc_row(i, c.lane) * kDeltaSumLd + tile * 16 + acc_col(i, c.lane)] = fma(-g, m, own[i]) - acc_get(z, i);
      }
    }
    TG_BARRIER();
    store_weights(c, b, w.queries, b.before + kDeltaRows, sm, 0);
    if (c.sg == 0) solve(sm, b, c.lane);
    TG_BARRIER();
    if (asks) {
      Acc16 y;
      acc_zero(y);
      add_values(sm, b.before / 16 + 1, tile, c.lane, y);
      UNROLL for (int i = 0; i < 8; i++) {
        const int r = acc_row(i, c.lane), column = at.column + tile * 16 + acc_col(i, c.lane);
        const float m = acc_get(high, i) + acc_get(low, i), g = i < 4 ? top : bottom;
        if (r < b.begin || r >= b.end) continue;
        ((DEVICE T*)out)[(at.tokens.first + b.t + r - b.begin) * p.out_stride + at.head * p.matrix_cols + column] =
            to<T>(fma(g, m, acc_get(y, i)));
      }
    }
    TG_BARRIER();
  }

  // A block of Mamba-2, whose values need no others: x * dt. Simdgroups 0 and 1 multiply the queries with the low parts
  // of the state, 2 and 3 with the high ones.
  static FN void mamba_block(Ctx c, CONSTANT const StateParams& p, Place at, Block b, DEVICE uchar* out,
                             DEVICE const float* scratch, DEVICE const float* skip, TGROUP Smem& sm) {
    const int pieces = p.matrix_rows / 8, tile = (int)c.sg & 1;
    const bool asks = c.sg >= 2;
    DEVICE const float* rows = scratch + (at.tokens.first + b.t - b.begin) * p.scratch;  // row 0 of the block
    DEVICE const float* own = rows + p.own + at.head * p.matrix_cols + at.column;
    TGROUP T* inputs = (TGROUP T*)sm.room;
    for (int e = (int)c.tid; e < kDeltaRows * pieces; e += kThreads) {
      const int r = e / pieces;
      DEVICE const T* row = 0;
      if (r >= b.begin && r < b.end) {
        row = (DEVICE const T*)(rows + r * p.scratch + p.right) + at.key * p.matrix_rows;
      }
      delta_piece(inputs + r * kDeltaKeyLd, row, e % pieces);
    }
    put_gates(c, p, at, b, rows, sm);
    Weights w;
    load_scores(c, p, at, b, scratch, w);
    TG_BARRIER();

    for (int e = (int)c.tid; e < kDeltaRows * kDeltaColumns; e += kThreads) {
      const int r = e / kDeltaColumns, column = e % kDeltaColumns;
      if (r < b.begin) continue;
      const float x = r < b.end ? own[r * p.scratch + column] : 0.0f;
      sm.values[column * kDeltaTokenLd + b.before + r] = to<T>(delta_bounded(x * sm.step[r], T()));
    }
    Acc16 part;
    acc_zero(part);
    for (int i = 0; i < p.matrix_rows; i += 16) {
      FragA<T> a;
      FragB<T> s;
      frag_load_a(a, inputs + i, kDeltaKeyLd, c.lane);
      frag_load_b_trans(s, (asks ? sm.high : sm.low) + tile * 16 * kDeltaKeyLd + i, kDeltaKeyLd, c.lane);
      acc_mma(part, a, s);
    }
    weigh(c, b, sm, w);
    TG_BARRIER();
    TGROUP float* low = sums(sm);
    if (!asks) {
      UNROLL for (int i = 0; i < 8; i++) {
        low[acc_row(i, c.lane) * kDeltaSumLd + tile * 16 + acc_col(i, c.lane)] = acc_get(part, i);
      }
    }
    store_weights(c, b, w.queries, b.before + kDeltaRows, sm, 0);
    TG_BARRIER();
    if (asks) {
      Acc16 y;
      acc_zero(y);
      add_values(sm, b.before / 16 + 1, tile, c.lane, y);
      const float top = q_exp(sm.decay[b.before + acc_row(0, c.lane)]);
      const float bottom = q_exp(sm.decay[b.before + acc_row(4, c.lane)]);
      UNROLL for (int i = 0; i < 8; i++) {
        const int r = acc_row(i, c.lane), column = tile * 16 + acc_col(i, c.lane);
        if (r < b.begin || r >= b.end) continue;
        const float m = acc_get(part, i) + low[r * kDeltaSumLd + column], g = i < 4 ? top : bottom;
        const float sum = fma(g, m, acc_get(y, i));
        ((DEVICE T*)
             out)[(at.tokens.first + b.t + r - b.begin) * p.out_stride + at.head * p.matrix_cols + at.column + column] =
            to<T>(fma(own[r * p.scratch + column], skip[at.head], sum));
      }
    }
    TG_BARRIER();
  }

  // The state after the chunk: the old one decayed, and each key times its value, decayed since.
  static FN void end_chunk(Ctx c, CONSTANT const StateParams& p, Place at, int chunk, DEVICE const float* scratch,
                           DEVICE const uchar* pages, TGROUP Smem& sm) {
    const int pieces = p.matrix_rows / 8, tiles = p.matrix_rows / 16;
    const int tile = (int)c.sg & 1, first = (int)(c.sg >> 1) * 4;  // 16 columns, and four times 16 rows
    TGROUP T* low_values = (TGROUP T*)sm.room;
    const float whole = sm.decay[kDeltaChunk - 1];
    for (int e = (int)c.tid; e < kDeltaColumns * kDeltaChunk; e += kThreads) {
      const int l = e % kDeltaChunk, i = e / kDeltaChunk * kDeltaTokenLd + l;
      delta_split(q_exp(whole - sm.decay[l]) * to_f(sm.values[i]), sm.values + i, low_values + i);
    }
    Acc16 acc[4];
    UNROLL for (int n = 0; n < 4; n++) acc_zero(acc[n]);
    for (int l = 0; l < kDeltaChunk; l += 16) {
      for (int e = (int)c.tid; e < 16 * pieces; e += kThreads) {
        const int r = e / pieces;
        DEVICE const T* key = delta_key<T>(p, at.tokens, at.key, chunk + l + r, scratch, pages);
        delta_piece(late_keys(sm) + r * kDeltaKeyLd, key, e % pieces);
      }
      TG_BARRIER();
      FragA<T> a_high, a_low;
      frag_load_a(a_high, sm.values + tile * 16 * kDeltaTokenLd + l, kDeltaTokenLd, c.lane);
      frag_load_a(a_low, low_values + tile * 16 * kDeltaTokenLd + l, kDeltaTokenLd, c.lane);
      UNROLL for (int n = 0; n < 4; n++) {
        if (first + n < tiles) {
          FragB<T> k;
          frag_load_b(k, late_keys(sm) + (first + n) * 16, kDeltaKeyLd, c.lane);
          acc_mma(acc[n], a_high, k);
          acc_mma(acc[n], a_low, k);
        }
      }
      TG_BARRIER();
    }
    const float g = q_exp(whole);
    UNROLL for (int n = 0; n < 4; n++) {
      if (first + n < tiles) {
        UNROLL for (int i = 0; i < 8; i++) {
          const int at_row = (tile * 16 + acc_row(i, c.lane)) * kDeltaKeyLd + (first + n) * 16 + acc_col(i, c.lane);
          const float s = to_f(sm.high[at_row]) + to_f(sm.low[at_row]);
          delta_split(fma(g, s, acc_get(acc[n], i)), sm.high + at_row, sm.low + at_row);
        }
      }
    }
    for (int e = (int)c.tid; e < kDeltaColumns * kDeltaTokenLd; e += kThreads) sm.values[e] = to<T>(0.0f);
    TG_BARRIER();
  }

  static FN void run(Ctx c, CONSTANT const StateParams& p, TGROUP Smem& sm, DEVICE uchar* out,
                     DEVICE const float* scratch, DEVICE const float* skip, DEVICE uchar* pages,
                     DEVICE const int* cu_seqlens, DEVICE const int* lengths, DEVICE const int* source,
                     DEVICE const int* destination, DEVICE const int* row_destination) {
    Place at;
    const int rest = (int)c.tgx / p.blocks, sequence = rest / p.heads;
    at.part = (int)c.tgx % p.blocks;
    at.column = at.part * kDeltaColumns;
    at.head = rest % p.heads;
    at.key = p.tiled != 0 ? at.head % p.shared : at.head / (p.heads / p.shared);
    at.tokens = delta_tokens(sequence, cu_seqlens, lengths, source);
    const int into = destination[sequence], count = at.tokens.count;
    if (count == 0 && at.tokens.source == into) return;
    get(c, p, at, pages, sm);
    TG_BARRIER();
    int t = 0;
    while (t < count) {
      const int position = at.tokens.start + t;
      Block b;
      b.chunk = position / kDeltaChunk * kDeltaChunk;
      b.before = (position - b.chunk) / kDeltaRows * kDeltaRows;
      b.begin = position % kDeltaRows;
      b.end = min((int)kDeltaRows, b.begin + count - t);
      b.t = t;
      if (kMamba != 0) {
        mamba_block(c, p, at, b, out, scratch, skip, sm);
      } else {
        block(c, p, at, b, out, scratch, sm);
      }
      t += b.end - b.begin;
      int page = -1;
      const bool live = (int)c.lane >= b.begin && (int)c.lane < b.end;
      if (p.keeps_rows != 0 && live) page = row_destination[at.tokens.first + b.t + (int)c.lane - b.begin];
      const bool ends = b.before + b.end == kDeltaChunk;
      const int last = simd_shuffle(page, 15u);  // the chunk's last row, if the chunk ends
      if (simd_any(page >= 0)) {
        for (int r = b.begin; r < b.end - (ends ? 1 : 0); r++) {
          const int to_page = simd_shuffle(page, (uint)r);
          if (to_page >= 0) put(c, p, at, pages, to_page, b.chunk + b.before + r + 1, sm);
        }
      }
      if (!ends) continue;
      TG_BARRIER();
      end_chunk(c, p, at, b.chunk, scratch, pages, sm);
      if (last >= 0) put(c, p, at, pages, last, b.chunk + kDeltaChunk, sm);
    }
    put(c, p, at, pages, into, at.tokens.start + count, sm);
  }
};

template <typename T>
struct DeltaChunks {
  enum { kThreads = kDeltaThreads, kResident = 4 };
  typedef typename StateChunks<T, 0>::Smem Smem;
  static FN void run(Ctx c, CONSTANT const StateParams& p, TGROUP Smem& sm, DEVICE uchar* out,
                     DEVICE const float* scratch, DEVICE uchar* pages, DEVICE const int* cu_seqlens,
                     DEVICE const int* lengths, DEVICE const int* source, DEVICE const int* destination,
                     DEVICE const int* row_destination) {
    StateChunks<T, 0>::run(c, p, sm, out, scratch, (DEVICE const float*)0, pages, cu_seqlens, lengths, source,
                           destination, row_destination);
  }
};

template <typename T>
struct MambaChunks {
  enum { kThreads = kDeltaThreads, kResident = 4 };
  typedef typename StateChunks<T, 1>::Smem Smem;
  static FN void run(Ctx c, CONSTANT const StateParams& p, TGROUP Smem& sm, DEVICE uchar* out,
                     DEVICE const float* scratch, DEVICE const float* skip, DEVICE uchar* pages,
                     DEVICE const int* cu_seqlens, DEVICE const int* lengths, DEVICE const int* source,
                     DEVICE const int* destination, DEVICE const int* row_destination) {
    StateChunks<T, 1>::run(c, p, sm, out, scratch, skip, pages, cu_seqlens, lengths, source, destination,
                           row_destination);
  }
};

// Writes the keys and the convolution's tails after the launches that read the old ones. A threadgroup has the keys of
// one head of one sequence, and a part of the channels.
template <typename T>
struct DeltaKeys {
  enum { kThreads = kDeltaThreads };
  typedef NoSmem Smem;

  // To a page, as they are after so many tokens.
  static FN void put(Ctx c, CONSTANT const StateParams& p, DeltaTokens s, int key, int page, int count,
                     DEVICE const uchar* x, DEVICE const float* scratch, DEVICE uchar* pages) {
    DEVICE uchar* into = pages + page * p.page * 4;
    DEVICE T* keys = (DEVICE T*)(into + p.chunk_keys) + (i64)key * kDeltaChunk * p.matrix_rows;
    const int end = s.start + count, kept = end % kDeltaChunk, pieces = p.matrix_rows / 8;
    for (int e = (int)c.tid; e < kept * pieces; e += kThreads) {
      const int l = e / pieces, position = end - kept + l;
      if (page == s.source && position < s.start) continue;  // there already
      DEVICE const T* from = delta_key<T>(p, s, key, position, scratch, pages);
      if (from != 0)
        ((DEVICE uint4*)(keys + (i64)l * p.matrix_rows))[e % pieces] = ((DEVICE const uint4*)from)[e % pieces];
    }
    DEVICE const float* old = (DEVICE const float*)(pages + (s.source < 0 ? 0 : s.source * p.page * 4));
    const int begin = (int)((i64)p.channels * key / p.shared), last = (int)((i64)p.channels * (key + 1) / p.shared);
    for (int channel = begin + (int)c.tid; channel < last; channel += kThreads) {
      state_tail(p, s.first, count, x, old, (DEVICE float*)into, s.source >= 0, channel);
    }
  }

  static FN void run(Ctx c, CONSTANT const StateParams& p, TGROUP Smem& sm, DEVICE const uchar* x,
                     DEVICE const float* scratch, DEVICE uchar* pages, DEVICE const int* cu_seqlens,
                     DEVICE const int* lengths, DEVICE const int* source, DEVICE const int* destination,
                     DEVICE const int* row_destination) {
    const int key = (int)c.tgx % p.shared, sequence = (int)c.tgx / p.shared;
    const DeltaTokens s = delta_tokens(sequence, cu_seqlens, lengths, source);
    const int into = destination[sequence];
    if (s.count == 0 && s.source == into) return;
    put(c, p, s, key, into, s.count, x, scratch, pages);
    if (p.keeps_rows == 0) return;
    // The last row comes first, because the page of the first one may be the source.
    for (int high = s.count - 1; high > 0; high -= 32) {
      const int t = high - (int)c.lane, page = t > 0 ? row_destination[s.first + t - 1] : -1;
      if (!simd_any(page >= 0)) continue;
      for (int n = 0; n < 32; n++) {
        const int to_page = simd_shuffle(page, (uint)n);
        if (to_page >= 0) put(c, p, s, key, to_page, high - n, x, scratch, pages);
      }
    }
  }
};

#define DELTA_SCORES(name, T) \
  KERNEL(name, DeltaScores<T>, StateParams, float, const uchar, const int, const int, const int)
#define DELTA_CHUNKS(name, T)                                                                                      \
  KERNEL(name, DeltaChunks<T>, StateParams, uchar, const float, uchar, const int, const int, const int, const int, \
         const int)
#define MAMBA_CHUNKS(name, T)                                                                                        \
  KERNEL(name, MambaChunks<T>, StateParams, uchar, const float, const float, uchar, const int, const int, const int, \
         const int, const int)
#define DELTA_KEYS(name, T)                                                                                            \
  KERNEL(name, DeltaKeys<T>, StateParams, const uchar, const float, uchar, const int, const int, const int, const int, \
         const int)
DELTA_SCORES(delta_scores_f16, half)
DELTA_SCORES(delta_scores_bf16, bfloat)
DELTA_CHUNKS(delta_chunks_f16, half)
DELTA_CHUNKS(delta_chunks_bf16, bfloat)
MAMBA_CHUNKS(mamba_chunks_f16, half)
MAMBA_CHUNKS(mamba_chunks_bf16, bfloat)
DELTA_KEYS(delta_keys_f16, half)
DELTA_KEYS(delta_keys_bf16, bfloat)
