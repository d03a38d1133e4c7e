// SPDX-License-Identifier: Apache-2.0
// Shared by the attention kernels: the place of rows in q and out, the positions they see, the soft cap, and the end
// and merge of splits; the contract is in ops/attention.h.
#pragma once

#include "backend/cpu/attention_layout.h"
#include "backend/cpu/attention_plan.h"
#include "backend/cpu/isa/declare.h"
#include "backend/cpu/isa/row_loops.h"
#include "backend/cpu/simd_math.h"
#include "base/math.h"

namespace quire::cpu::QUIRE_ISA_NS {

constexpr float kLog2E = 0x1.715476p+0f;
constexpr int kTileGroups = static_cast<int>(kAttentionTile / kKvGroup);
constexpr int kTileHalves = static_cast<int>(kAttentionTile / kKvHalf);

QUIRE_INLINE int64_t clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}
QUIRE_INLINE int64_t group_size(const AttentionArgs& args) {
  return args.num_heads / args.kv.num_kv_heads;
}
QUIRE_INLINE int64_t head_of(const AttentionArgs& args, int64_t kv_head, int64_t row) {
  const int64_t group = group_size(args);
  return kv_head * group + row % group;
}
// The start of row `row` of a sequence and kv head in q or out, whose heads have `dim` elements.
QUIRE_INLINE float* head_row(const AttentionArgs& args, const Tensor& t, int64_t dim, int64_t seq, int64_t kv_head,
                             int64_t row) {
  return row_of(t, args.cu_seqlens_q.data()[seq] + row / group_size(args)) + head_of(args, kv_head, row) * dim;
}
QUIRE_INLINE Seen seen_by_row(const AttentionArgs& args, int64_t seq, int64_t row) {
  const int32_t* cu = args.cu_seqlens_q.data() + seq;
  return seen_by(args, args.context_lens.data()[seq], cu[1] - cu[0], row / group_size(args));
}

// A run of a tile's positions, [begin, end) from the tile's first.
struct TileRun {
  int64_t begin, end;
  QUIRE_INLINE TileRun of(int64_t low, int64_t high, int64_t tile) {
    return {clamp(low - tile, 0, kAttentionTile), clamp(high - tile, 0, kAttentionTile)};
  }
  int64_t first_group() const { return begin / kKvGroup; }
  int64_t groups() const { return ceil_div(end, kKvGroup); }  // one past the last
};

// The first tile of a split with a position from `low` on.
QUIRE_INLINE int64_t first_tile(int64_t split, int64_t low) {
  const int64_t begin = split * kAttentionSplit;
  return begin > low ? begin : low / kAttentionTile * kAttentionTile;
}

// Finds K and V of a tile's positions in the pages, by groups of 16 (kChunk: 8 for pages in rows). Chunks that hold no
// position of `run` repeat one that does and are not used: a table may hold anything there.
template <typename Type, int64_t kChunk>
[[maybe_unused]] static void find_chunks(const AttentionArgs& args, const AttentionItem& item, const KvGeometry& g,
                                         int64_t tile, TileRun run, const Type** k, const Type** v) {
  const KvLayer& kv = args.kv;
  const int64_t k_row = kChunk == kKvGroup ? kv.head_dim : g.k_stride;
  const int32_t* table = args.block_tables.data() + item.seq * args.max_blocks;
  const int64_t first = run.begin / kChunk, last = (run.end - 1) / kChunk;
  const int64_t position = tile + first * kChunk;
  int64_t block = position / kv.block_size;
  int64_t inside = position % kv.block_size;
  for (int64_t i = 0; i < kAttentionTile / kChunk; ++i) {
    if (i > first && i <= last) inside += kChunk;
    if (inside == kv.block_size) {
      inside = 0;
      ++block;
    }
    const char* head = static_cast<const char*>(kv.pages) + table[block] * kv.page_stride + item.kv_head * g.head_bytes;
    k[i] = reinterpret_cast<const Type*>(head) + inside * k_row;
    v[i] = kv.v_in_k ? k[i] : reinterpret_cast<const Type*>(head + g.k_bytes) + inside * g.v_stride;
  }
}

// The factors between the product and the softmax.
struct ScoreRule {
  float factor;  // of q
  float cap;     // in units of ln 2; 0: none
  bool plain() const { return cap == 0; }
};
QUIRE_INLINE ScoreRule score_rule(const AttentionArgs& args) {
  const bool capped = args.soft_cap > 0;
  return {capped ? args.scale / args.soft_cap : args.scale * kLog2E, capped ? args.soft_cap * kLog2E : 0};
}

// Applies the soft cap to a row's scores of groups [begin, end) of a tile, if there is one.
[[maybe_unused]] static void cap_scores(const ScoreRule& rule, int64_t begin, int64_t end, float* s) {
  if (rule.plain()) return;
  for (int64_t g = begin; g < end; ++g) store(s + g * kLanes, splat(rule.cap) * tanh(load(s + g * kLanes)));
}

// Merges the next split (m, l, o) into acc.
QUIRE_INLINE void join(float* acc_m, float* acc_l, float* acc_o, float m, float l, const float* o, int64_t width) {
  const float top = max1(*acc_m, m);
  const F32x16 a = exp2_clamped(splat(*acc_m - top));
  const F32x16 b = exp2_clamped(splat(m - top));
  for (int64_t d = 0; d < width; d += kLanes) store(acc_o + d, fma(load(acc_o + d), a, load(o + d) * b));
  *acc_l = fma1(*acc_l, first(a), l * first(b));
  *acc_m = top;
}

// Ends a row: merges the sink of its head, if there is one, and writes `out`.
[[maybe_unused]] static void write_out(const AttentionArgs& args, int64_t seq, int64_t kv_head, int64_t row, float m,
                                       float l, const float* o) {
  const int64_t dim = args.kv.v_dim();
  float* out = head_row(args, args.out, dim, seq, kv_head, row);
  F32x16 a = splat(1.0f);
  if (args.sinks != nullptr) {
    const float sink = args.sinks[head_of(args, kv_head, row)] * kLog2E;
    const float top = max1(m, sink);
    a = exp2_clamped(splat(m - top));
    l = fma1(l, first(a), first(exp2_clamped(splat(sink - top))));
  }
  const F32x16 sum = splat(l);
  for (int64_t d = 0; d < dim; d += kLanes) {
    const int64_t n = dim - d < kLanes ? dim - d : kLanes;
    store_some(out + d, load(o + d) * a / sum, n);
  }
}

// The running sums of an item's rows.
struct RowSums {
  int num_rows;
  const int32_t* low;  // [rows]: positions [low, high) are seen
  const int32_t* high;
  int64_t v_dim;
  int64_t width;
  const float* o;   // [rows][width]: of the current split
  const float* l;   // [rows][16]
  float* merged;    // [rows][width]: o of the splits before it
  float* merged_m;  // [rows]
  float* merged_l;  // [rows]
};

// Ends a split: writes its (m, l, o) to the partials, or merges it with the splits before it. m_of(row) is the row's m.
template <typename M>
[[maybe_unused]] static void end_split(const AttentionArgs& args, const AttentionItem& item, const RowSums& rows,
                                       int64_t split, const M& m_of) {
  const int64_t width = rows.width;
  for (int r = 0; r < rows.num_rows; ++r) {
    if (rows.high[r] <= split * kAttentionSplit || rows.low[r] >= (split + 1) * kAttentionSplit) continue;
    const float m = m_of(r);
    const float l = reduce_add(load(rows.l + r * kLanes));
    const float* o = rows.o + r * width;
    if (item.partials != nullptr) {
      float* partial =
          item.partials + ((split - item.split_first) * rows.num_rows + r) * attention_partial_stride(rows.v_dim);
      for (int64_t d = 0; d < width; d += kLanes) store(partial + d, load(o + d));
      partial[width] = m;
      partial[width + 1] = l;
      continue;
    }
    const bool first = rows.low[r] >= split * kAttentionSplit;
    const bool last = rows.high[r] <= (split + 1) * kAttentionSplit;
    const int64_t row = item.row_begin + r;
    if (first && last) {
      write_out(args, item.seq, item.kv_head, row, m, l, o);
      continue;
    }
    float* merged = rows.merged + r * width;
    if (first) {
      for (int64_t d = 0; d < width; d += kLanes) store(merged + d, load(o + d));
      rows.merged_m[r] = m;
      rows.merged_l[r] = l;
      continue;
    }
    join(&rows.merged_m[r], &rows.merged_l[r], merged, m, l, o, width);
    if (last) write_out(args, item.seq, item.kv_head, row, rows.merged_m[r], rows.merged_l[r], merged);
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
