// SPDX-License-Identifier: Apache-2.0
// Integer dots with AVX2: vpmaddubsw sums pairs in 16 bits, where a few groups fit before they must widen.
#pragma once

#include <immintrin.h>

#include "backend/cpu/isa/linear_block.h"

namespace quire::cpu::QUIRE_ISA_NS {

// Half h of a group is its 8 columns 8h..8h+7, one register. Where codes are signed `group` holds magnitudes and
// `signs` the values.
struct alignas(32) DotCodes {
  uint8_t group[8][64];
  int8_t signs[8][64];
};

template <DType kType>
constexpr bool kSignedCodes = quant_format(kType).low_bits == 8 || has_table(quant_format(kType));

static inline __attribute__((always_inline)) __m256i load256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
static inline __attribute__((always_inline)) void store256(void* p, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}

// 32 bits to 32 bytes of 0 or `value`.
static inline __attribute__((always_inline)) __m256i spread_bits(const uint8_t* p, char value) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  const __m256i which =
      _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), which);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  return _mm256_and_si256(set, _mm256_set1_epi8(value));
}

template <DType kType>
alignas(32) static constexpr TableBytes kTable256 = table_bytes(quant_format(kType), 0);

template <DType kType>
static inline void prepare_codes(const uint8_t* src, DotCodes& out) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const uint8_t* high = src + 64 * kFormat.low_bits;
  const __m256i low_mask = _mm256_set1_epi8((1 << (kFormat.low_bits & 7)) - 1);
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256i code;
      if constexpr (kFormat.low_bits == 8) {
        code = _mm256_xor_si256(load256(src + 64 * g + 32 * h), _mm256_set1_epi8(-128));
      } else if constexpr (kFormat.low_bits == 4) {
        code = _mm256_and_si256(_mm256_srli_epi16(load256(src + 64 * (g / 2) + 32 * h), 4 * (g % 2)), low_mask);
      } else {
        code = _mm256_and_si256(_mm256_srli_epi16(load256(src + 64 * (g / 4) + 32 * h), 2 * (g % 4)), low_mask);
      }
      if constexpr (kFormat.high_bits == 1) {
        code = _mm256_or_si256(code, spread_bits(high + 8 * g + 4 * h, 1 << kFormat.low_bits));
      } else if constexpr (kFormat.high_bits == 2) {
        const __m256i two = _mm256_srli_epi16(load256(high + 64 * (g / 4) + 32 * h), 2 * (g % 4));
        code = _mm256_or_si256(code, _mm256_slli_epi16(_mm256_and_si256(two, _mm256_set1_epi8(3)), 4));
      }
      if constexpr (has_table(kFormat)) code = _mm256_shuffle_epi8(load256(kTable256<kType>.bytes), code);
      if constexpr (kSignedCodes<kType>) {
        store256(out.signs[g] + 32 * h, code);
        code = _mm256_abs_epi8(code);  // 128 for -128, as an unsigned byte
      }
      store256(out.group[g] + 32 * h, code);
    }
  }
}

// Groups whose 16-bit sums of pairs (at most 2 * code * 127 each) fit together.
template <DType kType>
constexpr int kGroupsTogether = 32767 /
                                (2 * 127 * ((1 << (quant_format(kType).low_bits + quant_format(kType).high_bits)) - 1) +
                                 1);

template <DType kType, int kRows>
static inline __attribute__((always_inline)) void dot_half(const DotCodes& codes, const RowTileBlock& x, int r0, int h,
                                                           int begin, int end, int32_t (*dot)[kPanel]) {
  constexpr bool kSigned = kSignedCodes<kType>;
  constexpr int kTogether = kSigned ? 1 : kGroupsTogether<kType>;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum[kRows];
  __m256i pairs[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sum[r] = pairs[r] = _mm256_setzero_si256();
    // First the high parts of the codes of x, times 16, then the low ones.
#pragma GCC unroll 2
  for (int part = 0; part < 2; ++part) {
#pragma GCC unroll 8
    for (int g = begin; g < end; ++g) {
      const __m256i w = load256(codes.group[g] + 32 * h);
      const bool widen = (g - begin) % kTogether == kTogether - 1 || g == end - 1;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        int32_t four;
        std::memcpy(&four, x.codes[r0 + r] + kBlock * part + 4 * g, sizeof four);
        __m256i xs = _mm256_set1_epi32(four);
        if constexpr (kSigned) xs = _mm256_sign_epi8(xs, load256(codes.signs[g] + 32 * h));
        pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(w, xs));
        if (widen) {
          sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs[r], ones));
          pairs[r] = _mm256_setzero_si256();
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r] = part == 0 ? _mm256_slli_epi32(sum[r], 4) : sum[r];
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) store256(dot[r0 + r] + 8 * h, sum[r]);
}

template <DType kType, int kRows>
static inline __attribute__((always_inline)) void dot_some(const DotCodes& codes, const RowTileBlock& x, int r,
                                                           int32_t (*low)[kPanel], int32_t (*high)[kPanel]) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    if constexpr (has_halves(quant_format(kType))) {
      dot_half<kType, kRows>(codes, x, r, h, 0, 4, low);
      dot_half<kType, kRows>(codes, x, r, h, 4, 8, high);
    } else {
      dot_half<kType, kRows>(codes, x, r, h, 0, 8, low);
    }
  }
}

template <DType kType>
static inline void dot_rows(const DotCodes& codes, const RowTileBlock& x, int rows, int32_t (*low)[kPanel],
                            int32_t (*high)[kPanel]) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) dot_some<kType, 4>(codes, x, r, low, high);
  for (; r < rows; ++r) dot_some<kType, 1>(codes, x, r, low, high);
}

}  // namespace quire::cpu::QUIRE_ISA_NS
