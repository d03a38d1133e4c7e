// SPDX-License-Identifier: Apache-2.0
// Attention of a few rows that all see the same positions, with pages of BF16 in pairs: vectors compute lane by lane
// what tiles would, with the same bits. Such a step waits for memory, so every loop prefetches its part of the tile
// of positions that comes next.
#pragma once

#include "backend/cpu/isa/attention_shared.h"

namespace quire::cpu::QUIRE_ISA_NS {

constexpr int64_t kFewStep = 32;  // elements or positions that are summed before they are added to a sum

struct FewRows {
  int64_t steps;  // of a head of K
  int64_t width;  // of V, a multiple of 16
  ScoreRule rule;
  const float* q;  // [steps][rows][32]: rounded to bf16
  float* s;        // [rows][64]: scores, then weights
  float* add;      // [rows][kMaxHeadDim]: products with V
  float* o;        // [rows][width]
  float* l;        // [rows][16]
  float* m;        // [rows]
};

// 64 positions by groups of sixteen, of which the rows see `run`.
struct FewTile {
  const uint16_t* k[kTileGroups];
  const uint16_t* v[kTileGroups];
  TileRun run;
};

// Subnormals count as zeros, as in tiles.
class FlushTiny {
 public:
  FlushTiny() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushTiny() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

QUIRE_INLINE __m512 even_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
QUIRE_INLINE __m512 odd_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
}
QUIRE_INLINE __m512i load_pairs(const uint16_t* at) {
  return _mm512_load_si512(at);
}

// Prefetches kLines lines of one of the next tile's groups, which take turns, behind the first `lines`: a core reads
// from four places faster than from one (1.25 times on Granite Rapids).
template <int kLines>
QUIRE_INLINE void prefetch_in_turn(const uint16_t* const* next, int64_t lines, int turn) {
  const uint16_t* at = next[turn % kTileGroups] + (lines + turn / kTileGroups * kLines) * 32;
#pragma GCC unroll 2
  for (int i = 0; i < kLines; ++i) _mm_prefetch(at + 32 * i, _MM_HINT_T0);
}

// Sums of kCount rows' products with one vector of pairs.
template <int kCount>
struct PairSums {
  __m512 even[kCount], odd[kCount];
};
template <int kCount>
QUIRE_INLINE void clear(PairSums<kCount>& sums) {
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) sums.even[r] = sums.odd[r] = _mm512_setzero_ps();
}
// Factors of row r: factor[r * stride] for the even elements, and the one behind it for the odd ones.
template <int kCount>
QUIRE_INLINE void multiply_pairs(PairSums<kCount>& sums, __m512i pairs, const float* factor, int64_t stride) {
  const __m512 even = even_of(pairs), odd = odd_of(pairs);
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) {
    sums.even[r] = _mm512_fmadd_ps(_mm512_set1_ps(factor[r * stride]), even, sums.even[r]);
    sums.odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(factor[r * stride + 1]), odd, sums.odd[r]);
  }
}
template <int kCount>
QUIRE_INLINE void add_sums(__m512* to, const PairSums<kCount>& sums) {
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) to[r] = _mm512_add_ps(to[r], _mm512_add_ps(sums.even[r], sums.odd[r]));
}

// Scores of all 64 positions, two groups at a time.
template <int kRows>
void score_few(const FewRows& rows, const FewTile& now, const FewTile& next) {
  const FlushTiny flush;
  for (int g = 0; g < kTileGroups; g += 2) {
    __m512 sum[2][kRows];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) sum[0][r] = sum[1][r] = _mm512_setzero_ps();
    for (int64_t step = 0; step < rows.steps; ++step) {
      const uint16_t* k0 = now.k[g] + step * kFewStep * kKvGroup;
      const uint16_t* k1 = now.k[g + 1] + step * kFewStep * kKvGroup;
      const float* q = rows.q + step * kRows * kFewStep;
      const int64_t lines = (g / 2 * rows.steps + step) * 8;
      PairSums<kRows> first, second;
      clear(first);
      clear(second);
#pragma GCC unroll 4
      for (int i = 0; i < 16; ++i) {
        prefetch_in_turn<2>(next.k, lines, i);
        multiply_pairs(first, load_pairs(k0 + 32 * i), q + 2 * i, kFewStep);
        multiply_pairs(second, load_pairs(k1 + 32 * i), q + 2 * i, kFewStep);
      }
      add_sums(sum[0], first);
      add_sums(sum[1], second);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      _mm512_store_ps(rows.s + r * kAttentionTile + g * kLanes, sum[0][r]);
      _mm512_store_ps(rows.s + r * kAttentionTile + (g + 1) * kLanes, sum[1][r]);
    }
  }
}

// The lanes of group g that the rows see.
QUIRE_INLINE __mmask16 seen_lanes(TileRun run, int g) {
  const auto ones = [](int64_t n) { return (1u << clamp(n, 0, kLanes)) - 1u; };
  return static_cast<__mmask16>(ones(run.end - g * kLanes) & ~ones(run.begin - g * kLanes));
}

// Scores to weights, rounded to bf16; updates m and l. a is the factor of o.
template <int kRows>
void softmax_few(const FewRows& rows, TileRun run, float* a) {
  alignas(64) float before[kLanes] = {};
  alignas(64) float after[kLanes] = {};
  __mmask16 seen[kTileGroups];
  for (int g = 0; g < kTileGroups; ++g) seen[g] = seen_lanes(run, g);
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    float* s = rows.s + r * kAttentionTile;
    cap_scores(rows.rule, 0, kTileGroups, s);
    F32x16 top = splat(rows.m[r]);
#pragma GCC unroll 4
    for (int g = 0; g < kTileGroups; ++g) {
      const F32x16 v = {_mm512_mask_loadu_ps(_mm512_set1_ps(-__builtin_inff()), seen[g], s + g * kLanes)};
      top = max(v, top);
    }
    before[r] = rows.m[r];
    after[r] = rows.m[r] = reduce_max(top);
  }
  store(a, exp2_clamped(load(before) - load(after)));
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    float* s = rows.s + r * kAttentionTile;
    const F32x16 top = splat(after[r]);
    F32x16 sum = zero();
#pragma GCC unroll 4
    for (int g = 0; g < kTileGroups; ++g) {
      const F32x16 w = {_mm512_maskz_mov_ps(seen[g], exp2_clamped(load(s + g * kLanes) - top).v)};
      sum = sum + w;
      const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(w.v));
      _mm512_store_si512(s + g * kLanes, _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
    }
    float* l = rows.l + r * kLanes;
    store(l, fma(load(l), splat(a[r]), sum));
  }
}

// Writes the weights' products with kColumns vectors of V from element c on to `add`; all 64 positions are seen.
template <int kRows, int kColumns>
QUIRE_INLINE void multiply_columns(const FewRows& rows, const FewTile& now, const FewTile& next, int64_t c) {
  __m512 sum[kColumns][kRows];
#pragma GCC unroll 2
  for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) sum[i][r] = _mm512_setzero_ps();
  }
  for (int step = 0; step < 2; ++step) {
    PairSums<kRows> sums[kColumns];
#pragma GCC unroll 2
    for (int i = 0; i < kColumns; ++i) clear(sums[i]);
    for (int half = 0; half < 2; ++half) {
      const int g = 2 * step + half;
      const uint16_t* v = now.v[g] + 2 * c;
      const int64_t lines = c / kLanes * 8 + 2 * g * kColumns;
#pragma GCC unroll 4
      for (int pair = 0; pair < 8; ++pair, v += 2 * rows.width) {
        prefetch_in_turn<kColumns>(next.v, lines, pair);
        const float* p = rows.s + g * kLanes + 2 * pair;
#pragma GCC unroll 2
        for (int i = 0; i < kColumns; ++i) multiply_pairs(sums[i], load_pairs(v + 32 * i), p, kAttentionTile);
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < kColumns; ++i) add_sums(sum[i], sums[i]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) _mm512_store_ps(rows.add + r * kMaxHeadDim + c + i * kLanes, sum[i][r]);
  }
}
template <int kRows>
void multiply_whole(const FewRows& rows, const FewTile& now, const FewTile& next) {
  const FlushTiny flush;
  int64_t c = 0;
  for (; c + 2 * kLanes <= rows.width; c += 2 * kLanes) multiply_columns<kRows, 2>(rows, now, next, c);
  if (c < rows.width) multiply_columns<kRows, 1>(rows, now, next, c);
}

// The same for some of the positions: V of others may be anything.
template <int kRows>
void multiply_some(const FewRows& rows, const FewTile& now, const FewTile& next) {
  const FlushTiny flush;
  for (int64_t c = 0; c < rows.width; c += kLanes) {
    for (int i = 0; i < 32; ++i) prefetch_in_turn<1>(next.v, c / kLanes * 8, i);
    __m512 sum[kRows];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
    for (int64_t first = 0; first < kAttentionTile; first += kFewStep) {
      const int64_t begin = clamp(now.run.begin, first, first + kFewStep);
      const int64_t end = clamp(now.run.end, first, first + kFewStep);
      PairSums<kRows> sums;
      clear(sums);
      for (int64_t i = begin / 2 * 2; i < end; i += 2) {
        const __m512i pairs = load_pairs(now.v[i / kKvGroup] + i % kKvGroup * rows.width + 2 * c);
        const float* p = rows.s + i;
        if (i >= begin && i + 1 < end) {
          multiply_pairs(sums, pairs, p, kAttentionTile);
          continue;
        }
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r, p += kAttentionTile) {
          if (i >= begin) sums.even[r] = _mm512_fmadd_ps(_mm512_set1_ps(p[0]), even_of(pairs), sums.even[r]);
          if (i + 1 < end) sums.odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(p[1]), odd_of(pairs), sums.odd[r]);
        }
      }
      add_sums(sum, sums);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) _mm512_store_ps(rows.add + r * kMaxHeadDim + c, sum[r]);
  }
}

template <int kRows>
void attend_few(const FewRows& rows, const FewTile& now, const FewTile& next) {
  alignas(64) float a[kLanes];
  score_few<kRows>(rows, now, next);
  softmax_few<kRows>(rows, now.run, a);
  if (now.run.begin == 0 && now.run.end == kAttentionTile) {
    multiply_whole<kRows>(rows, now, next);
  } else {
    multiply_some<kRows>(rows, now, next);
  }
  for (int r = 0; r < kRows; ++r) {
    float* o = rows.o + r * rows.width;
    for (int64_t d = 0; d < rows.width; d += kLanes) {
      store(o + d, fma(load(o + d), splat(a[r]), load(rows.add + r * kMaxHeadDim + d)));
    }
  }
}

template <int kRows = static_cast<int>(kAttentionFewRows)>
void attend_few_rows(int count, const FewRows& rows, const FewTile& now, const FewTile& next) {
  if (count == kRows) return attend_few<kRows>(rows, now, next);
  if constexpr (kRows > 1) attend_few_rows<kRows - 1>(count, rows, now, next);
}

}  // namespace quire::cpu::QUIRE_ISA_NS
