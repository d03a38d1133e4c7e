// SPDX-License-Identifier: Apache-2.0
// Shared by the NEON products: codes and scales of packed blocks in registers, the layout of activations in 8 bits,
// and rows of results.
//
// Activations of one row are [block] of OneRowBlock. More rows stand in tiles of eight, [tile]: a record of zero scales
// (linear_neon_tile.h says why), then [block] of 256 bytes of codes, [step of 8 k][row pair][2 rows x 8 k], and the
// scales, [row pair] of one to three vectors {r0 r0 r1 r1}, by the weight's scheme:
//   kScale, kSubScale: sa;  kScaleMin, kSuperMin, kGroupMin: sa, sa * float(xsum);  kSubScaleMin: sa, int32 xsum of the
//   low and of the high 16 k
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "backend/cpu/isa/linear_block.h"

namespace quire::cpu::QUIRE_ISA_NS {

#define QUIRE_NEON_INLINE static inline __attribute__((always_inline))
#define QUIRE_NEON_MEMBER inline __attribute__((always_inline))

constexpr int kQuads = kPanel / 4;
constexpr int kTileRows = 8;
constexpr int kXCodeBytes = kTileRows * kBlock;

constexpr int x_scale_vectors(QuantFormat f) {
  return f.scheme == Scheme::kSubScaleMin ? 3 : (has_min(f) ? 2 : 1);
}
constexpr int x_scale_bytes(QuantFormat f) {
  return 4 * 16 * x_scale_vectors(f);
}
constexpr int64_t x_tile_bytes(QuantFormat f, int64_t blocks) {
  return x_scale_bytes(f) + blocks * (kXCodeBytes + x_scale_bytes(f));
}

struct alignas(16) OneRowBlock {
  int8_t codes[4][16];  // eight k, twice: once a column of a pair
  float sa;
  float scaled_sum;  // sa * float(xsum)
  int32_t sums[2];   // of the low and the high 16 k
};

// Codes of a quad's block as signed bytes, vector 2 * step + pair; Q4_0's are times 16.
template <DType kType>
constexpr bool kTimes16 = kType == DType::kQ4_0;

// Bits [kFrom, ...) of each byte moved to kTo, under a mask.
template <int kFrom, int kTo, int kMask>
QUIRE_NEON_INLINE uint8x16_t move_bits(uint8x16_t v) {
  if constexpr (kFrom > kTo) {
    v = vshrq_n_u8(v, kFrom - kTo);
  } else if constexpr (kFrom < kTo) {
    v = vshlq_n_u8(v, kTo - kFrom);
  }
  return vandq_u8(v, vdupq_n_u8(kMask));
}

template <DType kType>
static constexpr TableBytes kTable128 = table_bytes(quant_format(kType), 0);

template <DType kType, int kStep, int kPair>
QUIRE_NEON_INLINE int8x16_t code_vector(const uint8_t* planes) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kLow = kFormat.low_bits;
  if constexpr (kLow == 8) {
    return vreinterpretq_s8_u8(vld1q_u8(planes + 16 * (2 * kStep + kPair)));
  } else {
    const uint8x16_t from = vld1q_u8(planes + 16 * (kLow == 4 ? kStep / 2 * 2 + kPair : kPair));
    uint8x16_t code;
    if constexpr (kTimes16<kType>) {
      code = kStep % 2 == 0 ? vshlq_n_u8(from, 4) : vandq_u8(from, vdupq_n_u8(0xf0));
    } else if constexpr (kLow == 4) {
      code = kStep % 2 == 0 ? vandq_u8(from, vdupq_n_u8(15)) : vshrq_n_u8(from, 4);
    } else {
      code = move_bits<2 * kStep, 0, 3>(from);
    }
    if constexpr (kFormat.high_bits == 2) {
      code = vorrq_u8(code, move_bits<2 * kStep, kLow, 3 << kLow>(vld1q_u8(planes + 16 * kLow + 16 * kPair)));
    } else if constexpr (kFormat.high_bits == 1) {
      code = vorrq_u8(code, move_bits<2 * kStep + kPair, kLow, 1 << kLow>(vld1q_u8(planes + 16 * kLow)));
    }
    const int8x16_t value = vreinterpretq_s8_u8(code);
    if constexpr (has_table(kFormat)) return vqtbl1q_s8(vreinterpretq_s8_u8(vld1q_u8(kTable128<kType>.bytes)), code);
    if constexpr (kFormat.offset == 0 || kTimes16<kType>) return value;
    return vsubq_s8(value, vdupq_n_s8(kFormat.offset));
  }
}

template <DType kType>
QUIRE_NEON_INLINE void unpack_quad(const uint8_t* planes, int8x16_t (&out)[8]) {
  out[0] = code_vector<kType, 0, 0>(planes);
  out[1] = code_vector<kType, 0, 1>(planes);
  out[2] = code_vector<kType, 1, 0>(planes);
  out[3] = code_vector<kType, 1, 1>(planes);
  out[4] = code_vector<kType, 2, 0>(planes);
  out[5] = code_vector<kType, 2, 1>(planes);
  out[6] = code_vector<kType, 3, 0>(planes);
  out[7] = code_vector<kType, 3, 1>(planes);
}

// Integer sums of codes to float, exact.
template <DType kType>
QUIRE_NEON_INLINE float32x4_t dots_to_float(int32x4_t dots) {
  if constexpr (kTimes16<kType>) return vcvtq_n_f32_s32(dots, 4);
  return vcvtq_f32_s32(dots);
}

// The contract's scales of one block and the two quads of half a panel; what a scheme does not have stays unset.
struct HalfScales {
  float32x4_t sw[2], wm[2];
  int32x4_t sc[2][2], mn[2][2];  // [half of the block][quad]
};

QUIRE_NEON_INLINE void load_eight_halves(const uint8_t* p, float32x4_t (&out)[2]) {
  const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
  out[0] = vcvt_f32_f16(vget_low_f16(h));
  out[1] = vcvt_high_f32_f16(h);
}
QUIRE_NEON_INLINE void widen_eight(uint8x8_t v, int32x4_t (&out)[2]) {
  const uint16x8_t wide = vmovl_u8(v);
  out[0] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)));
  out[1] = vreinterpretq_s32_u32(vmovl_high_u16(wide));
}
QUIRE_NEON_INLINE void widen_eight(int8x8_t v, int32x4_t (&out)[2]) {
  const int16x8_t wide = vmovl_s8(v);
  out[0] = vmovl_s16(vget_low_s16(wide));
  out[1] = vmovl_high_s16(wide);
}

template <DType kType>
QUIRE_NEON_INLINE HalfScales load_half_scales(const uint8_t* panel_scales, int64_t block, int half, int group_shift) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kGroup = scale_group(kFormat);
  const uint8_t* record = panel_scales + scale_record_at(kFormat, block, group_shift);
  const uint8_t* part =
      record + scale_header_bytes(kFormat) + block % kGroup * block_scale_bytes(kFormat) + kPanel / 2 * half;
  HalfScales out;
  if constexpr (kFormat.scheme == Scheme::kGroupMin) {
    const auto* d = reinterpret_cast<const float*>(record) + kPanel / 2 * half;
    for (int q = 0; q < 2; ++q) {
      out.sw[q] = vld1q_f32(d + 4 * q);
      out.wm[q] = vld1q_f32(d + kPanel + 4 * q);
    }
    return out;
  }
  if constexpr (kFormat.scheme == Scheme::kExponent) {  // 2^(e-128), zero of 0
    int32x4_t e[2];
    widen_eight(vqsub_u8(vld1_u8(record + kPanel / 2 * half), vdup_n_u8(1)), e);
    for (int q = 0; q < 2; ++q) out.sw[q] = vreinterpretq_f32_s32(vshlq_n_s32(e[q], 23));
    return out;
  }
  record += kPanel * half;
  load_eight_halves(record, out.sw);
  if constexpr (has_min(kFormat)) load_eight_halves(record + 2 * kPanel, out.wm);
  if constexpr (kFormat.scheme == Scheme::kSuperMin) {
    int32x4_t sc[2], mn[2];
    widen_eight(vld1_u8(part), sc);
    widen_eight(vld1_u8(part + kPanel), mn);
    for (int q = 0; q < 2; ++q) {
      out.sw[q] = vmulq_f32(out.sw[q], vcvtq_f32_s32(sc[q]));
      out.wm[q] = vnegq_f32(vmulq_f32(out.wm[q], vcvtq_f32_s32(mn[q])));
    }
  } else if constexpr (kFormat.scheme == Scheme::kSuperScale) {
    int32x4_t sc[2];
    widen_eight(vreinterpret_s8_u8(vld1_u8(part)), sc);
    for (int q = 0; q < 2; ++q) out.sw[q] = vmulq_f32(out.sw[q], vcvtq_f32_s32(sc[q]));
  } else if constexpr (kFormat.scheme == Scheme::kSubScale) {
    for (int h = 0; h < 2; ++h) widen_eight(vreinterpret_s8_u8(vld1_u8(part + h * kPanel)), out.sc[h]);
  } else if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
    for (int q = 0; q < 2; ++q) out.wm[q] = vnegq_f32(out.wm[q]);
    for (int h = 0; h < 2; ++h) {
      const uint8x8_t both = vld1_u8(part + h * kPanel);
      widen_eight(vand_u8(both, vdup_n_u8(15)), out.sc[h]);
      widen_eight(vshr_n_u8(both, 4), out.mn[h]);
    }
  }
  return out;
}

// A zero of its own: the compiler would copy one that it keeps, which costs what a movi does not.
QUIRE_NEON_INLINE int32x4_t fresh_zero() {
  int32x4_t zero;
  __asm__ volatile("movi %0.4s, #0" : "=w"(zero));
  return zero;
}

// Where results go: four columns of one row, bias added; the last quads of a weight may be partly beyond its columns.
struct Output {
  float* y;
  int64_t stride;
  const float* bias;
  int64_t columns;
};
QUIRE_NEON_INLINE Output output_of(const LinearArgs& args, const PackedView& w) {
  return {static_cast<float*>(args.out.data), args.out.stride, args.bias, w.n};
}
QUIRE_NEON_INLINE void put_quad(const Output& out, int64_t row, int64_t column, float32x4_t sum) {
  float* y = out.y + row * out.stride + column;
  if (column + 4 <= out.columns) {
    vst1q_f32(y, out.bias == nullptr ? sum : vaddq_f32(sum, vld1q_f32(out.bias + column)));
    return;
  }
  float sums[4];
  vst1q_f32(sums, sum);
  for (int64_t c = 0; column + c < out.columns; ++c)
    y[c] = out.bias == nullptr ? sums[c] : sums[c] + out.bias[column + c];
}
// Two registers of a row pair, {r0c0 r0c1 r1c0 r1c1} and {r0c2 r0c3 r1c2 r1c3}; rows: 1 or more.
QUIRE_NEON_INLINE void put_pair(const Output& out, int64_t row, int64_t rows, int64_t column, float32x4_t left,
                                float32x4_t right) {
  if (column >= out.columns) return;
  const float64x2_t a = vreinterpretq_f64_f32(left);
  const float64x2_t b = vreinterpretq_f64_f32(right);
  put_quad(out, row, column, vreinterpretq_f32_f64(vzip1q_f64(a, b)));
  if (rows > 1) put_quad(out, row + 1, column, vreinterpretq_f32_f64(vzip2q_f64(a, b)));
}

}  // namespace quire::cpu::QUIRE_ISA_NS
