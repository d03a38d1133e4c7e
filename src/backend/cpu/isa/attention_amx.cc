// SPDX-License-Identifier: Apache-2.0
// Paged attention of one work item with AMX and pages of BF16 or bytes; ops/attention.h has the contract (rounded
// form).
//
// For each tile of 64 positions K and V are laid out as second operands once for all rows of the item. Pages in pairs
// (attention_layout.h) store K in this layout already, and V except for the gaps between pages; K of pages in rows is
// transposed, and codes of one byte become bf16. Then, sixteen rows at a time: scores from tiles, softmax in registers,
// weights as bf16, and their products with V, which are added to o in float. Tiles are always whole: a position that a
// row does not see has weight 0, and V there is 0 or finite.
#include "backend/cpu/isa/attention_codes_amx.h"
#include "backend/cpu/isa/attention_few_amx.h"
#include "backend/cpu/isa/attention_shared.h"
#include "backend/cpu/isa/attention_widen.h"
#include "backend/cpu/isa/tiles_amx.h"

namespace quire::cpu::avx512 {
void attention_run(const AttentionArgs& args, const AttentionItem& item, float* scratch);
void reshape_and_cache(const ReshapeAndCacheArgs& args, int64_t row_begin, int64_t row_end);
}  // namespace quire::cpu::avx512

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

constexpr int kTileRows = 16;
constexpr int kFewRows = static_cast<int>(kAttentionFewRows);
constexpr int kMaxTiles = static_cast<int>(kAttentionRowsMost) / kTileRows;
constexpr int64_t kStep = 32;            // k of one product
constexpr int64_t kOperandBytes = 1024;  // of one tile
constexpr int64_t kPositionSteps = kAttentionTile / kStep;
static_assert(kFewRows <= kLanes);

alignas(64) constexpr uint16_t kInterleave[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

// Sixteen elements of two rows as pairs of bf16.
template <typename T>
QUIRE_INLINE __m512i pair_rows(const typename T::Type* even, const typename T::Type* odd) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd));
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), both);
}

// The even row alone, with zeros for the odd one.
template <typename T>
QUIRE_INLINE __m512i pair_with_zero(const typename T::Type* even) {
  const __m512i both = pair_rows<T>(even, even);
  return _mm512_and_si512(both, _mm512_set1_epi32(0xffff));
}

// The layout of K and V in pages; kChunk consecutive positions are stored together.
struct Bf16Pages : StoredBF16 {
  static constexpr bool kInPairs = false;
  static constexpr bool kCodes = false;
  static constexpr bool kScaled = false;
  static constexpr int64_t kChunk = kKvGroup;
};
struct PairedPages : Bf16Pages {
  static constexpr bool kInPairs = true;
};
struct RowPages : Bf16Pages {
  static constexpr int64_t kChunk = kKvHalf;
};
// Codes of one byte: int8 with a scale for each position, or fp8.
template <bool kInt8, bool kInRows>
struct CodePages {
  using Type = uint8_t;
  static constexpr bool kInPairs = false;
  static constexpr bool kCodes = true;
  static constexpr bool kScaled = kInt8;
  static constexpr int64_t kChunk = kInRows ? kKvHalf : kKvGroup;
};

// An item's rows, with their state in the thread's scratch.
struct Rows {
  int num_rows;
  int num_tiles;
  ScoreRule rule;
  int32_t low[kAttentionRowsMost];  // positions [low, high) are those that each row sees
  int32_t high[kAttentionRowsMost];
  bool windowed;                      // the window of a row may begin inside a tile
  int64_t begin[kAttentionRowsMost];  // positions [begin, end) of the tile at hand are those that each row sees;
  int64_t end[kAttentionRowsMost];    // the first of them are all 0 but for windows
  int64_t head_dim;
  KvGeometry pages;
  int64_t width;                     // of V, padded
  int64_t steps;                     // of 32 elements of a head
  uint8_t* k;                        // [step][4 groups of positions]: second operands
  const CodeTable* codes;            // of pages of bytes
  TileScales scales;                 // of int8 pages: those of the current tile
  const uint8_t* k_at[kTileGroups];  // those of the current tile: the first of a group,
  int64_t k_step;                    // and bytes from one step to the next
  uint8_t* v;                        // [2 steps of positions][width / 16]
  uint8_t* q;                        // [tile][step]: first operands
  uint8_t* p;                        // [2 steps of positions]: a tile's weights
  float* s;                          // [16][64]: a tile's scores
  bool few;                          // attention_few_amx.h serves them
  float* q_few;                      // [steps][rows][32]: q in float, rounded, where there are few rows
  float* add;                        // [16][64] or [kFewRows][kMaxHeadDim]: a tile's products with V
  float* o;
  float* l;
  float* m;
  float* merged;
  float* merged_m;
  float* merged_l;

  bool sees(int row) const { return begin[row] < end[row]; }
  void enter(int64_t tile) {
    for (int r = 0; r < num_rows; ++r) end[r] = clamp(high[r] - tile, 0, kAttentionTile);
    if (!windowed) return;
    for (int r = 0; r < num_rows; ++r) begin[r] = clamp(low[r] - tile, 0, kAttentionTile);
  }
};

// 32 bf16 as floats.
QUIRE_INLINE void widen_row(const uint8_t* from, float* to) {
  for (int h = 0; h < 2; ++h) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * h));
    _mm512_storeu_si512(to + h * kLanes, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
}

void prepare_rows(const AttentionArgs& args, const AttentionItem& item, bool in_pairs, float* scratch, Rows* rows) {
  rows->head_dim = args.kv.head_dim;
  rows->pages = kv_geometry(args.kv);
  rows->width = rows->pages.width;
  rows->rule = score_rule(args);
  rows->windowed = args.window > 0;
  rows->steps = (rows->head_dim + kStep - 1) / kStep;
  rows->num_rows = item.row_end - item.row_begin;
  rows->num_tiles = (rows->num_rows + kTileRows - 1) / kTileRows;
  const auto take = [&scratch](int64_t floats) {
    float* p = scratch;
    scratch += floats;
    return p;
  };
  const auto operands = [&take](int64_t tiles) { return reinterpret_cast<uint8_t*>(take(tiles * kOperandBytes / 4)); };
  const int64_t padded = rows->width;
  rows->k = operands(rows->steps * kTileGroups);
  rows->v = operands(kPositionSteps * padded / kLanes);
  rows->p = operands(kPositionSteps);
  rows->q = operands(rows->steps * kMaxTiles);
  rows->s = take(kTileRows * kAttentionTile);
  rows->add = take(kFewRows * kMaxHeadDim);
  rows->o = take(kAttentionRowsMost * padded);
  rows->merged = take(kAttentionRowsMost * padded);
  rows->l = take(kAttentionRowsMost * kLanes);
  rows->m = take(kAttentionRowsMost);
  rows->merged_m = take(kAttentionRowsMost);
  rows->merged_l = take(kAttentionRowsMost);
  rows->q_few = take(kFewRows * rows->steps * kStep);
  const Seen first = seen_by_row(args, item.seq, item.row_begin), last = seen_by_row(args, item.seq, item.row_end - 1);
  rows->few = in_pairs && rows->num_rows <= kFewRows && first.begin == last.begin && first.end == last.end;
  const __m512 factor = _mm512_set1_ps(rows->rule.factor);
  for (int r = 0; r < (rows->few ? rows->num_rows : rows->num_tiles * kTileRows); ++r) {
    uint8_t* to = rows->q + (r / kTileRows * rows->steps) * kOperandBytes + r % kTileRows * 64;
    const float* from = nullptr;
    if (r < rows->num_rows) {
      const int64_t row = item.row_begin + r;
      const Seen seen = seen_by_row(args, item.seq, row);
      rows->low[r] = static_cast<int32_t>(seen.begin);
      rows->high[r] = static_cast<int32_t>(seen.end);
      rows->begin[r] = 0;
      from = head_row(args, args.q, rows->head_dim, item.seq, item.kv_head, row);
    }
    for (int64_t step = 0; step < rows->steps; ++step, to += kOperandBytes) {
      __m512 half[2];
      for (int h = 0; h < 2; ++h) {
        const int64_t first = step * kStep + h * kLanes;
        const int64_t n = from == nullptr ? 0 : clamp(rows->head_dim - first, 0, kLanes);
        const auto mask = static_cast<__mmask16>((1u << n) - 1);
        half[h] = _mm512_mul_ps(n == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, from + first), factor);
      }
      _mm512_store_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(half[1], half[0])));
      if (rows->few) widen_row(to, rows->q_few + (step * rows->num_rows + r) * kStep);
    }
  }
}

// Sixteen positions of a step's 32 elements, transposed: pairs of elements, sixteen positions.
void turn_k(const uint16_t* const* k, int64_t stride, int64_t elements, uint8_t* to) {
  const auto mask = static_cast<__mmask16>((1u << elements / 2) - 1);
  F32x16 x[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    x[i].v = _mm512_castsi512_ps(_mm512_maskz_loadu_epi32(mask, k[i / kKvHalf] + i % kKvHalf * stride));
  }
  transpose(x);
  for (int i = 0; i < kLanes; ++i) store(reinterpret_cast<float*>(to + 64 * i), x[i]);
}

// K of the groups of positions in `run` as second operands: pairs of elements of a head, sixteen positions.
template <typename T>
void lay_out_k_bf16(const Rows& rows, const uint16_t* const* k, TileRun run) {
  const int64_t pairs = rows.steps * kStep / 2;
  for (int64_t g = run.first_group(); g < run.groups(); ++g) {
    if constexpr (T::kChunk == kKvHalf) {
      const uint16_t* at[] = {k[2 * g], k[2 * g + 1]};
      for (int64_t step = 0; step < rows.steps; ++step, at[0] += kStep, at[1] += kStep) {
        const int64_t elements = clamp(rows.pages.k_stride - step * kStep, 0, kStep);
        turn_k(at, rows.pages.k_stride, elements, rows.k + (step * kTileGroups + g) * kOperandBytes);
      }
      continue;
    }
    for (int64_t i = 0; i < pairs; ++i) {
      uint8_t* to = rows.k + (i / 16 * kTileGroups + g) * kOperandBytes + i % 16 * 64;
      const uint16_t* from = k[g] + 2 * i * kKvGroup;
      if (2 * i + 1 < rows.head_dim) {
        _mm512_store_si512(to, pair_rows<T>(from, from + kKvGroup));
      } else {
        _mm512_store_si512(to, 2 * i < rows.head_dim ? pair_with_zero<T>(from) : _mm512_setzero_si512());
      }
    }
  }
}
// The same for pages of bytes: four elements of sixteen positions at a time, or, in rows, two positions.
template <typename T>
void lay_out_k_codes(const Rows& rows, const uint8_t* const* k, TileRun run) {
  const Decoder<T::kScaled> decoder(*rows.codes);
  const __m512i order = _mm512_load_si512(T::kChunk == kKvHalf ? kRowOrder.at : kPairOrder.at);
  for (int64_t g = run.first_group(); g < run.groups(); ++g) {
    for (int64_t step = 0; step < rows.steps; ++step) {
      uint8_t* to = rows.k + (step * kTileGroups + g) * kOperandBytes;
      const int64_t first = step * kStep;
      if constexpr (T::kChunk == kKvHalf) {
        alignas(64) uint16_t wide[kLanes][kStep];
        const int64_t stride = rows.pages.k_stride;
        const auto mask = static_cast<__mmask32>((uint64_t{1} << clamp(stride - first, 0, kStep)) - 1);
        for (int64_t i = 0; i < kLanes; i += 2) {
          const uint8_t* from = k[2 * g + i / kKvHalf] + i % kKvHalf * stride + first;
          const __m256i even = _mm256_maskz_loadu_epi8(mask, from), odd = _mm256_maskz_loadu_epi8(mask, from + stride);
          const Bf16Lines lines = decoder.get(_mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1), order);
          _mm512_store_si512(wide[i], lines.first);
          _mm512_store_si512(wide[i + 1], lines.second);
        }
        const uint16_t* const at[] = {wide[0], wide[kKvHalf]};
        turn_k(at, kStep, kStep, to);
      } else {
        for (int64_t d = first; d < first + kStep; d += 4, to += 128) {
          const int64_t n = clamp(rows.head_dim - d, 0, 4);
          const __m512i codes = n == 4   ? _mm512_loadu_si512(k[g] + d * kKvGroup)
                                : n == 0 ? _mm512_setzero_si512()
                                         : _mm512_maskz_loadu_epi8((uint64_t{1} << 16 * n) - 1, k[g] + d * kKvGroup);
          const Bf16Lines lines = decoder.get(codes, order);
          _mm512_store_si512(to, lines.first);
          _mm512_store_si512(to + 64, lines.second);
        }
      }
    }
  }
}

// For pages in pairs there is nothing to do.
template <typename T>
void lay_out_k(Rows* rows, const typename T::Type* const* k, TileRun run) {
  if constexpr (T::kInPairs) {
    for (int g = 0; g < kTileGroups; ++g) rows->k_at[g] = reinterpret_cast<const uint8_t*>(k[g]);
    rows->k_step = kOperandBytes;
  } else {
    for (int g = 0; g < kTileGroups; ++g) rows->k_at[g] = rows->k + g * kOperandBytes;
    rows->k_step = kTileGroups * kOperandBytes;
    if constexpr (T::kCodes) {
      lay_out_k_codes<T>(*rows, k, run);
    } else {
      lay_out_k_bf16<T>(*rows, k, run);
    }
  }
}

// V of the positions of `run` as second operands: pairs of positions, sixteen elements. Zeros elsewhere.
template <typename T>
void lay_out_v_bf16(const Rows& rows, const typename T::Type* const* v, TileRun run) {
  const int64_t columns = rows.width / kLanes;
  const int64_t stride = rows.pages.v_stride;
  for (int64_t j = 0; j < kAttentionTile; j += 2) {
    uint8_t* to = rows.v + j / 32 * columns * kOperandBytes + j / 2 % 16 * 64;
    const typename T::Type* even = v[j / T::kChunk] + j % T::kChunk * stride;
    const bool first = j >= run.begin && j < run.end, second = j + 1 >= run.begin && j + 1 < run.end;
    const __m512i seen = _mm512_set1_epi32((first ? 0xffff : 0) | (second ? -0x10000 : 0));
    for (int64_t c = 0; c < columns; ++c, to += kOperandBytes) {
      __m512i pair;
      if constexpr (T::kInPairs) {
        pair = _mm512_loadu_si512(even + 2 * c * kLanes);
      } else {
        pair = pair_rows<T>(even + c * kLanes, even + stride + c * kLanes);
      }
      _mm512_store_si512(to, _mm512_and_si512(pair, seen));
    }
  }
}

// The same for pages of bytes, four positions at a time.
template <typename T>
void lay_out_v_codes(const Rows& rows, const uint8_t* const* v, TileRun run) {
  const Decoder<T::kScaled> decoder(*rows.codes);
  const __m512i order = _mm512_load_si512(kPairOrder.at);
  const int64_t columns = rows.width / kLanes;
  const int64_t stride = rows.pages.v_stride;
  for (int64_t j = 0; j < kAttentionTile; j += 4) {
    uint8_t* to = rows.v + j / 32 * columns * kOperandBytes + j / 2 % 16 * 64;
    const uint8_t* from = v[j / T::kChunk] + j % T::kChunk * stride;
    uint64_t seen = 0;
    for (int64_t i = 0; i < 4; ++i) seen |= uint64_t{j + i >= run.begin && j + i < run.end ? 0xffffu : 0u} << 16 * i;
    for (int64_t c = 0; c < columns; ++c, from += kLanes, to += kOperandBytes) {
      const auto row = [&](int64_t i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride)); };
      __m512i codes = _mm512_castsi128_si512(row(0));
      codes = _mm512_inserti32x4(codes, row(1), 1);
      codes = _mm512_inserti32x4(codes, row(2), 2);
      codes = _mm512_inserti32x4(codes, row(3), 3);
      const Bf16Lines lines = decoder.get(_mm512_maskz_mov_epi8(seen, codes), order);
      _mm512_store_si512(to, lines.first);
      _mm512_store_si512(to + 64, lines.second);
    }
  }
}

template <typename T>
void lay_out_v(const Rows& rows, const typename T::Type* const* v, TileRun run) {
  if constexpr (T::kCodes) {
    lay_out_v_codes<T>(rows, v, run);
  } else {
    lay_out_v_bf16<T>(rows, v, run);
  }
}

bool all_finite(const Rows& rows) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  const int64_t vectors = kPositionSteps * rows.width / kLanes * 16;
  __mmask32 bad = 0;
  for (int64_t i = 0; i < vectors; ++i) {
    bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_load_si512(rows.v + 64 * i), exponent), exponent);
  }
  return bad == 0;
}

// Scores of sixteen rows and 64 positions.
void score(const Rows& rows, int tile) {
  const uint8_t* q = rows.q + tile * rows.steps * kOperandBytes;
  QUIRE_TILE_ZERO(0);
  QUIRE_TILE_ZERO(1);
  QUIRE_TILE_ZERO(2);
  QUIRE_TILE_ZERO(3);
  for (int64_t step = 0; step < rows.steps; ++step, q += kOperandBytes) {
    const int64_t at = step * rows.k_step;
    QUIRE_TILE_LOAD(4, q, 64);
    QUIRE_TILE_LOAD(6, rows.k_at[0] + at, 64);
    QUIRE_TILE_MULTIPLY(0, 4, 6);
    QUIRE_TILE_LOAD(7, rows.k_at[1] + at, 64);
    QUIRE_TILE_MULTIPLY(1, 4, 7);
    QUIRE_TILE_LOAD(6, rows.k_at[2] + at, 64);
    QUIRE_TILE_MULTIPLY(2, 4, 6);
    QUIRE_TILE_LOAD(7, rows.k_at[3] + at, 64);
    QUIRE_TILE_MULTIPLY(3, 4, 7);
  }
  QUIRE_TILE_STORE(0, rows.s, 4 * kAttentionTile);
  QUIRE_TILE_STORE(1, rows.s + 16, 4 * kAttentionTile);
  QUIRE_TILE_STORE(2, rows.s + 32, 4 * kAttentionTile);
  QUIRE_TILE_STORE(3, rows.s + 48, 4 * kAttentionTile);
}

// Applies the scales of K and the soft cap to the scores of a tile of rows, where there are any.
template <bool kScaled>
void finish_scores(const Rows& rows, int tile) {
  for (int r = 0; r < kTileRows && tile * kTileRows + r < rows.num_rows; ++r) {
    float* s = rows.s + r * kAttentionTile;
    for (int64_t i = 0; kScaled && i < kAttentionTile; i += kLanes) store(s + i, load(s + i) * load(rows.scales.k + i));
    cap_scores(rows.rule, 0, kTileGroups, s);
  }
}

// Masks the positions before a row's window at the beginning of a tile: lanes of group g, and its scores.
QUIRE_INLINE int64_t front_lanes(int64_t begin, int64_t g) {
  return clamp(begin - g * kLanes, 0, kLanes);
}
void hide_front(float* s, int64_t begin) {
  for (int64_t g = 0; g * kLanes < begin; ++g) {
    store_n(s + g * kLanes, splat(-__builtin_inff()), front_lanes(begin, g));
  }
}

// A weight times its position's scale of V; 0 stays 0 whatever the scale.
QUIRE_INLINE F32x16 scaled(F32x16 weight, const float* scale) {
  return select(eq(weight, zero()), weight, weight * load(scale));
}

// Softmax of the tile's positions: turns scores into bf16 weights and updates m and l; a is the factor of o.
template <bool kScaled>
void softmax(const Rows& rows, int tile, float* a) {
  const int first_row = tile * kTileRows;
  alignas(64) float before[kLanes] = {};
  alignas(64) float after[kLanes] = {};
  const int end = rows.num_rows - first_row < kTileRows ? rows.num_rows - first_row : kTileRows;
  const bool windowed = rows.windowed;
  const F32x16 nothing = splat(-__builtin_inff());
  for (int r = 0; r < end; ++r) {
    if (!rows.sees(first_row + r)) continue;  // before = after: a is 1
    const int64_t count = rows.end[first_row + r];
    float* s = rows.s + r * kAttentionTile;
    if (windowed) hide_front(s, rows.begin[first_row + r]);
    F32x16 top = splat(rows.m[first_row + r]);
    for (int g = 0; g < kTileGroups; ++g) {
      F32x16 v = load(s + g * kLanes);
      if (count < (g + 1) * kLanes) {
        v = select(first_lanes(clamp(count - g * kLanes, 0, kLanes)), v, nothing);
        store(s + g * kLanes, v);
      }
      top = max(v, top);
    }
    before[r] = rows.m[first_row + r];
    after[r] = rows.m[first_row + r] = reduce_max(top);
  }
  store(a, exp2_clamped(load(before) - load(after)));
  for (int r = 0; r < kTileRows; ++r) {
    uint8_t* to = rows.p + r * 64;
    if (r >= end || !rows.sees(first_row + r)) {
      for (int i = 0; i < kPositionSteps; ++i) _mm512_store_si512(to + i * kOperandBytes, _mm512_setzero_si512());
      continue;
    }
    const int64_t count = rows.end[first_row + r];
    const float* s = rows.s + r * kAttentionTile;
    const F32x16 top = splat(rows.m[first_row + r]);
    F32x16 w[kTileGroups];
    F32x16 sum = zero();
#pragma GCC unroll 4
    for (int g = 0; g < kTileGroups; ++g) {
      w[g] = exp2_clamped(load(s + g * kLanes) - top);
      if (windowed) w[g] = select(first_lanes(front_lanes(rows.begin[first_row + r], g)), zero(), w[g]);
      if (count < (g + 1) * kLanes) w[g] = select(first_lanes(clamp(count - g * kLanes, 0, kLanes)), w[g], zero());
      sum = sum + w[g];
    }
    for (int g = 0; kScaled && g < kTileGroups; ++g) w[g] = scaled(w[g], rows.scales.v + g * kLanes);
    for (int i = 0; i < kPositionSteps; ++i) {
      const __m512bh pairs = _mm512_cvtne2ps_pbh(w[2 * i + 1].v, w[2 * i].v);
      _mm512_store_si512(to + i * kOperandBytes, reinterpret_cast<__m512i>(pairs));
    }
    float* l = rows.l + (first_row + r) * kLanes;
    store(l, fma(load(l), splat(a[r]), sum));
  }
}

// o = o * a + p V, for rows [row_begin, row_end) of the tile.
void weigh(const Rows& rows, int tile, const float* a, int row_begin, int row_end) {
  const int64_t columns = rows.width / kLanes;
  const int first_row = tile * kTileRows;
  for (int64_t c = 0; c < columns; c += kTileGroups) {
    const int64_t width = columns - c < kTileGroups ? columns - c : kTileGroups;
    QUIRE_TILE_ZERO(0);
    QUIRE_TILE_ZERO(1);
    QUIRE_TILE_ZERO(2);
    QUIRE_TILE_ZERO(3);
    for (int64_t i = 0; i < kPositionSteps; ++i) {
      const uint8_t* v = rows.v + (i * columns + c) * kOperandBytes;
      QUIRE_TILE_LOAD(4, rows.p + i * kOperandBytes, 64);
      QUIRE_TILE_LOAD(6, v, 64);
      QUIRE_TILE_MULTIPLY(0, 4, 6);
      if (width > 1) {
        QUIRE_TILE_LOAD(7, v + kOperandBytes, 64);
        QUIRE_TILE_MULTIPLY(1, 4, 7);
      }
      if (width > 2) {
        QUIRE_TILE_LOAD(6, v + 2 * kOperandBytes, 64);
        QUIRE_TILE_MULTIPLY(2, 4, 6);
      }
      if (width > 3) {
        QUIRE_TILE_LOAD(7, v + 3 * kOperandBytes, 64);
        QUIRE_TILE_MULTIPLY(3, 4, 7);
      }
    }
    QUIRE_TILE_STORE(0, rows.add, 4 * kAttentionTile);
    QUIRE_TILE_STORE(1, rows.add + 16, 4 * kAttentionTile);
    QUIRE_TILE_STORE(2, rows.add + 32, 4 * kAttentionTile);
    QUIRE_TILE_STORE(3, rows.add + 48, 4 * kAttentionTile);
    for (int r = row_begin; r < row_end; ++r) {
      if (!rows.sees(first_row + r)) continue;
      float* o = rows.o + (first_row + r) * rows.width + c * kLanes;
      const float* add = rows.add + r * kAttentionTile;
      const F32x16 scale = splat(a[r]);
      for (int64_t i = 0; i < width; ++i) {
        store(o + i * kLanes, fma(load(o + i * kLanes), scale, load(add + i * kLanes)));
      }
    }
  }
}

// V has an infinity or a NaN that only some rows see: each row uses its own V, zero where the row sees nothing.
template <typename T>
void weigh_one_by_one(const Rows& rows, int tile, const float* a, const typename T::Type* const* v) {
  const int end = rows.num_rows - tile * kTileRows < kTileRows ? rows.num_rows - tile * kTileRows : kTileRows;
  for (int r = 0; r < end; ++r) {
    lay_out_v<T>(rows, v, {rows.begin[tile * kTileRows + r], rows.end[tile * kTileRows + r]});
    weigh(rows, tile, a, r, r + 1);
  }
}

// The pages of one tile of positions, of which the item's rows see `run`.
template <typename T>
struct Tile {
  int64_t begin;
  TileRun run;
  const typename T::Type* k[kAttentionTile / T::kChunk];
  const typename T::Type* v[kAttentionTile / T::kChunk];
};
template <typename T>
Tile<T> find_tile(const AttentionArgs& args, const AttentionItem& item, const Rows& rows, int64_t begin) {
  Tile<T> tile;
  tile.begin = begin;
  tile.run = TileRun::of(rows.low[0], rows.high[rows.num_rows - 1], begin);
  find_chunks<typename T::Type, T::kChunk>(args, item, rows.pages, begin, tile.run, tile.k, tile.v);
  return tile;
}

// One tile of positions for all rows of the item; its K is laid out. Vector work that waits for no tile runs between
// the products and their users: V of this tile, and K of the next one.
template <typename T>
void run_tile(Rows* rows, const Tile<T>& now, const Tile<T>* next) {
  rows->enter(now.begin);
  const bool alike = rows->end[0] == now.run.end && rows->begin[rows->num_rows - 1] == now.run.begin;
  bool together = true;
  bool v_ready = false;
  for (int tile = 0; tile < rows->num_tiles; ++tile) {
    const bool last_tile = tile + 1 == rows->num_tiles;
    const int last = last_tile ? rows->num_rows - 1 : tile * kTileRows + kTileRows - 1;
    if (rows->end[last] > 0 && rows->begin[tile * kTileRows] < kAttentionTile) {
      alignas(64) float a[kLanes];
      score(*rows, tile);
      if (!v_ready) {
        lay_out_v<T>(*rows, now.v, now.run);
        together = alike || all_finite(*rows);
        v_ready = true;
      }
      finish_scores<T::kScaled>(*rows, tile);
      softmax<T::kScaled>(*rows, tile, a);
      if (last_tile && next != nullptr) lay_out_k<T>(rows, next->k, next->run);
      if (together) {
        weigh(*rows, tile, a, 0, last + 1 - tile * kTileRows);
      } else {
        weigh_one_by_one<T>(*rows, tile, a, now.v);
      }
    } else if (last_tile && next != nullptr) {
      lay_out_k<T>(rows, next->k, next->run);
    }
  }
}

// Sets the sums of a split to their beginning.
void begin_split(const Rows& rows) {
  for (int64_t i = 0; i < rows.num_rows * rows.width; i += kLanes) store(rows.o + i, zero());
  for (int64_t i = 0; i < rows.num_rows * kLanes; i += kLanes) store(rows.l + i, zero());
  for (int r = 0; r < rows.num_rows; ++r) rows.m[r] = -__builtin_inff();
}

// A tile of few rows, which all see [low, high).
FewTile find_few(const AttentionArgs& args, const AttentionItem& item, const KvGeometry& pages, Seen seen,
                 int64_t begin) {
  FewTile tile;
  tile.run = TileRun::of(seen.begin, seen.end, begin);
  find_chunks<uint16_t, kKvGroup>(args, item, pages, begin, tile.run, tile.k, tile.v);
  return tile;
}
// The tile after that at `begin`: of this split, of the next one, or of the item that this thread takes next if all
// take turns.
FewTile find_next_few(const AttentionArgs& args, const AttentionItem& item, const KvGeometry& pages, Seen seen,
                      int64_t split, int64_t begin) {
  const int64_t after = begin + kAttentionTile;
  if (after < clamp(seen.end, 0, (split + 1) * kAttentionSplit)) return find_few(args, item, pages, seen, after);
  if (split + 1 < item.split_end) return find_few(args, item, pages, seen, first_tile(split + 1, seen.begin));
  const AttentionItem& soon = item.soon == nullptr ? item : *item.soon;
  const Seen first = seen_by_row(args, soon.seq, soon.row_begin);
  return find_few(args, soon, pages, first, first_tile(soon.split_begin, first.begin));
}
void run_few_rows(const AttentionArgs& args, const AttentionItem& item, const Rows& rows, const RowSums& sums) {
  const FewRows few = {rows.steps, rows.width, rows.rule, rows.q_few, rows.s, rows.add, rows.o, rows.l, rows.m};
  const Seen seen = {rows.low[0], rows.high[0]};
  FewTile now = find_few(args, item, rows.pages, seen, first_tile(item.split_begin, seen.begin));
  for (int64_t split = item.split_begin; split < item.split_end; ++split) {
    begin_split(rows);
    const int64_t end = clamp(seen.end, 0, (split + 1) * kAttentionSplit);
    for (int64_t begin = first_tile(split, seen.begin); begin < end; begin += kAttentionTile) {
      const FewTile next = find_next_few(args, item, rows.pages, seen, split, begin);
      attend_few_rows(rows.num_rows, few, now, next);
      now = next;
    }
    end_split(args, item, sums, split, [&](int r) { return rows.m[r]; });
  }
}

template <typename T>
void run_item(const AttentionArgs& args, const AttentionItem& item, float* scratch, const CodeTable* codes = nullptr) {
  Rows rows;
  rows.codes = codes;
  prepare_rows(args, item, T::kInPairs, scratch, &rows);
  const RowSums sums = {rows.num_rows, rows.low, rows.high,   args.kv.v_dim(), rows.width,
                        rows.o,        rows.l,   rows.merged, rows.merged_m,   rows.merged_l};
  if (rows.few) return run_few_rows(args, item, rows, sums);
  const int64_t low = rows.low[0];
  const int64_t high = rows.high[rows.num_rows - 1];
  configure_tiles(rows.num_rows < kTileRows ? rows.num_rows : kTileRows, kLanes);
  for (int64_t split = item.split_begin; split < item.split_end; ++split) {
    begin_split(rows);
    const int64_t end = clamp(high, 0, (split + 1) * kAttentionSplit);
    Tile<T> now = find_tile<T>(args, item, rows, first_tile(split, low));
    lay_out_k<T>(&rows, now.k, now.run);
    for (int64_t begin = now.begin; begin < end; begin += kAttentionTile) {
      const bool more = begin + kAttentionTile < end;
      const Tile<T> next = more ? find_tile<T>(args, item, rows, begin + kAttentionTile) : now;
      if constexpr (T::kScaled) find_scales(args, item, now.begin, now.run, &rows.scales);
      run_tile<T>(&rows, now, more ? &next : nullptr);
      now = next;
    }
    end_split(args, item, sums, split, [&](int r) { return rows.m[r]; });
  }
  release_tiles();
}

// The places of a position's K and V in pages in pairs: of K, one 32-bit word for two elements, kKvGroup words apart.
struct PairPlace {
  uint32_t* k;
  uint16_t* v;  // of an even position: its elements have gaps for those of the next one
};
QUIRE_INLINE PairPlace pair_place(const KvLayer& kv, const KvGeometry& g, int64_t slot, int64_t head) {
  const int64_t position = slot % kv.block_size;
  char* at = static_cast<char*>(kv.pages) + slot / kv.block_size * kv.page_stride + head * g.head_bytes;
  return {reinterpret_cast<uint32_t*>(at) + position / kKvGroup * (kv.head_dim / 2) * kKvGroup + position % kKvGroup,
          reinterpret_cast<uint16_t*>(at + g.k_bytes) + position / 2 * 2 * kv.v_dim() + position % 2};
}

void put_position(const ReshapeAndCacheArgs& args, const KvGeometry& g, int64_t row) {
  const KvLayer& kv = args.kv;
  const int64_t d = kv.head_dim, v_dim = kv.v_dim();
  for (int64_t h = 0; h < kv.num_kv_heads; ++h) {
    const PairPlace to = pair_place(kv, g, args.slot_mapping.data()[row], h);
    alignas(64) uint16_t rounded[kLanes];
    for (int64_t i = 0; i < d; i += kLanes) {
      StoredBF16::put(rounded, load(row_of(args.k, row) + h * d + i));
      for (int64_t j = 0; j < kLanes / 2; ++j) {
        __builtin_memcpy(to.k + (i / 2 + j) * kKvGroup, rounded + 2 * j, sizeof(uint32_t));
      }
    }
    for (int64_t i = 0; i < v_dim; i += kLanes) {
      StoredBF16::put(rounded, load(row_of(args.v, row) + h * v_dim + i));
      for (int64_t j = 0; j < kLanes; ++j) to.v[2 * (i + j)] = rounded[j];
    }
  }
}

// Rows [row, row + 16) that go to one group of positions: whole lines of K and V.
void put_group(const ReshapeAndCacheArgs& args, const KvGeometry& g, int64_t row) {
  const KvLayer& kv = args.kv;
  const int64_t d = kv.head_dim, v_dim = kv.v_dim();
  for (int64_t h = 0; h < kv.num_kv_heads; ++h) {
    const PairPlace to = pair_place(kv, g, args.slot_mapping.data()[row], h);
    alignas(64) uint16_t rounded[kKvGroup][kStep];
    const uint16_t* const halves[] = {rounded[0], rounded[kKvHalf]};
    for (int64_t i = 0; i < d; i += kStep) {
      for (int64_t r = 0; r < kKvGroup; ++r) {
        const float* from = row_of(args.k, row + r) + h * d + i;
        StoredBF16::put(rounded[r], load(from));
        StoredBF16::put(rounded[r] + kLanes, load(from + kLanes));
      }
      turn_k(halves, kStep, kStep, reinterpret_cast<uint8_t*>(to.k + i / 2 * kKvGroup));
    }
    for (int64_t r = 0; r < kKvGroup; r += 2) {
      for (int64_t i = 0; i < v_dim; i += kLanes) {
        StoredBF16::put(rounded[0], load(row_of(args.v, row + r) + h * v_dim + i));
        StoredBF16::put(rounded[1], load(row_of(args.v, row + r + 1) + h * v_dim + i));
        _mm512_storeu_si512(to.v + r * v_dim + 2 * i, pair_rows<StoredBF16>(rounded[0], rounded[1]));
      }
    }
  }
}
bool is_group(const ReshapeAndCacheArgs& args, int64_t row, int64_t row_end) {
  const auto* slots = args.slot_mapping.data() + row;
  if (row + kKvGroup > row_end || slots[0] < 0 || slots[0] % kKvGroup != 0) return false;
  for (int64_t i = 1; i < kKvGroup; ++i) {
    if (slots[i] != slots[0] + i) return false;
  }
  return true;
}

}  // namespace

void attention_run(const AttentionArgs& args, const AttentionItem& item, float* scratch) {
  const bool in_rows = kv_geometry(args.kv).in_rows;
  const auto run_codes = [&]<bool kInt8>(const CodeTable& codes) {
    if (in_rows) return run_item<CodePages<kInt8, true>>(args, item, scratch, &codes);
    return run_item<CodePages<kInt8, false>>(args, item, scratch, &codes);
  };
  switch (args.kv.dtype) {
    case DType::kBF16:
      if (pages_in_pairs(args.kv)) return run_item<PairedPages>(args, item, scratch);
      if (in_rows) return run_item<RowPages>(args, item, scratch);
      return run_item<Bf16Pages>(args, item, scratch);
    case DType::kI8:
      return run_codes.operator()<true>(kI8Codes);
    case DType::kF8E4M3:
      return run_codes.operator()<false>(kF8E4M3Codes);
    case DType::kF8E5M2:
      return run_codes.operator()<false>(kF8E5M2Codes);
    default:
      return avx512::attention_run(args, item, scratch);
  }
}

void reshape_and_cache(const ReshapeAndCacheArgs& args, int64_t row_begin, int64_t row_end) {
  const KvLayer& kv = args.kv;
  if (!pages_in_pairs(kv)) return avx512::reshape_and_cache(args, row_begin, row_end);
  const KvGeometry g = kv_geometry(kv);
  for (int64_t row = row_begin; row < row_end;) {
    if (is_group(args, row, row_end)) {
      put_group(args, g, row);
      row += kKvGroup;
      continue;
    }
    if (args.slot_mapping.data()[row] >= 0) put_position(args, g, row);
    ++row;
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
