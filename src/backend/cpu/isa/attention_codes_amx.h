// SPDX-License-Identifier: Apache-2.0
// Codes of one byte, as int8 and fp8 pages hold them, in bf16 for AMX tiles. Every code of the three types is exact in
// bf16, so a table of the low seven bits does; the scales of int8 are not part of it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/simd.h"
#include "ops/tensor.h"

namespace quire::cpu::QUIRE_ISA_NS {

// The bf16 of each magnitude, low and high bytes apart. A magnitude is a code without its sign.
struct alignas(64) CodeTable {
  uint8_t low[128] = {};
  uint8_t high[128] = {};
};

// i * 2^exponent as bf16; i < 128.
constexpr uint16_t bf16_of(int i, int exponent) {
  if (i == 0) return 0;
  int top = 0;
  while (i >> (top + 1) != 0) ++top;
  return static_cast<uint16_t>(((127 + top + exponent) << 7) | ((i << (7 - top)) & 0x7f));
}

// What magnitude `i` of a float with so many bits of mantissa stands for; the type has infinities or a NaN alone.
constexpr uint16_t bf16_of_f8(int i, int mantissa, int bias, bool infinities) {
  const int exponent = i >> mantissa, fraction = i & ((1 << mantissa) - 1);
  if (infinities && exponent == 0x7f >> mantissa) return fraction == 0 ? 0x7f80 : 0x7fc0;
  if (!infinities && i == 0x7f) return 0x7fc0;
  if (exponent == 0) return bf16_of(fraction, 1 - bias - mantissa);
  return bf16_of((1 << mantissa) + fraction, exponent - bias - mantissa);
}

constexpr CodeTable code_table(DType type) {
  CodeTable table;
  for (int i = 0; i < 128; ++i) {
    const uint16_t bits = type == DType::kI8       ? bf16_of(i, 0)
                          : type == DType::kF8E4M3 ? bf16_of_f8(i, 3, 7, false)
                                                   : bf16_of_f8(i, 2, 15, true);
    table.low[i] = static_cast<uint8_t>(bits);
    table.high[i] = static_cast<uint8_t>(bits >> 8);
  }
  return table;
}
static constexpr CodeTable kI8Codes = code_table(DType::kI8);
static constexpr CodeTable kF8E4M3Codes = code_table(DType::kF8E4M3);
static constexpr CodeTable kF8E5M2Codes = code_table(DType::kF8E5M2);

// Two vectors of bf16.
struct Bf16Lines {
  __m512i first, second;
};

// A table in registers. kSigned: codes are two's complement; else their top bit is the sign.
template <bool kSigned>
class Decoder {
 public:
  explicit Decoder(const CodeTable& table)
      : low_{_mm512_load_si512(table.low), _mm512_load_si512(table.low + 64)},
        high_{_mm512_load_si512(table.high), _mm512_load_si512(table.high + 64)} {}

  // `order` says for each byte which code it takes: the first eight bytes of each sixteen become the first vector.
  [[gnu::always_inline]] Bf16Lines get(__m512i codes, __m512i order) const {
    const __m512i x = _mm512_permutexvar_epi8(order, codes);
    const __m512i magnitude = kSigned ? _mm512_abs_epi8(x) : x;  // the lookup ignores the top bit
    const __m512i low = _mm512_permutex2var_epi8(low_[0], magnitude, low_[1]);
    __m512i high = _mm512_permutex2var_epi8(high_[0], magnitude, high_[1]);
    high = _mm512_ternarylogic_epi64(high, x, _mm512_set1_epi8(-0x80), 0xf8);  // high | (x & sign)
    return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
  }

 private:
  __m512i low_[2], high_[2];
};

struct alignas(64) CodeOrder {
  uint8_t at[64] = {};
};
// Four rows of sixteen codes: rows 0 and 1 as pairs, and rows 2 and 3.
constexpr CodeOrder pair_order() {
  CodeOrder order;
  for (int i = 0; i < 64; ++i) {
    const int row = i % 16 / 8 * 2 + i % 2, column = i / 16 * 4 + i % 8 / 2;
    order.at[i] = static_cast<uint8_t>(row * 16 + column);
  }
  return order;
}
// Two rows of thirty-two codes, as they are.
constexpr CodeOrder row_order() {
  CodeOrder order;
  for (int i = 0; i < 64; ++i) order.at[i] = static_cast<uint8_t>(i % 16 / 8 * 32 + i / 16 * 8 + i % 8);
  return order;
}
static constexpr CodeOrder kPairOrder = pair_order();
static constexpr CodeOrder kRowOrder = row_order();

}  // namespace quire::cpu::QUIRE_ISA_NS
