// SPDX-License-Identifier: Apache-2.0
// Integer dots with baseline NEON: widening multiplications. Levels with dot instructions have linear_neon.cc.
#pragma once

#include <arm_neon.h>

#include "backend/cpu/isa/linear_block.h"

namespace quire::cpu::QUIRE_ISA_NS {

// Signed codes (all but those of eight bits and of tables fit as they are). A quad is four columns: 16 bytes of a
// group.
struct alignas(16) DotCodes {
  int8_t bytes[8][64];
};

template <DType kType>
constexpr bool kSignedCodes = quant_format(kType).low_bits == 8 || has_table(quant_format(kType));

// 16 bits to 16 bytes of 0 or `value`.
static inline __attribute__((always_inline)) uint8x16_t spread_bits(const uint8_t* p, uint8_t value) {
  const uint8x16_t bytes = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1]));
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
  return vandq_u8(vtstq_u8(bytes, bit), vdupq_n_u8(value));
}

template <int kBits>
static inline __attribute__((always_inline)) uint8x16_t field(uint8x16_t v, int shift) {
  return vandq_u8(vshlq_u8(v, vdupq_n_s8(static_cast<int8_t>(-shift))), vdupq_n_u8((1 << kBits) - 1));
}

template <DType kType>
static constexpr TableBytes kTable128 = table_bytes(quant_format(kType), 0);

template <DType kType>
static inline __attribute__((always_inline)) uint8x16_t quad_codes(const uint8_t* src, int g, int q) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const uint8_t* high = src + 64 * kFormat.low_bits;
  uint8x16_t code;
  if constexpr (kFormat.low_bits == 8) {
    code = veorq_u8(vld1q_u8(src + 64 * g + 16 * q), vdupq_n_u8(128));
  } else if constexpr (kFormat.low_bits == 4) {
    code = field<4>(vld1q_u8(src + 64 * (g / 2) + 16 * q), 4 * (g % 2));
  } else {
    code = field<2>(vld1q_u8(src + 64 * (g / 4) + 16 * q), 2 * (g % 4));
  }
  if constexpr (kFormat.high_bits == 1) {
    code = vorrq_u8(code, spread_bits(high + 8 * g + 2 * q, 1 << kFormat.low_bits));
  } else if constexpr (kFormat.high_bits == 2) {
    code = vorrq_u8(code, vshlq_n_u8(field<2>(vld1q_u8(high + 64 * (g / 4) + 16 * q), 2 * (g % 4)), 4));
  }
  if constexpr (has_table(kFormat)) code = vqtbl1q_u8(vld1q_u8(kTable128<kType>.bytes), code);
  return code;
}

template <DType kType>
static inline void prepare_codes(const uint8_t* src, DotCodes& out) {
  for (int g = 0; g < 8; ++g) {
    for (int q = 0; q < 4; ++q) vst1q_s8(out.bytes[g] + 16 * q, vreinterpretq_s8_u8(quad_codes<kType>(src, g, q)));
  }
}

// Four groups (16 k) of one row, on top of sum.
static inline __attribute__((always_inline)) void dot_four_groups(const DotCodes& codes, const int8_t* x, int first,
                                                                  int32x4_t sum[4]) {
  for (int g = first; g < first + 4; ++g) {
    int32_t four;
    std::memcpy(&four, x + 4 * g, sizeof four);
    const int8x16_t xs = vreinterpretq_s8_s32(vdupq_n_s32(four));
    for (int q = 0; q < 4; ++q) {
      const int8x16_t w = vld1q_s8(codes.bytes[g] + 16 * q);
      const int16x8_t front = vmull_s8(vget_low_s8(w), vget_low_s8(xs));
      const int16x8_t back = vmull_high_s8(w, xs);
      sum[q] = vaddq_s32(sum[q], vpaddq_s32(vpaddlq_s16(front), vpaddlq_s16(back)));
    }
  }
}

// Groups [begin, end) of one row: first the high parts of its codes, times 16, then the low ones.
static inline __attribute__((always_inline)) void dot_row(const DotCodes& codes, const int8_t* x, int begin, int end,
                                                          int32_t* dot) {
  int32x4_t sum[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
  for (int first = begin; first < end; first += 4) dot_four_groups(codes, x, first, sum);
  for (int q = 0; q < 4; ++q) sum[q] = vshlq_n_s32(sum[q], 4);
  for (int first = begin; first < end; first += 4) dot_four_groups(codes, x + kBlock, first, sum);
  for (int q = 0; q < 4; ++q) vst1q_s32(dot + 4 * q, sum[q]);
}

template <DType kType>
static inline void dot_rows(const DotCodes& codes, const RowTileBlock& x, int rows, int32_t (*low)[kPanel],
                            int32_t (*high)[kPanel]) {
  for (int r = 0; r < rows; ++r) {
    if constexpr (has_halves(quant_format(kType))) {
      dot_row(codes, x.codes[r], 0, 4, low[r]);
      dot_row(codes, x.codes[r], 4, 8, high[r]);
    } else {
      dot_row(codes, x.codes[r], 0, 8, low[r]);
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
