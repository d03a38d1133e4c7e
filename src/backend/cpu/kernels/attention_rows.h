// SPDX-License-Identifier: Apache-2.0
// What attention kernels share: where rows stand, and how splits end and join; the contract is in ops/attention.h.
#pragma once

#include "backend/cpu/attention_layout.h"
#include "backend/cpu/attention_plan.h"
#include "backend/cpu/kernels/declare.h"
#include "backend/cpu/kernels/rows.h"
#include "backend/cpu/simd_math.h"

namespace quire::cpu::QUIRE_ISA_NS {

constexpr float kLog2E = 0x1.715476p+0f;
constexpr int kTileGroups = static_cast<int>(kAttentionTile / kKvGroup);

QUIRE_INLINE int64_t clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}
QUIRE_INLINE int64_t group_size(const AttentionArgs& args) {
  return args.num_heads / args.kv.num_kv_heads;
}
// Where row `row` of a sequence and kv head starts in q or out.
QUIRE_INLINE float* head_row(const AttentionArgs& args, const Tensor& t, int64_t seq, int64_t kv_head, int64_t row) {
  const int64_t group = group_size(args);
  const int64_t head = kv_head * group + row % group;
  return row_of(t, args.cu_seqlens_q.data()[seq] + row / group) + head * args.kv.head_dim;
}
QUIRE_INLINE int64_t visible_to(const AttentionArgs& args, int64_t seq, int64_t row) {
  const int32_t* cu = args.cu_seqlens_q.data() + seq;
  return visible_positions(args.causal, args.context_lens.data()[seq], cu[1] - cu[0], row / group_size(args));
}

// Finds the groups of one tile of positions in the pages; those past the context repeat the first and are not used.
template <typename T>
[[maybe_unused]] static void find_groups(const AttentionArgs& args, const AttentionItem& item, int64_t begin,
                                         int64_t groups, const typename T::Type** k, const typename T::Type** v) {
  const KvLayer& kv = args.kv;
  const KvGeometry g = kv_geometry(kv);
  const int32_t* table = args.block_tables.data() + item.seq * args.max_blocks;
  for (int64_t i = 0; i < kTileGroups; ++i) {
    const int64_t position = begin + (i < groups ? i : 0) * kKvGroup;
    const int64_t inside = position % kv.block_size;
    const char* head = static_cast<const char*>(kv.pages) + table[position / kv.block_size] * kv.page_stride +
                       item.kv_head * (g.k_bytes + g.v_bytes);
    k[i] = reinterpret_cast<const typename T::Type*>(head) + inside * kv.head_dim;
    v[i] = reinterpret_cast<const typename T::Type*>(head + g.k_bytes) + inside * g.v_stride;
  }
}

// acc = acc joined with the next split (m, l, o).
QUIRE_INLINE void join(float* acc_m, float* acc_l, float* acc_o, float m, float l, const float* o, int64_t v_stride) {
  const float top = max1(*acc_m, m);
  const F32x16 a = exp2_clamped(splat(*acc_m - top));
  const F32x16 b = exp2_clamped(splat(m - top));
  for (int64_t d = 0; d < v_stride; d += kLanes) store(acc_o + d, fma(load(acc_o + d), a, load(o + d) * b));
  *acc_l = fma1(*acc_l, first(a), l * first(b));
  *acc_m = top;
}

[[maybe_unused]] static void write_out(const float* o, float l, int64_t head_dim, float* out) {
  const F32x16 sum = splat(l);
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
    store_some(out + d, load(o + d) / sum, n);
  }
}

// What an item's rows have gathered.
struct RowSums {
  int num_rows;
  const int32_t* visible;  // [rows]
  int64_t head_dim;
  int64_t v_stride;
  const float* o;   // [rows][v_stride]: of the split at hand
  const float* l;   // [rows][16]
  float* merged;    // [rows][v_stride]: o of the splits before it
  float* merged_m;  // [rows]
  float* merged_l;  // [rows]
};

// Ends a split: its (m, l, o) goes to the partials, or is joined with the splits before it. m_of(row) is the row's m.
template <typename M>
[[maybe_unused]] static void end_split(const AttentionArgs& args, const AttentionItem& item, const RowSums& rows,
                                       int64_t split, const M& m_of) {
  const int64_t v_stride = rows.v_stride;
  for (int r = 0; r < rows.num_rows; ++r) {
    if (rows.visible[r] <= split * kAttentionSplit) continue;
    const float m = m_of(r);
    const float l = reduce_add(load(rows.l + r * kLanes));
    const float* o = rows.o + r * v_stride;
    if (item.partials != nullptr) {
      float* partial = item.partials + (split * rows.num_rows + r) * attention_partial_stride(rows.head_dim);
      for (int64_t d = 0; d < v_stride; d += kLanes) store(partial + d, load(o + d));
      partial[v_stride] = m;
      partial[v_stride + 1] = l;
      continue;
    }
    const bool last = rows.visible[r] <= (split + 1) * kAttentionSplit;
    float* merged = rows.merged + r * v_stride;
    if (split > 0) {
      join(&rows.merged_m[r], &rows.merged_l[r], merged, m, l, o, v_stride);
    } else if (!last) {
      for (int64_t d = 0; d < v_stride; d += kLanes) store(merged + d, load(o + d));
      rows.merged_m[r] = m;
      rows.merged_l[r] = l;
    }
    if (last) {
      float* out = head_row(args, args.out, item.seq, item.kv_head, item.row_begin + r);
      write_out(split > 0 ? merged : o, split > 0 ? rows.merged_l[r] : l, rows.head_dim, out);
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
