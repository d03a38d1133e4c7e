// SPDX-License-Identifier: Apache-2.0
// Paged attention for 64 rows, for sequences with many tokens and head sizes up to 128: four tiles of 16 rows, one
// simdgroup each, which share the chunks of K and V.
//
// A simdgroup has all scores and all outputs of its rows, so that they never leave its registers, and takes all splits
// in turn. The arithmetic of a row is that of attention.h. The threadgroup's tokens are found through a map that the
// host made, or by a search.
#pragma once

#include "kernels/attention_common.h"
#include "kernels/compat/tile.h"

template <typename T, int kDim>
struct Attention64 {
  enum { kThreads = kAttentionThreads, kTiles = kDim / 16 };
  struct Smem {
    T chunk[2][kChunkCells];
  };
  struct Lane {
    AttentionRow row[2];
    float m[2], l[2];
    float a[2];
    float all_m[2], all_l[2];
  };

  // The queries are staged where the first chunk will be, 64 dims at a time; each simdgroup touches only its own rows.
  static FN void load_queries(Ctx c, CONSTANT const AttentionParams& p, THREAD const AttentionWork& w, int token,
                              TGROUP Smem& sm, THREAD FragA<T>* queries, DEVICE const T* q) {
    TGROUP T* own = sm.chunk[0] + (int)c.sg * 16 * kChunkPitch;
    UNROLL for (int n = 0; n < kDim / 64; n++) {
      SG_BARRIER();
      for (int row = 0; row < 16; row++) {
        const AttentionRow r = attention_row(p, w, token, row);
        for (int d = (int)c.lane; d < kChunkDims; d += 32) {
          const int from = n * kChunkDims + d;
          const float x = r.active != 0 && from < p.kv.head_dim ? to_f(q[r.q + from]) : 0.0f;
          own[row * kChunkPitch + d] = to<T>(x * p.q_scale);
        }
      }
      SG_BARRIER();
      UNROLL for (int k = 0; k < 4; k++) frag_load_a(queries[n * 4 + k], own + k * 16, kChunkPitch, c.lane);
    }
  }

  static FN void add_scores(Ctx c, CONSTANT const AttentionParams& p, TGROUP const T* chunk, int n,
                            THREAD const FragA<T>* queries, THREAD Acc16* scores) {
    UNROLL for (int m = 0; m < kDim / 64; m++) {  // fragments are registers: no index at run time
      if (m == n) {
        UNROLL for (int k = 0; k < 4; k++) {
          if (m * 4 + k < p.k_steps) {
            UNROLL for (int i = 0; i < 4; i++) {
              FragB<T> b;
              frag_load_b_trans(b, chunk + i * 16 * kChunkPitch + k * 16, kChunkPitch, c.lane);
              acc_mma(scores[i], queries[m * 4 + k], b);
            }
          }
        }
      }
    }
  }

  // Turns scores into weights, in place.
  static FN void softmax_tile(Ctx c, CONSTANT const AttentionParams& p, THREAD Lane& lane, int tile,
                              THREAD Acc16* scores, DEVICE const float* sinks) {
    float top[2];
    top[0] = top[1] = attention_min_score();
    UNROLL for (int n = 0; n < 4; n++) {
      UNROLL for (int i = 0; i < 8; i++) {
        const int j = tile + n * 16 + acc_col(i, c.lane);
        const float s = attention_score(p, sinks, lane.row[i >> 2], j, acc_get(scores[n], i));
        acc_set(scores[n], i, s);
        if (attention_sees(lane.row[i >> 2], j)) top[i >> 2] = max(top[i >> 2], s);
      }
    }
    UNROLL for (int h = 0; h < 2; h++) {
      const float m = max(lane.m[h], row_max(top[h]));
      lane.a[h] = q_exp2(lane.m[h] - m);
      lane.m[h] = m;
      float sums[4];
      UNROLL for (int n = 0; n < 4; n++) {
        float w[4];
        UNROLL for (int i = 0; i < 4; i++) {
          const bool sees = attention_sees(lane.row[h], tile + n * 16 + acc_col(4 * h + i, c.lane));
          w[i] = sees ? q_exp2(acc_get(scores[n], 4 * h + i) - m) : 0.0f;
          acc_set(scores[n], 4 * h + i, w[i]);
        }
        sums[n] = (w[0] + w[1]) + (w[2] + w[3]);
      }
      lane.l[h] = fma(lane.l[h], lane.a[h], (sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
  }

  static FN void add_values(Ctx c, CONSTANT const AttentionParams& p, TGROUP const T* chunk, int n,
                            THREAD const FragA<T>* weights, THREAD Acc16* o) {
    UNROLL for (int m = 0; m < kDim / 64; m++) {
      if (m == n) {
        UNROLL for (int i = 0; i < 4; i++) {
          if ((m * 4 + i) * 16 < p.kv.v_dim) {
            UNROLL for (int k = 0; k < 4; k++) {
              FragB<T> b;
              frag_load_b(b, chunk + k * 16 * kChunkPitch + i * 16, kChunkPitch, c.lane);
              acc_mma(o[m * 4 + i], weights[k], b);
            }
          }
        }
      }
    }
  }

  // As Attention16::end_split, except that a simdgroup has all dims of its rows.
  static FN void end_split(Ctx c, CONSTANT const AttentionParams& p, THREAD Lane& lane, THREAD Acc16* o, bool first,
                           bool last, DEVICE float* kept, DEVICE T* out, DEVICE const float* sinks) {
    float left[2], right[2];
    UNROLL for (int h = 0; h < 2; h++) {
      const float l = row_sum(lane.l[h]);
      left[h] = 0.0f;
      right[h] = 1.0f;
      if (first) {
        lane.all_m[h] = lane.m[h];
        lane.all_l[h] = l;
      } else {
        const AttentionMerged a = attention_merge(lane.all_m[h], lane.m[h]);
        lane.all_l[h] = fma(lane.all_l[h], a.left, l * a.right);
        lane.all_m[h] = a.m;
        left[h] = a.left;
        right[h] = a.right;
      }
      if (last && lane.row[h].active != 0) {
        lane.a[h] = attention_sink(p, sinks, lane.row[h].head, lane.all_m[h], lane.all_l[h]);
      }
      lane.m[h] = attention_min_score();
      lane.l[h] = 0.0f;
    }
    UNROLL for (int n = 0; n < kTiles; n++) {
      UNROLL for (int i = 0; i < 8; i++) {
        const int h = i >> 2, d = n * 16 + acc_col(i, c.lane);
        if (lane.row[h].active != 0 && d < p.kv.v_dim) {
          DEVICE float* place = kept + (i64)acc_row(i, c.lane) * p.partial_dim + d;
          float x = acc_get(o[n], i);
          if (!first) x = fma(*place, left[h], x * right[h]);
          if (last) {
            out[lane.row[h].out + d] = to<T>((x * lane.a[h] + 0.0f) / lane.all_l[h]);
          } else {
            *place = x;
          }
        }
        acc_set(o[n], i, 0.0f);
      }
    }
  }

  static FN void run(Ctx c, CONSTANT const AttentionParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* q,
                     DEVICE const uchar* pages, DEVICE const int* cu, DEVICE const int* contexts,
                     DEVICE const int* tables, DEVICE const float* sinks, DEVICE float* partials,
                     DEVICE const int* map) {
    AttentionWork w;
    if (!attention_work(p, (int)c.tgx + p.first, cu, contexts, map, w)) return;
    const AttentionSpan s = attention_span(p, w);
    DEVICE const int* table = tables + (i64)w.seq * p.max_blocks;
    // A slot holds the rows of the four tiles one after another.
    DEVICE float* kept = partials + attention_slot(p, (i64)c.tgx) + (i64)(c.sg * 16) * p.partial_dim;
    const int token = w.token + (int)c.sg * p.tile_tokens;

    Lane lane;
    UNROLL for (int h = 0; h < 2; h++) {
      lane.row[h] = attention_row(p, w, token, acc_row(h * 4, c.lane));
      lane.m[h] = lane.all_m[h] = attention_min_score();
      lane.l[h] = lane.all_l[h] = 0.0f;
      lane.a[h] = 1.0f;
    }
    Acc16 o[kTiles];
    UNROLL for (int n = 0; n < kTiles; n++) acc_zero(o[n]);
    FragA<T> queries[kTiles];
    load_queries(c, p, w, token, sm, queries, q);

    AttentionWalk next;
    next.tile = s.low / kAttentionPositions * kAttentionPositions;
    next.chunk = next.stage = 0;
    bool first = true;
    int n = -1;  // the first round only starts loading the first chunk
    for (int tile = next.tile; tile < s.high; tile += kAttentionPositions) {
      Acc16 scores[4];
      FragA<T> weights[4];
      UNROLL for (int i = 0; i < 4; i++) acc_zero(scores[i]);
      for (; n < p.k_chunks + p.v_chunks; n++) {
        copy_wait<0>();
        TG_BARRIER();
        const int here = 1 - next.stage;
        attention_next_chunk<T>(next, sm.chunk[next.stage], p, s, table, w.kv_head, pages, c.tid);
        next.stage = here;
        if (n >= p.k_chunks) {
          add_values(c, p, sm.chunk[here], n - p.k_chunks, weights, o);
        } else if (n >= 0) {
          add_scores(c, p, sm.chunk[here], n, queries, scores);
          if (n == p.k_chunks - 1) {
            softmax_tile(c, p, lane, tile, scores, sinks);
            UNROLL for (int i = 0; i < 4; i++) frag_from_acc(weights[i], scores[i]);
            UNROLL for (int m = 0; m < kTiles; m++) {
              UNROLL for (int i = 0; i < 8; i++) acc_set(o[m], i, acc_get(o[m], i) * lane.a[i >> 2]);
            }
          }
        }
      }
      n = 0;
      const bool ends = tile + kAttentionPositions >= s.high;
      if (ends || (tile + kAttentionPositions) % kAttentionSplitPositions == 0) {
        end_split(c, p, lane, o, first, ends, kept, out, sinks);
        first = false;
      }
    }
  }
};

typedef Attention64<half, 64> Attention64_f16_d64;
typedef Attention64<half, 128> Attention64_f16_d128;
typedef Attention64<bfloat, 64> Attention64_bf16_d64;
typedef Attention64<bfloat, 128> Attention64_bf16_d128;
QUIRE_ATTENTION(attention_rows_f16_d64, Attention64_f16_d64, half)
QUIRE_ATTENTION(attention_rows_f16_d128, Attention64_f16_d128, half)
QUIRE_ATTENTION(attention_rows_bf16_d64, Attention64_bf16_d64, bfloat)
QUIRE_ATTENTION(attention_rows_bf16_d128, Attention64_bf16_d128, bfloat)
