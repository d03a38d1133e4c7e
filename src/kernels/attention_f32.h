// SPDX-License-Identifier: Apache-2.0
// Paged attention for float activations: as attention.h, with chains of fma in place of the matrix tile.
//
// Four rows per threadgroup; each simdgroup computes the softmax of one row. A thread computes the scores of one
// position for two rows, then some dims of the output for all four. K and V are read straight from the pages.
#pragma once

#include "kernels/attention_common.h"

struct AttentionF32 {
  enum {
    kThreads = kAttentionThreads,
    kRows = kAttentionRowTileF32,
    kDims = (kAttentionMaxDim + kThreads - 1) / kThreads
  };
  struct Smem {
    float q[kRows][kAttentionMaxDim];
    float weights[kRows][kAttentionPositions];
    float factors[kRows];
    float sums[kRows], tops[kRows];
  };

  // The row of position j in the pages, and its scale.
  static FN DEVICE const uchar* place(CONSTANT const AttentionParams& p, DEVICE const uchar* pages,
                                      DEVICE const int* table, int kv_head, int j, bool values, THREAD float& scale) {
    const int block = j / p.kv.block_size;
    const int row = (j - block * p.kv.block_size) * p.kv.kv_heads + kv_head;
    scale = 1.0f;
    if (p.kv.type == kKvI8) scale = *(DEVICE const float*)(pages + kv_scale_at(p.kv, table[block], row, values));
    return pages + kv_row_at(p.kv, table[block], row, values);
  }

  static FN void score(Ctx c, CONSTANT const AttentionParams& p, THREAD const AttentionWork& w, TGROUP Smem& sm,
                       THREAD const AttentionRow* rows, DEVICE const uchar* pages, DEVICE const int* table, int tile,
                       DEVICE const float* sinks) {
    const int column = (int)c.tid % kAttentionPositions, half_of_rows = (int)c.tid / kAttentionPositions * 2;
    const int j = tile + column;
    const bool seen[2] = {attention_sees(rows[0], j), attention_sees(rows[1], j)};
    float s[2] = {0.0f, 0.0f};
    if (seen[0] || seen[1]) {
      float scale;
      DEVICE const uchar* k = place(p, pages, table, w.kv_head, j, false, scale);
      for (int d = 0; d < p.kv.head_dim; d++) {
        const float x = kv_value(k, p.kv.type, d, scale);
        s[0] = fma(sm.q[half_of_rows][d], x, s[0]);
        s[1] = fma(sm.q[half_of_rows + 1][d], x, s[1]);
      }
    }
    UNROLL for (int i = 0; i < 2; i++) {
      sm.weights[half_of_rows + i][column] = seen[i] ? attention_score(p, sinks, rows[i], j, s[i]) : 0.0f;
    }
  }

  // Lane i has columns 2i and 2i + 1: block i / 4, partial sum t = i % 4.
  static FN void softmax_tile(Ctx c, TGROUP Smem& sm, THREAD const AttentionRow& r, int tile, THREAD float& m,
                              THREAD float& l) {
    TGROUP float* weights = sm.weights[c.sg] + 2 * c.lane;
    const int j = tile + 2 * (int)c.lane;
    const bool sees[2] = {attention_sees(r, j), attention_sees(r, j + 1)};
    float top = sees[0] ? max(attention_min_score(), weights[0]) : attention_min_score();
    if (sees[1]) top = max(top, weights[1]);
    const float next = max(m, simd_max(top));
    const float a = q_exp2(m - next);
    const float x = sees[0] ? q_exp2(weights[0] - next) : 0.0f;
    const float y = sees[1] ? q_exp2(weights[1] - next) : 0.0f;
    float e = x + y;
    e += simd_shuffle_xor(e, 4);
    e += simd_shuffle_xor(e, 8);
    e += simd_shuffle_xor(e, 16);
    l = fma(l, a, e);
    m = next;
    weights[0] = x;
    weights[1] = y;
    if (c.lane == 0) sm.factors[c.sg] = a;
  }

  static FN void add_values(Ctx c, CONSTANT const AttentionParams& p, THREAD const AttentionWork& w, TGROUP Smem& sm,
                            THREAD const AttentionRow* rows, THREAD const AttentionSpan& span,
                            DEVICE const uchar* pages, DEVICE const int* table, int tile, THREAD float* o) {
    UNROLL for (int i = 0; i < kDims * kRows; i++) o[i] *= sm.factors[i % kRows];
    const int end = min(span.high - tile, (int)kAttentionPositions);
    for (int column = max(span.low - tile, 0); column < end; column++) {
      float scale;
      DEVICE const uchar* v = place(p, pages, table, w.kv_head, tile + column, true, scale);
      UNROLL for (int i = 0; i < kDims; i++) {
        const int d = (int)c.tid + i * kThreads;
        if (d < p.kv.v_dim) {
          const float x = kv_value(v, p.kv.type, d, scale);
          UNROLL for (int row = 0; row < kRows; row++) {
            if (attention_sees(rows[row], tile + column)) {
              o[i * kRows + row] = fma(sm.weights[row][column], x, o[i * kRows + row]);
            }
          }
        }
      }
    }
  }

  // As Attention16::end_split. The simdgroup of each row provides m and l.
  static FN void end_split(Ctx c, CONSTANT const AttentionParams& p, TGROUP Smem& sm, THREAD const AttentionRow* rows,
                           THREAD float* o, THREAD float* all_m, THREAD float* all_l, float m, float l, bool first,
                           bool last, DEVICE float* slot, DEVICE float* out, DEVICE const float* sinks) {
    l += simd_shuffle_xor(l, 1);  // each lane holds the partial sum t = lane % 4
    l += simd_shuffle_xor(l, 2);
    TG_BARRIER();
    if (c.lane == 0) {
      sm.tops[c.sg] = m;
      sm.sums[c.sg] = l;
    }
    TG_BARRIER();
    UNROLL for (int row = 0; row < kRows; row++) {
      float left = 0.0f, right = 1.0f, by = 1.0f;
      if (first) {
        all_m[row] = sm.tops[row];
        all_l[row] = sm.sums[row];
      } else {
        const AttentionMerged a = attention_merge(all_m[row], sm.tops[row]);
        all_l[row] = fma(all_l[row], a.left, sm.sums[row] * a.right);
        all_m[row] = a.m;
        left = a.left;
        right = a.right;
      }
      if (rows[row].active != 0) {
        if (last) {
          by = attention_sink(p, sinks, rows[row].head, all_m[row], all_l[row]);
        } else if (c.tid == 0) {
          slot[row] = all_m[row];
          slot[p.partial_rows + row] = all_l[row];
        }
      }
      UNROLL for (int i = 0; i < kDims; i++) {
        const int d = (int)c.tid + i * kThreads;
        if (rows[row].active != 0 && d < p.kv.v_dim) {
          DEVICE float* kept = slot + 2 * p.partial_rows + (i64)row * p.partial_dim + d;
          float x = o[i * kRows + row];
          if (!first) x = fma(*kept, left, x * right);
          if (last) {
            out[rows[row].out + d] = (x * by + 0.0f) / all_l[row];
          } else {
            *kept = x;
          }
        }
        o[i * kRows + row] = 0.0f;
      }
    }
  }

  static FN void run(Ctx c, CONSTANT const AttentionParams& p, TGROUP Smem& sm, DEVICE float* out,
                     DEVICE const float* q, DEVICE const uchar* pages, DEVICE const int* cu, DEVICE const int* contexts,
                     DEVICE const int* tables, DEVICE const float* sinks, DEVICE float* partials,
                     DEVICE const int* map) {
    AttentionWork w;
    if (!attention_work(p, (int)c.tgx + p.first, cu, contexts, map, w)) return;
    AttentionSpan s = attention_span(p, w);
    const bool apart = p.splits > 0 && s.splits > 1;
    if (p.splits > 0 && !attention_clip_to_split(s, (int)c.tgy)) return;
    DEVICE float* slot = partials + attention_slot(p, p.splits > 0 ? (i64)c.tgx * p.splits + c.tgy : (i64)c.tgx);
    DEVICE const int* table = tables + (i64)w.seq * p.max_blocks;

    AttentionRow rows[kRows], two[2];
    UNROLL for (int row = 0; row < kRows; row++) {
      rows[row] = attention_row(p, w, w.token, row);
      for (int d = (int)c.tid; d < p.kv.head_dim; d += kThreads) {
        sm.q[row][d] = rows[row].active != 0 ? q[rows[row].q + d] * p.q_scale : 0.0f;
      }
    }
    const int half_of_rows = (int)c.tid / kAttentionPositions * 2;
    two[0] = attention_row(p, w, w.token, half_of_rows);
    two[1] = attention_row(p, w, w.token, half_of_rows + 1);
    const AttentionRow own = attention_row(p, w, w.token, (int)c.sg);

    float o[kDims * kRows], all_m[kRows], all_l[kRows];
    UNROLL for (int i = 0; i < kDims * kRows; i++) o[i] = 0.0f;
    float m = attention_min_score(), l = 0.0f;
    bool first = true;
    for (int tile = s.low / kAttentionPositions * kAttentionPositions; tile < s.high; tile += kAttentionPositions) {
      TG_BARRIER();
      score(c, p, w, sm, two, pages, table, tile, sinks);
      TG_BARRIER();
      softmax_tile(c, sm, own, tile, m, l);
      TG_BARRIER();
      add_values(c, p, w, sm, rows, s, pages, table, tile, o);
      const bool ends = tile + kAttentionPositions >= s.high;
      if (ends || (tile + kAttentionPositions) % kAttentionSplitPositions == 0) {
        end_split(c, p, sm, rows, o, all_m, all_l, m, l, first, ends && !apart, slot, out, sinks);
        first = false;
        m = attention_min_score();
        l = 0.0f;
      }
    }
  }
};
QUIRE_ATTENTION(attention_f32, AttentionF32, float)
