// SPDX-License-Identifier: Apache-2.0
// Integer dots for any processor; see linear_dots.h.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "backend/cpu/isa/linear_block.h"

namespace quire::cpu::QUIRE_ISA_NS {

// Sixteen-bit numbers, in the order in which a dot reads them, so that a processor can multiply eight at once.
struct DotCodes {
  int16_t column[kPanel][kBlock];
};

template <DType kType>
constexpr bool kSignedCodes = false;

template <DType kType>
static inline void prepare_codes(const uint8_t* src, DotCodes& out) {
  uint8_t group[8][64];
  block_codes<kType>(src, group);
  for (int c = 0; c < kPanel; ++c) {
    for (int g = 0; g < 8; ++g) {
      for (int j = 0; j < 4; ++j) out.column[c][4 * g + j] = group[g][4 * c + j];
    }
  }
}

template <int kCount>
static inline int32_t dot(const int16_t* a, const int16_t* b) {
#if defined(__SSE2__)  // as every x86-64 has it
  __m128i sums = _mm_setzero_si128();
  for (int i = 0; i < kCount; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i));
    sums = _mm_add_epi32(sums, _mm_madd_epi16(eight, _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i))));
  }
  sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xb1)));
#else
  int32_t sum = 0;
  for (int i = 0; i < kCount; ++i) sum += a[i] * b[i];
  return sum;
#endif
}

template <DType kType>
static inline void dot_rows(const DotCodes& codes, const RowTileBlock& x, int rows, int32_t (*low)[kPanel],
                            int32_t (*high)[kPanel]) {
  constexpr int kCount = has_halves(quant_format(kType)) ? kBlock / 2 : kBlock;
  for (int r = 0; r < rows; ++r) {
    int16_t code[kBlock];
    for (int i = 0; i < kBlock; ++i) code[i] = static_cast<int16_t>(16 * x.codes[r][i] + x.codes[r][kBlock + i]);
    for (int c = 0; c < kPanel; ++c) {
      low[r][c] = dot<kCount>(codes.column[c], code);
      if (kCount < kBlock) high[r][c] = dot<kCount>(codes.column[c] + kBlock - kCount, code + kBlock - kCount);
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
