// SPDX-License-Identifier: Apache-2.0
// F32x16 in four NEON registers, for baseline aarch64; see simd.h, which includes this file.
#pragma once

#include <arm_neon.h>

namespace quire::cpu::QUIRE_ISA_NS {

struct F32x16 {
  float32x4_t a, b, c, d;
};
struct I32x16 {
  int32x4_t a, b, c, d;
};
struct Mask16 {  // all bits of a lane set or clear
  uint32x4_t a, b, c, d;
};

// Applies an intrinsic to each quarter.
#define QUIRE_NEON1(f, x) \
  { f(x.a), f(x.b), f(x.c), f(x.d) }
#define QUIRE_NEON2(f, x, y) \
  { f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d) }
#define QUIRE_NEON3(f, x, y, z) \
  { f(x.a, y.a, z.a), f(x.b, y.b, z.b), f(x.c, y.c, z.c), f(x.d, y.d, z.d) }

QUIRE_INLINE F32x16 splat(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
QUIRE_INLINE F32x16 zero() {
  return splat(0.0f);
}
QUIRE_INLINE float first(F32x16 x) {
  return vgetq_lane_f32(x.a, 0);
}

QUIRE_INLINE Mask16 first_lanes(int64_t n) {
  const int32x4_t count = vdupq_n_s32(static_cast<int32_t>(n));
  const int32x4_t ramp = {0, 1, 2, 3};
  return {vcgtq_s32(count, ramp), vcgtq_s32(count, vaddq_s32(ramp, vdupq_n_s32(4))),
          vcgtq_s32(count, vaddq_s32(ramp, vdupq_n_s32(8))), vcgtq_s32(count, vaddq_s32(ramp, vdupq_n_s32(12)))};
}

QUIRE_INLINE F32x16 load(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
QUIRE_INLINE void store(float* p, F32x16 x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
QUIRE_INLINE F32x16 load_n(const float* p, int64_t n) {
  float buffer[16] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
QUIRE_INLINE void store_n(float* p, F32x16 x, int64_t n) {
  float buffer[16];
  store(buffer, x);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

QUIRE_INLINE F32x16 operator+(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(vaddq_f32, x, y);
}
QUIRE_INLINE F32x16 operator-(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(vsubq_f32, x, y);
}
QUIRE_INLINE F32x16 operator*(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(vmulq_f32, x, y);
}
QUIRE_INLINE F32x16 operator/(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(vdivq_f32, x, y);
}
QUIRE_INLINE F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return QUIRE_NEON3(vfmaq_f32, z, x, y);  // the addend comes first
}
QUIRE_INLINE F32x16 sqrt(F32x16 x) {
  return QUIRE_NEON1(vsqrtq_f32, x);
}
QUIRE_INLINE F32x16 neg(F32x16 x) {
  return QUIRE_NEON1(vnegq_f32, x);
}
QUIRE_INLINE F32x16 abs(F32x16 x) {
  return QUIRE_NEON1(vabsq_f32, x);
}

QUIRE_INLINE I32x16 bits(F32x16 x) {
  return QUIRE_NEON1(vreinterpretq_s32_f32, x);
}
QUIRE_INLINE F32x16 from_bits(I32x16 x) {
  return QUIRE_NEON1(vreinterpretq_f32_s32, x);
}
QUIRE_INLINE F32x16 to_float(I32x16 x) {
  return QUIRE_NEON1(vcvtq_f32_s32, x);
}
QUIRE_INLINE I32x16 isplat(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {v, v, v, v};
}
QUIRE_INLINE I32x16 iadd(I32x16 x, I32x16 y) {
  return QUIRE_NEON2(vaddq_s32, x, y);
}
QUIRE_INLINE I32x16 isub(I32x16 x, I32x16 y) {
  return QUIRE_NEON2(vsubq_s32, x, y);
}
QUIRE_INLINE I32x16 iand(I32x16 x, I32x16 y) {
  return QUIRE_NEON2(vandq_s32, x, y);
}
QUIRE_INLINE I32x16 ior(I32x16 x, I32x16 y) {
  return QUIRE_NEON2(vorrq_s32, x, y);
}
QUIRE_INLINE I32x16 ixor(I32x16 x, I32x16 y) {
  return QUIRE_NEON2(veorq_s32, x, y);
}
template <int kCount>
QUIRE_INLINE I32x16 shl(I32x16 x) {
  return {vshlq_n_s32(x.a, kCount), vshlq_n_s32(x.b, kCount), vshlq_n_s32(x.c, kCount), vshlq_n_s32(x.d, kCount)};
}
template <int kCount>
QUIRE_INLINE int32x4_t shr4(int32x4_t x) {
  return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), kCount));
}
template <int kCount>
QUIRE_INLINE I32x16 shr(I32x16 x) {
  return {shr4<kCount>(x.a), shr4<kCount>(x.b), shr4<kCount>(x.c), shr4<kCount>(x.d)};
}
template <int kCount>
QUIRE_INLINE I32x16 sar(I32x16 x) {
  return {vshrq_n_s32(x.a, kCount), vshrq_n_s32(x.b, kCount), vshrq_n_s32(x.c, kCount), vshrq_n_s32(x.d, kCount)};
}

QUIRE_INLINE Mask16 lt(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(vcltq_f32, x, y);
}
QUIRE_INLINE Mask16 le(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(vcleq_f32, x, y);
}
QUIRE_INLINE Mask16 gt(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(vcgtq_f32, x, y);
}
QUIRE_INLINE Mask16 ge(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(vcgeq_f32, x, y);
}
QUIRE_INLINE Mask16 eq(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(vceqq_f32, x, y);
}
QUIRE_INLINE F32x16 select(Mask16 m, F32x16 x, F32x16 y) {
  return QUIRE_NEON3(vbslq_f32, m, x, y);
}

// By comparison: fmax would order zeros and spread NaN otherwise than the other ISA levels do.
QUIRE_INLINE float32x4_t max4(float32x4_t x, float32x4_t y) {
  return vbslq_f32(vcgtq_f32(x, y), x, y);
}
QUIRE_INLINE float32x4_t min4(float32x4_t x, float32x4_t y) {
  return vbslq_f32(vcltq_f32(x, y), x, y);
}
QUIRE_INLINE F32x16 max(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(max4, x, y);
}
QUIRE_INLINE F32x16 min(F32x16 x, F32x16 y) {
  return QUIRE_NEON2(min4, x, y);
}

// Lanes 0, 2, 4, ... and 1, 3, 5, ... of the 32 lanes x, y; and back.
QUIRE_INLINE void deinterleave(F32x16 x, F32x16 y, F32x16* even, F32x16* odd) {
  *even = {vuzp1q_f32(x.a, x.b), vuzp1q_f32(x.c, x.d), vuzp1q_f32(y.a, y.b), vuzp1q_f32(y.c, y.d)};
  *odd = {vuzp2q_f32(x.a, x.b), vuzp2q_f32(x.c, x.d), vuzp2q_f32(y.a, y.b), vuzp2q_f32(y.c, y.d)};
}
QUIRE_INLINE void interleave(F32x16 even, F32x16 odd, F32x16* x, F32x16* y) {
  *x = {vzip1q_f32(even.a, odd.a), vzip2q_f32(even.a, odd.a), vzip1q_f32(even.b, odd.b), vzip2q_f32(even.b, odd.b)};
  *y = {vzip1q_f32(even.c, odd.c), vzip2q_f32(even.c, odd.c), vzip1q_f32(even.d, odd.d), vzip2q_f32(even.d, odd.d)};
}

// Lanes fold 8, 4, 2, 1: lane i takes lane i+8, then i+4, i+2, i+1.
QUIRE_INLINE float reduce_add(F32x16 x) {
  const float32x4_t y = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  const float32x4_t z = vaddq_f32(y, vextq_f32(y, y, 2));
  return vgetq_lane_f32(vaddq_f32(z, vextq_f32(z, z, 1)), 0);
}
QUIRE_INLINE float reduce_max(F32x16 x) {
  const float32x4_t y = max4(max4(x.a, x.c), max4(x.b, x.d));
  const float32x4_t z = max4(y, vextq_f32(y, y, 2));
  return vgetq_lane_f32(max4(z, vextq_f32(z, z, 1)), 0);
}

struct Halves {
  alignas(16) uint16_t x[16];
};
QUIRE_INLINE Halves copy_in(const uint16_t* p, int64_t n) {
  Halves h = {};
  for (int64_t i = 0; i < n; ++i) h.x[i] = p[i];
  return h;
}
QUIRE_INLINE void copy_out(uint16_t* p, const Halves& h, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = h.x[i];
}

QUIRE_INLINE F32x16 load_f16(const uint16_t* p) {
  const float16x8_t lo = vreinterpretq_f16_u16(vld1q_u16(p));
  const float16x8_t hi = vreinterpretq_f16_u16(vld1q_u16(p + 8));
  return {vcvt_f32_f16(vget_low_f16(lo)), vcvt_high_f32_f16(lo), vcvt_f32_f16(vget_low_f16(hi)), vcvt_high_f32_f16(hi)};
}
QUIRE_INLINE F32x16 load_f16_n(const uint16_t* p, int64_t n) {
  return load_f16(copy_in(p, n).x);
}
QUIRE_INLINE void store_f16(uint16_t* p, F32x16 x) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
  vst1q_u16(p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)));
}
QUIRE_INLINE void store_f16_n(uint16_t* p, F32x16 x, int64_t n) {
  Halves h;
  store_f16(h.x, x);
  copy_out(p, h, n);
}

QUIRE_INLINE F32x16 load_bf16(const uint16_t* p) {
  // Interleaved with zeros rather than shifted: every vector pipe of a core can do that, half of them shift.
  const uint16x8_t zeros = vdupq_n_u16(0);
  const uint16x8_t lo = vld1q_u16(p);
  const uint16x8_t hi = vld1q_u16(p + 8);
  return {vreinterpretq_f32_u16(vzip1q_u16(zeros, lo)), vreinterpretq_f32_u16(vzip2q_u16(zeros, lo)),
          vreinterpretq_f32_u16(vzip1q_u16(zeros, hi)), vreinterpretq_f32_u16(vzip2q_u16(zeros, hi))};
}
QUIRE_INLINE F32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  return load_bf16(copy_in(p, n).x);
}
QUIRE_INLINE uint16x4_t round_to_bf16(float32x4_t x) {
  const uint32x4_t u = vreinterpretq_u32_f32(x);
  const uint32x4_t high = vshrq_n_u32(u, 16);
  const uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
  const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd), 16);
  return vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(high, vdupq_n_u32(0x40))));
}
QUIRE_INLINE void store_bf16(uint16_t* p, F32x16 x) {
  vst1q_u16(p, vcombine_u16(round_to_bf16(x.a), round_to_bf16(x.b)));
  vst1q_u16(p + 8, vcombine_u16(round_to_bf16(x.c), round_to_bf16(x.d)));
}
QUIRE_INLINE void store_bf16_n(uint16_t* p, F32x16 x, int64_t n) {
  Halves h;
  store_bf16(h.x, x);
  copy_out(p, h, n);
}

#undef QUIRE_NEON1
#undef QUIRE_NEON2
#undef QUIRE_NEON3

}  // namespace quire::cpu::QUIRE_ISA_NS
