// SPDX-License-Identifier: Apache-2.0
// Paged attention of one work item, and the merge of splits; the contract is in ops/attention.h.
//
// Rows of an item run in register tiles of up to kTileRows. For each tile of 64 positions, three passes over the row
// tiles: scores into `p` (each K vector is multiplied with all rows of a tile), softmax per row, then o += p * V. K and
// V of 16-bit pages are widened to float first when several row tiles will read them, one after the other into the same
// 64 vectors times head_dim, so that a pass stays in L1; those of 8-bit pages and of pages in rows always are. None of
// these choices changes a bit: a row's chain of operations is its own. Where few rows read 16-bit pages as they are, a
// step waits for memory: the scores of a tile request its V, and the sums over V the next tile's K, each line with the
// line at the same place of what is being read, so that they come from as many pages at a time.
#include "backend/cpu/isa/attention_shared.h"
#include "backend/cpu/isa/attention_widen.h"

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
constexpr int kTileRows = 1;  // with an emulated fma only the arithmetic counts
#elif defined(__SANITIZE_ADDRESS__) || QUIRE_HAS_FEATURE(address_sanitizer)
constexpr int kTileRows = 3;  // the large tiles take clang a minute to compile with its checks in them
#else
constexpr int kTileRows = 6;
#endif
constexpr int kMaxTiles = static_cast<int>(kAttentionRows) / kTileRows;
constexpr int kWidenRows = 13;  // from this many rows on, K and V are widened first
// Floats from one row of q to the next: a constant, so that one register addresses all rows of a tile, and an odd
// number of cache lines, so that rows spread over the sets of L1.
constexpr int64_t kQueryStride = kMaxHeadDim + kLanes;
static_assert(kAttentionRows % kTileRows == 0 && kTileRows <= kLanes);

// Vectors of 16 lanes that a tile of `rows` rows accumulates at once: the registers that operands leave free.
constexpr int tile_vectors(int rows) {
#if defined(__AVX512F__)
  return rows > 0 ? 4 : 0;
#elif defined(__AVX2__) || defined(__aarch64__)
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
#else
  return rows > 0 ? 1 : 0;
#endif
}

// How far the chunks to be requested are from those being read, in bytes; types that wait for nothing ignore it.
using Ahead = const int64_t*;
constexpr int64_t kNoneAhead[kTileGroups] = {};
template <typename T>
constexpr bool kAsksAhead = sizeof(typename T::Type) == 2;
constexpr int kVectorsPerLine = 2;  // of 16-bit elements
template <typename Type>
QUIRE_INLINE void prefetch_at(const Type* now, int64_t distance) {
  __builtin_prefetch(reinterpret_cast<const char*>(now) + distance);
}

// s[r][v*16..] = chain over d of q[r][d] * k[v][d][..]
template <typename T, int kRows, int kVectors>
void scores(const float* q, const typename T::Type* const* k, Ahead ahead, int64_t head_dim, float* s) {
  F32x16 acc[kRows][kVectors];
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) acc[r][v] = zero();
  }
  const typename T::Type* kp[kVectors];
  QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) kp[v] = k[v];
  for (int64_t d = 0; d < head_dim; ++d) {
    F32x16 kv[kVectors];
    QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) kv[v] = T::get(kp[v] + d * kKvGroup);
    if constexpr (kAsksAhead<T>) {
      if (d % kVectorsPerLine == 0) {
        QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) prefetch_at(kp[v] + d * kKvGroup, ahead[v]);
      }
    }
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
void weigh(const float* p, const float* a, const typename T::Type* const* v, Ahead ahead, int64_t v_stride,
           int64_t begin, int64_t end, float* o, int64_t o_stride) {
  F32x16 acc[kRows][kVectors];
  QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
    const F32x16 scale = splat(a[r]);
    QUIRE_UNROLL for (int i = 0; i < kVectors; ++i) acc[r][i] = load(o + r * o_stride + i * kLanes) * scale;
  }
  for (int64_t j = begin; j < end;) {
    const typename T::Type* vp = v[j / kKvGroup] + j % kKvGroup * v_stride;
    const int64_t group_end = (j / kKvGroup + 1) * kKvGroup;
    const int64_t stop = group_end < end ? group_end : end;
    [[maybe_unused]] const int64_t distance = kAsksAhead<T> ? ahead[j / kKvGroup] : 0;
    for (; j < stop; ++j, vp += v_stride) {
      F32x16 vv[kVectors];
      QUIRE_UNROLL for (int i = 0; i < kVectors; ++i) vv[i] = T::get(vp + i * kLanes);
      if constexpr (kAsksAhead<T>) {
        QUIRE_UNROLL for (int i = 0; i < kVectors; i += kVectorsPerLine) prefetch_at(vp + i * kLanes, distance);
      }
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

// The same over any number of vectors, in steps of as many as fit the registers.
template <typename T, int kRows>
void all_scores(const float* q, const typename T::Type* const* k, Ahead ahead, int64_t head_dim, int64_t groups,
                float* s) {
  constexpr int kStep = tile_vectors(kRows);
  int64_t g = 0;
  for (; g + kStep <= groups; g += kStep) scores<T, kRows, kStep>(q, k + g, ahead + g, head_dim, s + g * kLanes);
  const int64_t rest = groups - g;
  if constexpr (kStep > 3) {
    if (rest == 3) return scores<T, kRows, 3>(q, k + g, ahead + g, head_dim, s + g * kLanes);
  }
  if constexpr (kStep > 2) {
    if (rest == 2) return scores<T, kRows, 2>(q, k + g, ahead + g, head_dim, s + g * kLanes);
  }
  if constexpr (kStep > 1) {
    if (rest == 1) return scores<T, kRows, 1>(q, k + g, ahead + g, head_dim, s + g * kLanes);
  }
}

template <typename T, int kRows>
void weigh_all(const float* p, const float* a, const typename T::Type* const* v, Ahead ahead, int64_t v_stride,
               int64_t begin, int64_t end, float* o, int64_t width) {
  constexpr int kStep = tile_vectors(kRows);
  const typename T::Type* at[kTileGroups];
  int64_t d = 0;
  const auto columns = [&](int64_t first) {
    for (int i = 0; i < kTileGroups; ++i) at[i] = v[i] + first;
  };
  for (; d + kStep * kLanes <= width; d += kStep * kLanes) {
    columns(d);
    weigh<T, kRows, kStep>(p, a, at, ahead, v_stride, begin, end, o + d, width);
  }
  const int64_t rest = (width - d) / kLanes;
  if (rest == 0) return;
  columns(d);
  if constexpr (kStep > 3) {
    if (rest == 3) return weigh<T, kRows, 3>(p, a, at, ahead, v_stride, begin, end, o + d, width);
  }
  if constexpr (kStep > 2) {
    if (rest == 2) return weigh<T, kRows, 2>(p, a, at, ahead, v_stride, begin, end, o + d, width);
  }
  if constexpr (kStep > 1) {
    if (rest == 1) return weigh<T, kRows, 1>(p, a, at, ahead, v_stride, begin, end, o + d, width);
  }
}

// Up to kTileRows rows whose operands are stored together.
struct RowTile {
  int rows;
  const int32_t* low;   // [rows] positions [low, high) are those that each row sees; neither decreases
  const int32_t* high;  // [rows]
  const float* q;       // [rows][kQueryStride], times the rule's factor
  float* m;             // [16] running maximum of each row
  float* l;             // [rows][16] running sums
  float* o;             // [rows][width]
  float* p;             // [rows][64]
  // For the current tile of positions:
  int64_t begin[kTileRows];  // the positions that each row sees; begin is 0 without a window
  int64_t end[kTileRows];
  TileRun all;                  // the positions that any row sees
  alignas(64) float a[kLanes];  // the factor of each row's o

  bool sees(int row) const { return begin[row] < end[row]; }
};

void enter_tile(RowTile* t, int64_t tile, bool windowed) {
  for (int r = 0; r < t->rows; ++r) t->end[r] = clamp(t->high[r] - tile, 0, kAttentionTile);
  for (int r = 0; r < t->rows && windowed; ++r) t->begin[r] = clamp(t->low[r] - tile, 0, kAttentionTile);
  t->all = {t->begin[0], t->end[t->rows - 1]};
}

// Softmax of one tile of positions: turns scores into weights in p and updates m and l.
void softmax(RowTile* t) {
  alignas(64) float before[kLanes] = {};
  alignas(64) float after[kLanes] = {};
  const int64_t first_group = t->all.first_group();
  const int64_t groups = t->all.groups();
  const F32x16 nothing = splat(-__builtin_inff());
  for (int r = 0; r < t->rows; ++r) {
    if (!t->sees(r)) continue;  // before = after: a is 1
    const TileRun run = {t->begin[r], t->end[r]};
    float* s = t->p + r * kAttentionTile;
    F32x16 top = splat(t->m[r]);
    for (int64_t g = first_group; g < groups; ++g) {
      const int64_t n = run.end - g * kLanes;
      F32x16 v = load(s + g * kLanes);
      if (n < kLanes) {
        v = select(first_lanes(clamp(n, 0, kLanes)), v, nothing);
        store(s + g * kLanes, v);
      }
      if (run.begin > g * kLanes) {
        v = select(first_lanes(clamp(run.begin - g * kLanes, 0, kLanes)), nothing, v);
        store(s + g * kLanes, v);
      }
      top = max(v, top);
    }
    before[r] = t->m[r];
    after[r] = t->m[r] = reduce_max(top);
  }
  store(t->a, exp2_clamped(load(before) - load(after)));
  for (int r = 0; r < t->rows; ++r) {
    if (!t->sees(r)) continue;
    const TileRun run = {t->begin[r], t->end[r]};
    float* s = t->p + r * kAttentionTile;
    const F32x16 top = splat(t->m[r]);
    F32x16 sum = zero();
    for (int64_t g = first_group; g < groups; ++g) {
      const int64_t n = run.end - g * kLanes;
      F32x16 v = exp2_clamped(load(s + g * kLanes) - top);
      if (n < kLanes) v = select(first_lanes(clamp(n, 0, kLanes)), v, zero());
      if (run.begin > g * kLanes) v = select(first_lanes(clamp(run.begin - g * kLanes, 0, kLanes)), zero(), v);
      store(s + g * kLanes, v);
      sum = sum + v;
    }
    store(t->l + r * kLanes, fma(load(t->l + r * kLanes), splat(t->a[r]), sum));
  }
}

constexpr float kOnes[] = {1, 1, 1, 1, 1, 1};
static_assert(sizeof kOnes / sizeof kOnes[0] >= kTileRows);

// Adds the positions that the rows from kFirst on see and the row before kFirst does not.
template <typename T, int kRows, int kFirst>
void weigh_rest(const RowTile& t, const typename T::Type* const* v, Ahead ahead, int64_t v_stride, int64_t width) {
  if constexpr (kFirst < kRows) {
    if (t.end[kFirst] > t.end[kFirst - 1]) {
      weigh_all<T, kRows - kFirst>(t.p + kFirst * kAttentionTile, kOnes, v, ahead, v_stride, t.end[kFirst - 1],
                                   t.end[kFirst], t.o + kFirst * width, width);
    }
    weigh_rest<T, kRows, kFirst + 1>(t, v, ahead, v_stride, width);
  }
}

// First the positions that all rows see, then step by step those that fewer rows see: no row reads a position that it
// does not see, so that not even an infinite V there reaches the row.
template <typename T, int kRows>
void weigh_tile(const RowTile& t, const typename T::Type* const* v, Ahead ahead, int64_t v_stride, int64_t width) {
  weigh_all<T, kRows>(t.p, t.a, v, ahead, v_stride, 0, t.end[0], t.o, width);
  weigh_rest<T, kRows, 1>(t, v, ahead, v_stride, width);
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

// A tile at the edge of a window, whose rows begin to see at different positions: runs of positions that the same rows
// see, which are neighbours.
template <typename T>
void weigh_runs(const RowTile& t, const typename T::Type* const* v, Ahead ahead, int64_t v_stride, int64_t width) {
  for (int r = 0; r < t.rows; ++r) {
    if (!t.sees(r)) continue;
    float* o = t.o + r * width;
    for (int64_t d = 0; d < width; d += kLanes) store(o + d, load(o + d) * splat(t.a[r]));
  }
  for (int64_t j = t.all.begin; j < t.all.end;) {
    int begin = 0, end = 0;  // rows that see j
    while (t.end[begin] <= j) ++begin;
    while (end < t.rows && t.begin[end] <= j) ++end;
    int64_t stop = t.end[begin];
    if (end < t.rows && t.begin[end] < stop) stop = t.begin[end];
    if (begin < end) {
      with_rows(end - begin, [&](auto n) {
        weigh_all<T, decltype(n)::kValue>(t.p + begin * kAttentionTile, kOnes, v, ahead, v_stride, j, stop,
                                          t.o + begin * width, width);
      });
    }
    j = stop;
  }
}

// An item's rows, with their state in the thread's scratch.
struct Rows {
  RowTile tiles[kMaxTiles];
  int num_tiles;
  int num_rows;
  ScoreRule rule;
  bool windowed;
  int32_t low[kAttentionRows];
  int32_t high[kAttentionRows];
  const float* bias[kAttentionRows];  // of each row's head, at the distance 0; null: none
  int32_t position[kAttentionRows];   // of each row, if there is a bias
  int32_t max_distance;
  int64_t tile;  // the first position of the current tile
  int64_t head_dim;
  KvGeometry pages;
  int64_t width;    // of V, padded
  float* wide;      // [64][head_dim or width]: K, then V, as float
  float* o;         // [rows][width]
  float* l;         // [rows][16]
  float* merged;    // [rows][width]: o of the splits before this one
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
  rows->pages = kv_geometry(args.kv);
  rows->width = rows->pages.width;
  rows->rule = score_rule(args);
  rows->windowed = args.window > 0;
  rows->max_distance = static_cast<int32_t>(args.max_distance);
  rows->num_rows = item.row_end - item.row_begin;
  rows->num_tiles = (rows->num_rows + kTileRows - 1) / kTileRows;
  const int64_t width = rows->width;
  const auto take = [&scratch](int64_t floats) {
    float* p = scratch;
    scratch += floats;
    return p;
  };
  rows->wide = take(kAttentionTile * (rows->head_dim > width ? rows->head_dim : width));
  rows->o = take(kAttentionRows * width);
  rows->merged = take(kAttentionRows * width);
  rows->l = take(kAttentionRows * kLanes);
  rows->merged_m = take(kAttentionRows);
  rows->merged_l = take(kAttentionRows);
  float* q = take(kAttentionRows * kQueryStride);
  float* m = take(kMaxTiles * kLanes);
  float* p = take(kAttentionRows * kAttentionTile);
  for (int i = 0; i < rows->num_tiles; ++i) {
    const int first = i * kTileRows;
    const int count = rows->num_rows - first < kTileRows ? rows->num_rows - first : kTileRows;
    RowTile& t = rows->tiles[i];
    t.rows = count;
    t.low = rows->low + first;
    t.high = rows->high + first;
    t.q = q + first * kQueryStride;
    t.m = m + i * kLanes;
    t.l = rows->l + first * kLanes;
    t.o = rows->o + first * width;
    t.p = p + first * kAttentionTile;
    for (int r = first; r < first + count; ++r) {
      const int64_t row = item.row_begin + r;
      const Seen seen = seen_by_row(args, item.seq, row);
      rows->low[r] = static_cast<int32_t>(seen.begin);
      rows->high[r] = static_cast<int32_t>(seen.end);
      t.begin[r - first] = 0;
      rows->bias[r] = nullptr;
      if (args.distance_bias != nullptr) {
        const int64_t group = args.num_heads / args.kv.num_kv_heads;
        const int64_t head = item.kv_head * group + row % group;
        const auto seq = static_cast<size_t>(item.seq);
        const int64_t queries = args.cu_seqlens_q[seq + 1] - args.cu_seqlens_q[seq];
        rows->bias[r] = args.distance_bias + head * (2 * args.max_distance + 1) + args.max_distance;
        rows->position[r] = static_cast<int32_t>(args.context_lens[seq] - queries + row / group);
      }
      const float* source = head_row(args, args.q, rows->head_dim, item.seq, item.kv_head, row);
      scale_row(source, rows->rule.factor, rows->head_dim, q + r * kQueryStride);
    }
  }
}

// Adds to the scores of a row what their distances give, in units of ln 2.
void add_distance_bias(const Rows& rows, int row, int64_t first_group, int64_t groups, float* s) {
  if (rows.bias[row] == nullptr) return;
  for (int64_t g = first_group; g < groups; ++g) {
    alignas(64) float bias[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const int64_t distance = rows.tile + g * kLanes + i - rows.position[row];
      bias[i] = rows.bias[row][clamp(distance, -rows.max_distance, rows.max_distance)];
    }
    store(s + g * kLanes, fma(load(bias), splat(kLog2E), load(s + g * kLanes)));
  }
}

template <typename T>
void score_rows(Rows* rows, const typename T::Type* const* k, Ahead ahead) {
  for (int i = 0; i < rows->num_tiles; ++i) {
    RowTile& t = rows->tiles[i];
    const int64_t g = t.all.first_group(), groups = t.all.groups() - g;
    if (groups <= 0) continue;
    with_rows(t.rows, [&](auto n) {
      all_scores<T, decltype(n)::kValue>(t.q, k + g, ahead + g, rows->head_dim, groups, t.p + g * kLanes);
    });
    for (int r = 0; r < t.rows; ++r) {
      cap_scores(rows->rule, g, g + groups, t.p + r * kAttentionTile);
      add_distance_bias(*rows, i * kTileRows + r, g, g + groups, t.p + r * kAttentionTile);
    }
    softmax(&t);
  }
}
template <typename T>
void weigh_rows(const Rows& rows, const typename T::Type* const* v, Ahead ahead, int64_t v_stride) {
  for (int i = 0; i < rows.num_tiles; ++i) {
    const RowTile& t = rows.tiles[i];
    if (t.all.first_group() >= t.all.groups()) continue;
    if (t.begin[t.rows - 1] > 0) {
      weigh_runs<T>(t, v, ahead, v_stride, rows.width);
    } else {
      with_rows(t.rows, [&](auto n) { weigh_tile<T, decltype(n)::kValue>(t, v, ahead, v_stride, rows.width); });
    }
  }
}

// One tile of positions, of which the rows see `run`, from widened K and V. Slots that no row sees are undefined;
// their widened values are never read.
template <typename T>
void run_wide_tile(const AttentionArgs& args, const AttentionItem& item, Rows* rows, int64_t begin, TileRun run) {
  const KvGeometry& pages = rows->pages;
  const typename T::Type *k[kTileHalves], *v[kTileHalves];
  TileScales scales;
  if constexpr (kHasScales<T>) find_scales(args, item, begin, run, &scales);
  if (pages.in_rows) {
    find_chunks<typename T::Type, kKvHalf>(args, item, rows->pages, begin, run, k, v);
    widen_k_rows<T>(k, scales, run, rows->head_dim, pages.k_stride, rows->wide);
  } else {
    find_chunks<typename T::Type, kKvGroup>(args, item, rows->pages, begin, run, k, v);
    widen_k<T>(k, scales, run, rows->head_dim, rows->wide);
  }
  const float* wide[kTileGroups];
  for (int64_t g = 0; g < kTileGroups; ++g) wide[g] = rows->wide + g * kKvGroup * rows->head_dim;
  score_rows<StoredF32>(rows, wide, kNoneAhead);
  if (pages.in_rows) {
    widen_v<T, kKvHalf>(v, scales, run, pages.v_stride, rows->width, rows->wide);
  } else {
    widen_v<T, kKvGroup>(v, scales, run, pages.v_stride, rows->width, rows->wide);
  }
  for (int64_t g = 0; g < kTileGroups; ++g) wide[g] = rows->wide + g * kKvGroup * rows->width;
  weigh_rows<StoredF32>(*rows, wide, kNoneAhead, rows->width);
}

// Finds K of the tile after that at `begin`: of this split, of the next one, or of the item that this thread takes next
// if all take turns.
template <typename Type>
void find_next_k(const AttentionArgs& args, const AttentionItem& item, const Rows& rows, int64_t begin,
                 const Type** k) {
  const AttentionItem* next = &item;
  int64_t low = rows.low[0], high = rows.high[rows.num_rows - 1];
  const int64_t split = begin / kAttentionSplit;
  int64_t tile = begin + kAttentionTile;
  if (tile >= clamp(high, 0, (split + 1) * kAttentionSplit)) {
    if (split + 1 < item.split_end) {
      tile = first_tile(split + 1, low);
    } else {
      if (item.soon != nullptr) next = item.soon;
      low = seen_by_row(args, next->seq, next->row_begin).begin;
      high = seen_by_row(args, next->seq, next->row_end - 1).end;
      tile = first_tile(next->split_begin, low);
    }
  }
  const Type* v[kTileGroups];
  find_chunks<Type, kKvGroup>(args, *next, rows.pages, tile, TileRun::of(low, high, tile), k, v);
}

template <typename Type>
void distances(const Type* const* from, const Type* const* to, int64_t* out) {
  for (int i = 0; i < kTileGroups; ++i) {
    out[i] = reinterpret_cast<intptr_t>(to[i]) - reinterpret_cast<intptr_t>(from[i]);
  }
}

template <typename T>
void run_tile(const AttentionArgs& args, const AttentionItem& item, Rows* rows, int64_t begin, TileRun run) {
  rows->tile = begin;
  for (int i = 0; i < rows->num_tiles; ++i) enter_tile(&rows->tiles[i], begin, rows->windowed);
  if constexpr (sizeof(typename T::Type) == 1) {
    run_wide_tile<T>(args, item, rows, begin, run);
  } else {
    const bool direct = sizeof(typename T::Type) == 4 || rows->num_rows < kWidenRows;
    if (rows->pages.in_rows || !direct) return run_wide_tile<T>(args, item, rows, begin, run);
    const typename T::Type *k[kTileGroups], *v[kTileGroups];
    find_chunks<typename T::Type, kKvGroup>(args, item, rows->pages, begin, run, k, v);
    int64_t ahead[kTileGroups] = {};
    if constexpr (kAsksAhead<T>) distances(k, v, ahead);
    score_rows<T>(rows, k, ahead);
    if constexpr (kAsksAhead<T>) {
      find_next_k(args, item, *rows, begin, k);
      distances(v, k, ahead);
    }
    weigh_rows<T>(*rows, v, ahead, rows->pages.v_stride);
  }
}

template <typename T>
void run_item(const AttentionArgs& args, const AttentionItem& item, float* scratch) {
  Rows rows;
  prepare_rows(args, item, scratch, &rows);
  const int64_t low = rows.low[0];
  const int64_t high = rows.high[rows.num_rows - 1];
  const RowSums sums = {rows.num_rows, rows.low, rows.high,   args.kv.v_dim(), rows.width,
                        rows.o,        rows.l,   rows.merged, rows.merged_m,   rows.merged_l};
  for (int64_t split = item.split_begin; split < item.split_end; ++split) {
    for (int64_t i = 0; i < rows.num_rows * rows.width; i += kLanes) store(rows.o + i, zero());
    for (int64_t i = 0; i < rows.num_rows * kLanes; i += kLanes) store(rows.l + i, zero());
    for (int i = 0; i < rows.num_tiles; ++i) store(rows.tiles[i].m, splat(-__builtin_inff()));
    const int64_t end = clamp(high, 0, (split + 1) * kAttentionSplit);
    for (int64_t begin = first_tile(split, low); begin < end; begin += kAttentionTile) {
      run_tile<T>(args, item, &rows, begin, TileRun::of(low, high, begin));
    }
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
    case DType::kI8:
      return run_item<StoredI8>(args, item, scratch);
    case DType::kF8E4M3:
      return run_item<StoredF8E4M3>(args, item, scratch);
    case DType::kF8E5M2:
      return run_item<StoredF8E5M2>(args, item, scratch);
    default:
      return run_item<StoredBF16>(args, item, scratch);
  }
}

void attention_merge(const AttentionArgs& args, const AttentionMerge& merge) {
  const int64_t width = kv_geometry(args.kv).width;
  const int64_t stride = attention_partial_stride(args.kv.v_dim());
  const int64_t rows = merge.row_end - merge.row_begin;
  alignas(64) float o[kMaxHeadDim];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = merge.row_begin + r;
    const Seen seen = seen_by_row(args, merge.seq, row);
    int64_t split = seen.begin / kAttentionSplit;
    const float* partial = merge.partials + ((split - merge.split_first) * rows + r) * stride;
    for (int64_t d = 0; d < width; d += kLanes) store(o + d, load(partial + d));
    float m = partial[width];
    float l = partial[width + 1];
    for (++split; split * kAttentionSplit < seen.end; ++split) {
      partial += rows * stride;
      join(&m, &l, o, partial[width], partial[width + 1], partial, width);
    }
    write_out(args, merge.seq, merge.kv_head, row, m, l, o);
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
