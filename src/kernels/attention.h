// SPDX-License-Identifier: Apache-2.0
// Paged attention for a tile of 16 rows (the query heads of one KV head times a few tokens), and the merge of splits.
//
// Four simdgroups share a tile of 64 positions: each computes the scores of 16 positions, then 16 of every 64 dims of
// the output. K and V are loaded in chunks of 64 dims, so that threadgroup memory does not grow with the head size.
// Either each split has a threadgroup of its own (and attention_merge combines them), or one threadgroup takes all
// splits in turn; the arithmetic is the same. attention_common.h describes it.
//
// MLA has many heads of queries and one large head of K and V, so a step of few tokens has few such threadgroups. It
// gets two launches with more of them: one computes the scores of each tile of positions (attention_scores), the other
// the softmax and 64 dims of the output of each split (attention_values).
#pragma once

#include "kernels/attention_common.h"
#include "kernels/compat/tile.h"

// kDim: the largest head size. kStages: chunks in threadgroup memory; with two, one is loaded while the other is used.
template <typename T, int kDim, int kStages>
struct Attention16 {
  enum { kThreads = kAttentionThreads, kPitchQ = kDim + 8, kPitchP = kAttentionPositions + 8, kChunks = kDim / 64 };
  struct Smem {
    T q[16 * kPitchQ];
    T chunk[kStages][kChunkCells];
    T weights[16 * kPitchP];
    float tops[4][16];
    float sums[4][16][4];
  };

  // What a lane keeps for its two rows: row and row + 8 of the tile.
  struct Lane {
    AttentionRow row[2];
    float m[2], l[2];          // of the current split; l is the lane's partial sum t
    float a[2];                // the factor of the current tile
    float all_m[2], all_l[2];  // of the earlier splits, merged
  };
  static FN void begin_rows(Ctx c, CONSTANT const AttentionParams& p, THREAD const AttentionWork& w,
                            THREAD Lane& lane) {
    UNROLL for (int h = 0; h < 2; h++) {
      lane.row[h] = attention_row(p, w, w.token, acc_row(h * 4, c.lane));
      lane.m[h] = lane.all_m[h] = attention_min_score();
      lane.l[h] = lane.all_l[h] = 0.0f;
      lane.a[h] = 1.0f;
    }
  }

  // Waits for the next chunk and returns the stage that it is in; with two stages it also starts loading the one after
  // it.
  static FN int wait_chunk(CONSTANT const AttentionParams& p, THREAD const AttentionWork& w,
                           THREAD const AttentionSpan& s, THREAD AttentionWalk& next, TGROUP Smem& sm,
                           DEVICE const uchar* pages, DEVICE const int* table, uint tid) {
    if (kStages == 2) copy_wait<0>();
    TG_BARRIER();
    const int here = kStages - 1 - next.stage;
    attention_next_chunk<T>(next, sm.chunk[next.stage], p, s, table, w.kv_head, pages, tid);
    next.stage = here;
    if (kStages == 1) {
      copy_wait<0>();
      TG_BARRIER();
    }
    return here;
  }

  static FN void load_queries(Ctx c, CONSTANT const AttentionParams& p, THREAD const AttentionWork& w, TGROUP Smem& sm,
                              DEVICE const T* q) {
    const int dims = p.k_steps * 16;
    for (int row = (int)c.sg; row < 16; row += 4) {
      const AttentionRow r = attention_row(p, w, w.token, row);
      for (int d = (int)c.lane; d < dims; d += 32) {
        const float x = r.active != 0 && d < p.kv.head_dim ? to_f(q[r.q + d]) : 0.0f;
        sm.q[row * kPitchQ + d] = to<T>(x * p.q_scale);
      }
    }
  }

  // Turns the scores of this simdgroup's 16 positions into weights, and updates sums and factors for the whole tile.
  static FN void softmax_tile(Ctx c, CONSTANT const AttentionParams& p, THREAD Lane& lane, TGROUP Smem& sm, int tile,
                              THREAD const Acc16& scores, DEVICE const float* sinks) {
    float s[8], top[2];
    top[0] = top[1] = attention_min_score();
    UNROLL for (int i = 0; i < 8; i++) {
      const int j = tile + (int)c.sg * 16 + acc_col(i, c.lane);
      s[i] = attention_score(p, sinks, lane.row[i >> 2], j, acc_get(scores, i));
      if (attention_sees(lane.row[i >> 2], j)) top[i >> 2] = max(top[i >> 2], s[i]);
    }
    UNROLL for (int h = 0; h < 2; h++) {
      top[h] = row_max(top[h]);
      if (acc_t(c.lane) == 0) sm.tops[c.sg][acc_row(h * 4, c.lane)] = top[h];
    }
    TG_BARRIER();
    UNROLL for (int h = 0; h < 2; h++) {
      const int row = acc_row(h * 4, c.lane);
      const float m = max(lane.m[h], max(max(sm.tops[0][row], sm.tops[1][row]), max(sm.tops[2][row], sm.tops[3][row])));
      lane.a[h] = q_exp2(lane.m[h] - m);
      lane.m[h] = m;
    }
    UNROLL for (int i = 0; i < 8; i++) {
      const int column = (int)c.sg * 16 + acc_col(i, c.lane);
      s[i] = attention_sees(lane.row[i >> 2], tile + column) ? q_exp2(s[i] - lane.m[i >> 2]) : 0.0f;
      sm.weights[acc_row(i, c.lane) * kPitchP + column] = to<T>(s[i]);
    }
    UNROLL for (int h = 0; h < 2; h++) {
      sm.sums[c.sg][acc_row(h * 4, c.lane)][acc_t(c.lane)] = (s[4 * h] + s[4 * h + 1]) + (s[4 * h + 2] + s[4 * h + 3]);
    }
    TG_BARRIER();
    UNROLL for (int h = 0; h < 2; h++) {
      const int row = acc_row(h * 4, c.lane), t = acc_t(c.lane);
      const float sum = (sm.sums[0][row][t] + sm.sums[1][row][t]) + (sm.sums[2][row][t] + sm.sums[3][row][t]);
      lane.l[h] = fma(lane.l[h], lane.a[h], sum);
    }
  }

  static FN void add_scores(Ctx c, CONSTANT const AttentionParams& p, TGROUP Smem& sm, int stage, int n,
                            THREAD Acc16& scores) {
    UNROLL for (int k = 0; k < 4; k++) {
      if (n * 4 + k < p.k_steps) {
        FragA<T> a;
        FragB<T> b;
        frag_load_a(a, sm.q + n * kChunkDims + k * 16, kPitchQ, c.lane);
        frag_load_b_trans(b, sm.chunk[stage] + (int)c.sg * 16 * kChunkPitch + k * 16, kChunkPitch, c.lane);
        acc_mma(scores, a, b);
      }
    }
  }

  // Adds chunk n of V; this simdgroup computes 16 of its dims.
  static FN void add_values(Ctx c, CONSTANT const AttentionParams& p, TGROUP Smem& sm, int stage, int n,
                            THREAD Acc16* o) {
    if (n * kChunkDims + (int)c.sg * 16 >= p.kv.v_dim) return;
    UNROLL for (int m = 0; m < kChunks; m++) {  // accumulators are registers: no index at run time
      if (m == n) {
        UNROLL for (int k = 0; k < 4; k++) {
          FragA<T> a;
          FragB<T> b;
          frag_load_a(a, sm.weights + k * 16, kPitchP, c.lane);
          frag_load_b(b, sm.chunk[stage] + k * 16 * kChunkPitch + (int)c.sg * 16, kChunkPitch, c.lane);
          acc_mma(o[m], a, b);
        }
      }
    }
  }

  static FN void scale_rows(THREAD Acc16& acc, THREAD const float* by) {
    UNROLL for (int i = 0; i < 8; i++) acc_set(acc, i, acc_get(acc, i) * by[i >> 2]);
  }

  // The end of a split: merges it with the earlier ones, and writes the state to scratch, or the result to out. The
  // threadgroup has the chunks of V from `first_chunk` on.
  static FN void end_split(Ctx c, CONSTANT const AttentionParams& p, THREAD Lane& lane, THREAD Acc16* o, bool first,
                           bool last, DEVICE float* slot, DEVICE T* out, DEVICE const float* sinks, int first_chunk) {
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
      if (lane.row[h].active != 0) {
        if (last) {
          lane.a[h] = attention_sink(p, sinks, lane.row[h].head, lane.all_m[h], lane.all_l[h]);
        } else if (c.sg == 0 && acc_t(c.lane) == 0 && first_chunk == 0) {
          slot[acc_row(h * 4, c.lane)] = lane.all_m[h];
          slot[p.partial_rows + acc_row(h * 4, c.lane)] = lane.all_l[h];
        }
      }
    }
    UNROLL for (int n = 0; n < kChunks; n++) {
      if (first_chunk + n < p.v_chunks) {
        UNROLL for (int i = 0; i < 8; i++) {
          const int h = i >> 2, row = acc_row(i, c.lane);
          const int d = (first_chunk + n) * kChunkDims + (int)c.sg * 16 + acc_col(i, c.lane);
          DEVICE float* kept = slot + 2 * p.partial_rows + (i64)row * p.partial_dim + d;
          if (lane.row[h].active != 0 && d < p.kv.v_dim) {
            float x = acc_get(o[n], i);
            if (!first) x = fma(*kept, left[h], x * right[h]);
            if (last) {
              out[lane.row[h].out + d] = to<T>((x * lane.a[h] + 0.0f) / lane.all_l[h]);
            } else {
              *kept = x;
            }
          }
          acc_set(o[n], i, 0.0f);
        }
      }
    }
    UNROLL for (int h = 0; h < 2; h++) {
      lane.m[h] = attention_min_score();
      lane.l[h] = 0.0f;
    }
  }

  static FN void run(Ctx c, CONSTANT const AttentionParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* q,
                     DEVICE const uchar* pages, DEVICE const int* cu, DEVICE const int* contexts,
                     DEVICE const int* tables, DEVICE const float* sinks, DEVICE float* partials,
                     DEVICE const int* map) {
    AttentionWork w;
    if (!attention_work(p, (int)c.tgx + p.first, cu, contexts, map, w)) return;
    AttentionSpan s = attention_span(p, w);
    const bool one = s.splits == 1;
    if (p.splits > 0 && !attention_clip_to_split(s, (int)c.tgy)) return;
    // The splits of separate threadgroups go to scratch for attention_merge, but a single split is the whole result.
    const bool apart = p.splits > 0 && !one;
    DEVICE float* slot = partials + attention_slot(p, p.splits > 0 ? (i64)c.tgx * p.splits + c.tgy : (i64)c.tgx);
    DEVICE const int* table = tables + (i64)w.seq * p.max_blocks;

    Lane lane;
    begin_rows(c, p, w, lane);
    Acc16 o[kChunks];
    UNROLL for (int n = 0; n < kChunks; n++) acc_zero(o[n]);

    load_queries(c, p, w, sm, q);
    AttentionWalk next;
    next.tile = s.low / kAttentionPositions * kAttentionPositions;
    next.chunk = next.stage = 0;
    bool first = true;
    // With two stages, the first call only starts loading the first chunk, so that the loading code is inlined only
    // once.
    int n = kStages == 2 ? -1 : 0;
    for (int tile = next.tile; tile < s.high; tile += kAttentionPositions) {
      Acc16 scores;
      acc_zero(scores);
      for (; n < p.k_chunks + p.v_chunks; n++) {
        const int stage = wait_chunk(p, w, s, next, sm, pages, table, c.tid);
        if (n >= p.k_chunks) {
          add_values(c, p, sm, stage, n - p.k_chunks, o);
        } else if (n >= 0) {
          add_scores(c, p, sm, stage, n, scores);
          if (n == p.k_chunks - 1) {
            softmax_tile(c, p, lane, sm, tile, scores, sinks);
            UNROLL for (int m = 0; m < kChunks; m++) scale_rows(o[m], lane.a);
          }
        }
      }
      n = 0;
      const bool ends = tile + kAttentionPositions >= s.high;
      if (ends || (tile + kAttentionPositions) % kAttentionSplitPositions == 0) {
        end_split(c, p, lane, o, first, ends && !apart, slot, out, sinks, 0);
        first = false;
      }
    }
  }
};

// The scores of a tile of 64 positions and 16 rows in scratch, as the lanes of the four simdgroups hold them.
FN i64 attention_scores_at(CONSTANT const AttentionParams& p, i64 group, int tile, uint tid) {
  return (group * p.score_tiles + tile) * kAttentionTileScores + (i64)(tid >> 5) * 256 + (i64)(tid & 31u);
}

// Computes the scores of one tile of positions. Grid: (as attention, tiles of positions from the first visible split
// on).
template <typename T>
struct AttentionScores {
  enum { kThreads = kAttentionThreads };
  struct Smem {
    T q[2][16 * kChunkPitch];
    T chunk[2][kChunkCells];
  };
  // A thread has piece tid % 8 (of eight elements) of row tid / 8 of q.
  static FN void read_queries(CONSTANT const AttentionParams& p, THREAD const AttentionRow& r, DEVICE const T* q, int n,
                              uint tid, THREAD float* held) {
    UNROLL for (int i = 0; i < 8; i++) {
      const int d = n * kChunkDims + (int)(tid & 7u) * 8 + i;
      held[i] = r.active != 0 && d < p.kv.head_dim ? to_f(q[r.q + d]) : 0.0f;
    }
  }
  static FN void write_queries(CONSTANT const AttentionParams& p, THREAD const float* held, uint tid, TGROUP T* to_q) {
    TGROUP T* cell = to_q + (int)(tid >> 3) * kChunkPitch + (int)(tid & 7u) * 8;
    UNROLL for (int i = 0; i < 8; i++) cell[i] = to<T>(held[i] * p.q_scale);
  }

  static FN void run(Ctx c, CONSTANT const AttentionParams& p, TGROUP Smem& sm, DEVICE float* scratch,
                     DEVICE const T* q, DEVICE const uchar* pages, DEVICE const int* cu, DEVICE const int* contexts,
                     DEVICE const int* tables, DEVICE const int* map) {
    AttentionWork w;
    if (!attention_work(p, (int)c.tgx + p.first, cu, contexts, map, w)) return;
    const AttentionSpan s = attention_span(p, w);
    const int tile = s.first_split * kAttentionSplitPositions + (int)c.tgy * kAttentionPositions;
    if (tile >= s.high || tile + kAttentionPositions <= s.low) return;
    DEVICE const int* table = tables + (i64)w.seq * p.max_blocks;
    const AttentionRow row = attention_row(p, w, w.token, (int)(c.tid >> 3));
    float held[8];
    AttentionWalk next;
    next.tile = tile;
    next.chunk = 0;
    read_queries(p, row, q, 0, c.tid, held);
    attention_next_chunk<T>(next, sm.chunk[0], p, s, table, w.kv_head, pages, c.tid);
    write_queries(p, held, c.tid, sm.q[0]);
    Acc16 scores;
    acc_zero(scores);
    for (int n = 0; n < p.k_chunks; n++) {
      const int stage = n & 1;
      copy_wait<0>();
      TG_BARRIER();
      if (n + 1 < p.k_chunks) {
        attention_next_chunk<T>(next, sm.chunk[1 - stage], p, s, table, w.kv_head, pages, c.tid);
        read_queries(p, row, q, n + 1, c.tid, held);
      }
      UNROLL for (int k = 0; k < 4; k++) {
        if (n * 4 + k < p.k_steps) {
          FragA<T> a;
          FragB<T> b;
          frag_load_a(a, sm.q[stage] + k * 16, kChunkPitch, c.lane);
          frag_load_b_trans(b, sm.chunk[stage] + (int)c.sg * 16 * kChunkPitch + k * 16, kChunkPitch, c.lane);
          acc_mma(scores, a, b);
        }
      }
      if (n + 1 < p.k_chunks) write_queries(p, held, c.tid, sm.q[1 - stage]);
    }
    DEVICE float* to_scores = scratch + attention_scores_at(p, c.tgx, (int)c.tgy, c.tid);
    UNROLL for (int i = 0; i < 8; i++) to_scores[i * 32] = acc_get(scores, i);
  }
};

// The softmax of a split's scores, and 64 dims of its output. Grid: (as attention, splits, chunks of V).
template <typename T>
struct AttentionValues {
  enum { kThreads = kAttentionThreads };
  typedef Attention16<T, 64, 2> Tile;
  typedef typename Tile::Smem Smem;
  static FN void load(CONSTANT const AttentionParams& p, THREAD const AttentionWork& w, THREAD const AttentionSpan& s,
                      TGROUP T* to_chunk, DEVICE const uchar* pages, DEVICE const int* table, int tile, int chunk,
                      uint tid) {
    if (p.kv.type == KvTypeOf<T>::kType) {
      AttentionRows rows;
      attention_rows(rows, p, s, table, w.kv_head, tile, tid);
      attention_load<T>(to_chunk, rows, p, pages, true, chunk * kChunkDims, tid);
    } else {
      attention_convert<T>(to_chunk, p, s, table, w.kv_head, tile, pages, true, chunk * kChunkDims, tid);
    }
    copy_commit();
  }

  static FN void run(Ctx c, CONSTANT const AttentionParams& p, TGROUP Smem& sm, DEVICE T* out,
                     DEVICE const float* scratch, DEVICE const uchar* pages, DEVICE const int* cu,
                     DEVICE const int* contexts, DEVICE const int* tables, DEVICE const float* sinks,
                     DEVICE float* partials, DEVICE const int* map) {
    AttentionWork w;
    if (!attention_work(p, (int)c.tgx + p.first, cu, contexts, map, w)) return;
    AttentionSpan s = attention_span(p, w);
    const int base = s.first_split * kAttentionSplitPositions;
    const bool one = s.splits == 1;
    if (!attention_clip_to_split(s, (int)c.tgy)) return;
    DEVICE float* slot = partials + attention_slot(p, (i64)c.tgx * p.splits + c.tgy);
    DEVICE const int* table = tables + (i64)w.seq * p.max_blocks;
    const int chunk = (int)c.tgz;
    typename Tile::Lane lane;
    Tile::begin_rows(c, p, w, lane);
    Acc16 o[1];
    acc_zero(o[0]);
    int tile = s.low / kAttentionPositions * kAttentionPositions, stage = 0;
    float next[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    // The first round only loads the first tile, so that the code that loads is inlined only once.
    for (tile -= kAttentionPositions; tile < s.high; tile += kAttentionPositions) {
      Acc16 scores;
      UNROLL for (int i = 0; i < 8; i++) acc_set(scores, i, next[i]);
      copy_wait<0>();
      TG_BARRIER();
      const int after = tile + kAttentionPositions;
      if (after < s.high) {
        load(p, w, s, sm.chunk[stage], pages, table, after, chunk, c.tid);
        DEVICE const float* from = scratch + attention_scores_at(p, c.tgx, (after - base) / kAttentionPositions, c.tid);
        UNROLL for (int i = 0; i < 8; i++) next[i] = from[i * 32];
      }
      stage = 1 - stage;
      if (after > s.low) {
        Tile::softmax_tile(c, p, lane, sm, tile, scores, sinks);
        Tile::scale_rows(o[0], lane.a);
        Tile::add_values(c, p, sm, stage, 0, o);
      }
    }
    Tile::end_split(c, p, lane, o, true, one, slot, out, sinks, chunk);
  }
};

// Merges the splits of a row that separate threadgroups wrote to scratch. Grid: (as attention, rows of a slot).
template <typename T>
struct AttentionMerge {
  enum { kThreads = kAttentionThreads, kDims = (kAttentionMaxDim + kThreads - 1) / kThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const AttentionParams& p, TGROUP Smem& sm, DEVICE T* out,
                     DEVICE const float* partials, DEVICE const int* cu, DEVICE const int* contexts,
                     DEVICE const float* sinks, DEVICE const int* map) {
    AttentionWork w;
    if (!attention_work(p, (int)c.tgx + p.first, cu, contexts, map, w)) return;
    const AttentionSpan s = attention_span(p, w);
    const int row = (int)c.tgy;
    const AttentionRow r = attention_row(p, w, w.token, row);
    if (s.splits == 1 || r.active == 0) return;
    float m = 0.0f, l = 0.0f;
    float o[kDims];
    for (int split = 0; split < s.splits; split++) {
      DEVICE const float* slot = partials + attention_slot(p, (i64)c.tgx * p.splits + split);
      AttentionMerged a = {slot[row], 0.0f, 1.0f};
      if (split > 0) a = attention_merge(m, slot[row]);
      const float right_l = slot[p.partial_rows + row];
      l = split > 0 ? fma(l, a.left, right_l * a.right) : right_l;
      m = a.m;
      UNROLL for (int i = 0; i < kDims; i++) {
        const int d = (int)c.tid + i * kThreads;
        if (d < p.kv.v_dim) {
          const float x = slot[2 * p.partial_rows + (i64)row * p.partial_dim + d];
          o[i] = split > 0 ? fma(o[i], a.left, x * a.right) : x;
        }
      }
    }
    const float by = attention_sink(p, sinks, r.head, m, l);
    UNROLL for (int i = 0; i < kDims; i++) {
      const int d = (int)c.tid + i * kThreads;
      if (d < p.kv.v_dim) out[r.out + d] = to<T>((o[i] * by + 0.0f) / l);
    }
  }
};

typedef Attention16<half, 128, 2> Attention16_f16_d128;
typedef Attention16<half, 256, 2> Attention16_f16_d256;
typedef Attention16<half, 576, 1> Attention16_f16_d576;
typedef Attention16<bfloat, 128, 2> Attention16_bf16_d128;
typedef Attention16<bfloat, 256, 2> Attention16_bf16_d256;
typedef Attention16<bfloat, 576, 1> Attention16_bf16_d576;
QUIRE_ATTENTION(attention_f16_d128, Attention16_f16_d128, half)
QUIRE_ATTENTION(attention_f16_d256, Attention16_f16_d256, half)
QUIRE_ATTENTION(attention_f16_d576, Attention16_f16_d576, half)
QUIRE_ATTENTION(attention_bf16_d128, Attention16_bf16_d128, bfloat)
QUIRE_ATTENTION(attention_bf16_d256, Attention16_bf16_d256, bfloat)
QUIRE_ATTENTION(attention_bf16_d576, Attention16_bf16_d576, bfloat)

KERNEL(attention_scores_f16, AttentionScores<half>, AttentionParams, float, const half, const uchar, const int,
       const int, const int, const int)
KERNEL(attention_scores_bf16, AttentionScores<bfloat>, AttentionParams, float, const bfloat, const uchar, const int,
       const int, const int, const int)
KERNEL(attention_values_f16, AttentionValues<half>, AttentionParams, half, const float, const uchar, const int,
       const int, const int, const float, float, const int)
KERNEL(attention_values_bf16, AttentionValues<bfloat>, AttentionParams, bfloat, const float, const uchar, const int,
       const int, const int, const float, float, const int)

KERNEL(attention_merge_f32, AttentionMerge<float>, AttentionParams, float, const float, const int, const int,
       const float, const int)
KERNEL(attention_merge_f16, AttentionMerge<half>, AttentionParams, half, const float, const int, const int, const float,
       const int)
KERNEL(attention_merge_bf16, AttentionMerge<bfloat>, AttentionParams, bfloat, const float, const int, const int,
       const float, const int)
