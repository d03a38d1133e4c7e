// SPDX-License-Identifier: Apache-2.0
// Paged attention of one work item, and the merge of splits; the contract is in ops/attention.h.
//
// Rows of an item run in register tiles of up to kTileRows. For each tile of 64 positions, three passes over the row
// tiles: scores into `p` (each K vector meets all rows of a tile), softmax per row, then o += p * V. K and V of 16-bit
// pages are widened to float first when several row tiles will read them, one after the other into the same 64 vectors
// times head_dim, so that a pass stays in L1. None of these choices changes a bit: a row's chain of operations is its
// own. (Prefetching the next tile, at once or spread over this one, was measured and gained nothing: decode with three
// rows a kv head spends its time on widening and arithmetic.)
#include "backend/cpu/kernels/attention_rows.h"

#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define QUIRE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

#if defined(__has_feature)
#define QUIRE_HAS_FEATURE(x) __has_feature(x)
#else
#define QUIRE_HAS_FEATURE(x) 0
#endif
#if defined(QUIRE_EMULATED_FMA)
constexpr int kTileRows = 1;  // arithmetic is all that counts where fma is emulated
#elif defined(__SANITIZE_ADDRESS__) || QUIRE_HAS_FEATURE(address_sanitizer)
constexpr int kTileRows = 3;  // the large tiles take clang a minute to compile with its checks in them
#else
constexpr int kTileRows = 6;
#endif
constexpr int kMaxTiles = static_cast<int>(kAttentionRows) / kTileRows;
constexpr int kWidenRows = 13;  // from so many rows on, K and V are widened first
// Floats from one row of q to the next: a constant, so that one register addresses all rows of a tile, and an odd
// number of cache lines, so that rows spread over the sets of L1.
constexpr int64_t kQueryStride = kMaxHeadDim + kLanes;
static_assert(kAttentionRows % kTileRows == 0 && kTileRows <= kLanes);

// Vectors of 16 lanes that a tile of `rows` rows accumulates at once: what the registers hold beside operands.
constexpr int tile_vectors(int rows) {
#if defined(__AVX512F__)
  return rows > 0 ? 4 : 0;
#elif defined(__AVX2__) || defined(__aarch64__)
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
#else
  return rows > 0 ? 1 : 0;
#endif
}

// s[r][v*16..] = chain over d of q[r][d] * k[v][d][..]
template <typename T, int kRows, int kVectors>
void scores(const float* q, const typename T::Type* const* k, int64_t head_dim, float* s) {
  F32x16 acc[kRows][kVectors];
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) acc[r][v] = zero();
  }
  const typename T::Type* kp[kVectors];
  QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) kp[v] = k[v];
  for (int64_t d = 0; d < head_dim; ++d) {
    F32x16 kv[kVectors];
    QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) kv[v] = T::get(kp[v] + d * kKvGroup);
    QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
      const F32x16 qv = splat(q[r * kQueryStride + d]);
      QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(qv, kv[v], acc[r][v]);
    }
  }
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) store(s + r * kAttentionTile + v * kLanes, acc[r][v]);
  }
}

// o[r][..] = o[r][..] * a[r], then the chain over positions j in [begin, end) of p[r][j] * v[j][..]
template <typename T, int kRows, int kVectors>
void weigh(const float* p, const float* a, const typename T::Type* const* v, int64_t v_stride, int64_t begin,
           int64_t end, float* o, int64_t o_stride) {
  F32x16 acc[kRows][kVectors];
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    const F32x16 scale = splat(a[r]);
    QUIRE_UNROLL for (int i = 0; i < kVectors; ++i) acc[r][i] = load(o + r * o_stride + i * kLanes) * scale;
  }
  for (int64_t j = begin; j < end;) {
    const typename T::Type* vp = v[j / kKvGroup] + j % kKvGroup * v_stride;
    const int64_t group_end = (j / kKvGroup + 1) * kKvGroup;
    const int64_t stop = group_end < end ? group_end : end;
    for (; j < stop; ++j, vp += v_stride) {
      F32x16 vv[kVectors];
      QUIRE_UNROLL for (int i = 0; i < kVectors; ++i) vv[i] = T::get(vp + i * kLanes);
      QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
        const F32x16 pv = splat(p[r * kAttentionTile + j]);
        QUIRE_UNROLL for (int i = 0; i < kVectors; ++i) acc[r][i] = fma(pv, vv[i], acc[r][i]);
      }
    }
  }
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL for (int i = 0; i < kVectors; ++i) store(o + r * o_stride + i * kLanes, acc[r][i]);
  }
}

// The above over any number of vectors, in steps of what the registers hold.
template <typename T, int kRows>
void all_scores(const float* q, const typename T::Type* const* k, int64_t head_dim, int64_t groups, float* s) {
  constexpr int kStep = tile_vectors(kRows);
  int64_t g = 0;
  for (; g + kStep <= groups; g += kStep) scores<T, kRows, kStep>(q, k + g, head_dim, s + g * kLanes);
  const int64_t rest = groups - g;
  if constexpr (kStep > 3) {
    if (rest == 3) return scores<T, kRows, 3>(q, k + g, head_dim, s + g * kLanes);
  }
  if constexpr (kStep > 2) {
    if (rest == 2) return scores<T, kRows, 2>(q, k + g, head_dim, s + g * kLanes);
  }
  if constexpr (kStep > 1) {
    if (rest == 1) return scores<T, kRows, 1>(q, k + g, head_dim, s + g * kLanes);
  }
}

template <typename T, int kRows>
void weigh_all(const float* p, const float* a, const typename T::Type* const* v, int64_t v_stride, int64_t begin,
               int64_t end, float* o) {
  constexpr int kStep = tile_vectors(kRows);
  const typename T::Type* at[kTileGroups];
  int64_t d = 0;
  const auto columns = [&](int64_t first) {
    for (int i = 0; i < kTileGroups; ++i) at[i] = v[i] + first;
  };
  for (; d + kStep * kLanes <= v_stride; d += kStep * kLanes) {
    columns(d);
    weigh<T, kRows, kStep>(p, a, at, v_stride, begin, end, o + d, v_stride);
  }
  const int64_t rest = (v_stride - d) / kLanes;
  if (rest == 0) return;
  columns(d);
  if constexpr (kStep > 3) {
    if (rest == 3) return weigh<T, kRows, 3>(p, a, at, v_stride, begin, end, o + d, v_stride);
  }
  if constexpr (kStep > 2) {
    if (rest == 2) return weigh<T, kRows, 2>(p, a, at, v_stride, begin, end, o + d, v_stride);
  }
  if constexpr (kStep > 1) {
    if (rest == 1) return weigh<T, kRows, 1>(p, a, at, v_stride, begin, end, o + d, v_stride);
  }
}

// Up to kTileRows rows whose operands stand together.
struct RowTile {
  int rows;
  const int32_t* visible;  // [rows] positions that each row sees, not decreasing
  const float* q;          // [rows][kQueryStride], times scale * log2(e)
  float* m;                // [16] running maximum of each row
  float* l;                // [rows][16] running sums
  float* o;                // [rows][v_stride]
  float* p;                // [rows][64]
  // Of the tile of positions at hand:
  int64_t count[kTileRows];     // how many of its positions each row sees
  int64_t groups;               // how many groups of 16 the last row, which sees most, reaches
  alignas(64) float a[kLanes];  // what each row's o shrinks by
};

void enter_tile(RowTile* t, int64_t begin) {
  for (int r = 0; r < t->rows; ++r) t->count[r] = clamp(t->visible[r] - begin, 0, kAttentionTile);
  t->groups = (t->count[t->rows - 1] + kKvGroup - 1) / kKvGroup;
}

// Softmax of one tile of positions: p from scores to weights, m and l brought up to date.
void softmax(RowTile* t) {
  alignas(64) float before[kLanes] = {};
  alignas(64) float after[kLanes] = {};
  const int64_t groups = t->groups;
  for (int r = 0; r < t->rows; ++r) {
    if (t->count[r] <= 0) continue;  // before = after: a is 1
    float* s = t->p + r * kAttentionTile;
    F32x16 top = splat(t->m[r]);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t n = t->count[r] - g * kLanes;
      F32x16 v = load(s + g * kLanes);
      if (n < kLanes) {
        v = select(first_lanes(clamp(n, 0, kLanes)), v, splat(-__builtin_inff()));
        store(s + g * kLanes, v);
      }
      top = max(v, top);
    }
    before[r] = t->m[r];
    after[r] = t->m[r] = reduce_max(top);
  }
  store(t->a, exp2_clamped(load(before) - load(after)));
  for (int r = 0; r < t->rows; ++r) {
    if (t->count[r] <= 0) continue;
    float* s = t->p + r * kAttentionTile;
    const F32x16 top = splat(t->m[r]);
    F32x16 sum = zero();
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t n = t->count[r] - g * kLanes;
      F32x16 v = exp2_clamped(load(s + g * kLanes) - top);
      if (n < kLanes) v = select(first_lanes(clamp(n, 0, kLanes)), v, zero());
      store(s + g * kLanes, v);
      sum = sum + v;
    }
    store(t->l + r * kLanes, fma(load(t->l + r * kLanes), splat(t->a[r]), sum));
  }
}

// Adds what the rows from kFirst on see and the row before kFirst does not.
template <typename T, int kRows, int kFirst>
void weigh_rest(const RowTile& t, const typename T::Type* const* v, int64_t v_stride) {
  if constexpr (kFirst < kRows) {
    const float ones[] = {1, 1, 1, 1, 1, 1};
    if (t.count[kFirst] > t.count[kFirst - 1]) {
      weigh_all<T, kRows - kFirst>(t.p + kFirst * kAttentionTile, ones, v, v_stride, t.count[kFirst - 1],
                                   t.count[kFirst], t.o + kFirst * v_stride);
    }
    weigh_rest<T, kRows, kFirst + 1>(t, v, v_stride);
  }
}

// What all rows see, together; then step by step what fewer rows see: a position that a row does not see is not read
// for it, so that not even an infinite V there reaches the row.
template <typename T, int kRows>
void weigh_tile(const RowTile& t, const typename T::Type* const* v, int64_t v_stride) {
  weigh_all<T, kRows>(t.p, t.a, v, v_stride, 0, t.count[0], t.o);
  weigh_rest<T, kRows, 1>(t, v, v_stride);
}

template <int kRows>
struct RowCount {
  static constexpr int kValue = kRows;
};
// Calls f with the number of rows, 1 to kTileRows, as a constant.
template <int kRows = kTileRows, typename F>
QUIRE_INLINE void with_rows([[maybe_unused]] int rows, F f) {
  if constexpr (kRows == 1) {
    f(RowCount<1>());
  } else if (rows == kRows) {
    f(RowCount<kRows>());
  } else {
    with_rows<kRows - 1>(rows, f);
  }
}

// An item's rows, with their state in the thread's scratch.
struct Rows {
  RowTile tiles[kMaxTiles];
  int num_tiles;
  int num_rows;
  int32_t visible[kAttentionRows];
  int64_t head_dim;
  int64_t v_stride;
  float* wide;      // [64][v_stride]: K, then V, as float
  float* o;         // [rows][v_stride]
  float* l;         // [rows][16]
  float* merged;    // [rows][v_stride]: o of the splits before this one
  float* merged_m;  // [rows]
  float* merged_l;  // [rows]
};

void scale_row(const float* x, float factor, int64_t n, float* out) {
  const F32x16 f = splat(factor);
  map_row(
      x, out, n, [f](F32x16 v) __attribute__((always_inline)) { return v * f; });
}

void prepare_rows(const AttentionArgs& args, const AttentionItem& item, float* scratch, Rows* rows) {
  rows->head_dim = args.kv.head_dim;
  rows->v_stride = kv_geometry(args.kv).v_stride;
  rows->num_rows = item.row_end - item.row_begin;
  rows->num_tiles = (rows->num_rows + kTileRows - 1) / kTileRows;
  const int64_t padded = rows->v_stride;
  const auto take = [&scratch](int64_t floats) {
    float* p = scratch;
    scratch += floats;
    return p;
  };
  rows->wide = take(kAttentionTile * padded);
  rows->o = take(kAttentionRows * padded);
  rows->merged = take(kAttentionRows * padded);
  rows->l = take(kAttentionRows * kLanes);
  rows->merged_m = take(kAttentionRows);
  rows->merged_l = take(kAttentionRows);
  float* q = take(kAttentionRows * kQueryStride);
  float* m = take(kMaxTiles * kLanes);
  float* p = take(kAttentionRows * kAttentionTile);
  const float factor = args.scale * kLog2E;
  for (int i = 0; i < rows->num_tiles; ++i) {
    const int first = i * kTileRows;
    const int count = rows->num_rows - first < kTileRows ? rows->num_rows - first : kTileRows;
    RowTile& t = rows->tiles[i];
    t.rows = count;
    t.visible = rows->visible + first;
    t.q = q + first * kQueryStride;
    t.m = m + i * kLanes;
    t.l = rows->l + first * kLanes;
    t.o = rows->o + first * padded;
    t.p = p + first * kAttentionTile;
    for (int r = 0; r < count; ++r) {
      const int64_t row = item.row_begin + first + r;
      rows->visible[first + r] = static_cast<int32_t>(visible_to(args, item.seq, row));
      const float* source = head_row(args, args.q, item.seq, item.kv_head, row);
      scale_row(source, factor, rows->head_dim, q + (first + r) * kQueryStride);
    }
  }
}

template <typename T>
void widen(const typename T::Type* const* from, int64_t groups, int64_t count, float* to, const float** wide) {
  for (int64_t g = 0; g < kTileGroups; ++g) {
    wide[g] = to + (g < groups ? g : 0) * count;
    if (g >= groups) continue;
    for (int64_t i = 0; i < count; i += kLanes) store(to + g * count + i, T::get(from[g] + i));
  }
}

template <typename T>
void score_rows(Rows* rows, const typename T::Type* const* k) {
  for (int i = 0; i < rows->num_tiles; ++i) {
    RowTile& t = rows->tiles[i];
    if (t.groups == 0) continue;
    with_rows(t.rows, [&](auto n) { all_scores<T, decltype(n)::kValue>(t.q, k, rows->head_dim, t.groups, t.p); });
    softmax(&t);
  }
}
template <typename T>
void weigh_rows(const Rows& rows, const typename T::Type* const* v) {
  for (int i = 0; i < rows.num_tiles; ++i) {
    const RowTile& t = rows.tiles[i];
    if (t.groups == 0) continue;
    with_rows(t.rows, [&](auto n) { weigh_tile<T, decltype(n)::kValue>(t, v, rows.v_stride); });
  }
}

// One tile of positions for all rows of the item, of which the last one sees `seen` positions.
template <typename T>
void run_tile(const AttentionArgs& args, const AttentionItem& item, Rows* rows, int64_t begin, int64_t seen) {
  for (int i = 0; i < rows->num_tiles; ++i) enter_tile(&rows->tiles[i], begin);
  const int64_t groups = (clamp(seen - begin, 0, kAttentionTile) + kKvGroup - 1) / kKvGroup;
  const typename T::Type *k[kTileGroups], *v[kTileGroups];
  find_groups<T>(args, item, begin, groups, k, v);
  if (sizeof(typename T::Type) == 4 || rows->num_rows < kWidenRows) {
    score_rows<T>(rows, k);
    weigh_rows<T>(*rows, v);
    return;
  }
  const float* wide[kTileGroups];
  widen<T>(k, groups, kKvGroup * rows->head_dim, rows->wide, wide);
  score_rows<StoredF32>(rows, wide);
  // Slots past the context may hold anything; they are widened and never read.
  widen<T>(v, groups, kKvGroup * rows->v_stride, rows->wide, wide);
  weigh_rows<StoredF32>(*rows, wide);
}

template <typename T>
void run_item(const AttentionArgs& args, const AttentionItem& item, float* scratch) {
  Rows rows;
  prepare_rows(args, item, scratch, &rows);
  const int64_t seen = rows.visible[rows.num_rows - 1];
  for (int64_t split = item.split_begin; split < item.split_end; ++split) {
    for (int64_t i = 0; i < rows.num_rows * rows.v_stride; i += kLanes) store(rows.o + i, zero());
    for (int64_t i = 0; i < rows.num_rows * kLanes; i += kLanes) store(rows.l + i, zero());
    for (int i = 0; i < rows.num_tiles; ++i) store(rows.tiles[i].m, splat(-__builtin_inff()));
    const int64_t end = clamp(seen, 0, (split + 1) * kAttentionSplit);
    for (int64_t begin = split * kAttentionSplit; begin < end; begin += kAttentionTile) {
      run_tile<T>(args, item, &rows, begin, seen);
    }
    const RowSums sums = {rows.num_rows, rows.visible, rows.head_dim, rows.v_stride, rows.o,
                          rows.l,        rows.merged,  rows.merged_m, rows.merged_l};
    end_split(args, item, sums, split, [&](int r) { return rows.tiles[r / kTileRows].m[r % kTileRows]; });
  }
}

}  // namespace

void attention_run(const AttentionArgs& args, const AttentionItem& item, float* scratch) {
  switch (args.kv.dtype) {
    case DType::kF32:
      return run_item<StoredF32>(args, item, scratch);
    case DType::kF16:
      return run_item<StoredF16>(args, item, scratch);
    default:
      return run_item<StoredBF16>(args, item, scratch);
  }
}

void attention_merge(const AttentionArgs& args, const AttentionMerge& merge) {
  const int64_t v_stride = kv_geometry(args.kv).v_stride;
  const int64_t stride = attention_partial_stride(args.kv.head_dim);
  const int64_t rows = merge.row_end - merge.row_begin;
  alignas(64) float o[kMaxHeadDim];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = merge.row_begin + r;
    const int64_t visible = visible_to(args, merge.seq, row);
    const float* partial = merge.partials + r * stride;
    for (int64_t d = 0; d < v_stride; d += kLanes) store(o + d, load(partial + d));
    float m = partial[v_stride];
    float l = partial[v_stride + 1];
    for (int64_t split = 1; split * kAttentionSplit < visible; ++split) {
      partial += rows * stride;
      join(&m, &l, o, partial[v_stride], partial[v_stride + 1], partial, v_stride);
    }
    write_out(o, l, args.kv.head_dim, head_row(args, args.out, merge.seq, merge.kv_head, row));
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
