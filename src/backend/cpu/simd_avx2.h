// SPDX-License-Identifier: Apache-2.0
// F32x16 in two AVX2 registers (with FMA and F16C); see simd.h, which includes this file.
#pragma once

#include <immintrin.h>

namespace quire::cpu::QUIRE_ISA_NS {

struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};
struct Mask16 {  // all bits of a lane set or clear
  __m256 lo, hi;
};

QUIRE_INLINE F32x16 zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
QUIRE_INLINE F32x16 splat(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
QUIRE_INLINE float first(F32x16 a) {
  return _mm256_cvtss_f32(a.lo);
}

QUIRE_INLINE Mask16 first_lanes(int64_t n) {
  const __m256i count = _mm256_set1_epi32(static_cast<int32_t>(n));
  const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, low)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, high))};
}

QUIRE_INLINE F32x16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
QUIRE_INLINE F32x16 load_n(const float* p, int64_t n) {
  const Mask16 m = first_lanes(n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
QUIRE_INLINE void store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
QUIRE_INLINE void store_n(float* p, F32x16 a, int64_t n) {
  const Mask16 m = first_lanes(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}

QUIRE_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
QUIRE_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
QUIRE_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
QUIRE_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
QUIRE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
QUIRE_INLINE F32x16 sqrt(F32x16 a) {
  return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)};
}
QUIRE_INLINE F32x16 max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
QUIRE_INLINE F32x16 min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

QUIRE_INLINE I32x16 bits(F32x16 a) {
  return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
QUIRE_INLINE F32x16 from_bits(I32x16 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
QUIRE_INLINE F32x16 to_float(I32x16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
QUIRE_INLINE I32x16 isplat(int32_t x) {
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
QUIRE_INLINE I32x16 iadd(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
QUIRE_INLINE I32x16 isub(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
QUIRE_INLINE I32x16 iand(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
QUIRE_INLINE I32x16 ior(I32x16 a, I32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
QUIRE_INLINE I32x16 ixor(I32x16 a, I32x16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
template <int kCount>
QUIRE_INLINE I32x16 shl(I32x16 a) {
  return {_mm256_slli_epi32(a.lo, kCount), _mm256_slli_epi32(a.hi, kCount)};
}
template <int kCount>
QUIRE_INLINE I32x16 shr(I32x16 a) {
  return {_mm256_srli_epi32(a.lo, kCount), _mm256_srli_epi32(a.hi, kCount)};
}
template <int kCount>
QUIRE_INLINE I32x16 sar(I32x16 a) {
  return {_mm256_srai_epi32(a.lo, kCount), _mm256_srai_epi32(a.hi, kCount)};
}
QUIRE_INLINE F32x16 neg(F32x16 a) {
  return from_bits(ixor(bits(a), isplat(INT32_MIN)));
}
QUIRE_INLINE F32x16 abs(F32x16 a) {
  return from_bits(iand(bits(a), isplat(INT32_MAX)));
}

QUIRE_INLINE Mask16 lt(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
QUIRE_INLINE Mask16 le(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
}
QUIRE_INLINE Mask16 gt(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
QUIRE_INLINE Mask16 ge(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)};
}
QUIRE_INLINE Mask16 eq(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
QUIRE_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

// Lanes 0, 2, 4, ... and 1, 3, 5, ... of the 32 lanes x, y; and back.
QUIRE_INLINE __m256 quarters_0213(__m256 a) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8));
}
QUIRE_INLINE void deinterleave(F32x16 x, F32x16 y, F32x16* even, F32x16* odd) {
  *even = {quarters_0213(_mm256_shuffle_ps(x.lo, x.hi, 0x88)), quarters_0213(_mm256_shuffle_ps(y.lo, y.hi, 0x88))};
  *odd = {quarters_0213(_mm256_shuffle_ps(x.lo, x.hi, 0xdd)), quarters_0213(_mm256_shuffle_ps(y.lo, y.hi, 0xdd))};
}
QUIRE_INLINE void interleave(F32x16 even, F32x16 odd, F32x16* x, F32x16* y) {
  const __m256 el = quarters_0213(even.lo), ol = quarters_0213(odd.lo);
  const __m256 eh = quarters_0213(even.hi), oh = quarters_0213(odd.hi);
  *x = {_mm256_unpacklo_ps(el, ol), _mm256_unpackhi_ps(el, ol)};
  *y = {_mm256_unpacklo_ps(eh, oh), _mm256_unpackhi_ps(eh, oh)};
}

// Lanes fold 8, 4, 2, 1: lane i takes lane i+8, then i+4, i+2, i+1.
QUIRE_INLINE float reduce_add(F32x16 a) {
  const __m256 x = _mm256_add_ps(a.lo, a.hi);
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
QUIRE_INLINE float reduce_max(F32x16 a) {
  const __m256 x = _mm256_max_ps(a.lo, a.hi);
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

// A partial group of 16-bit elements goes through a buffer: AVX2 has no 16-bit mask.
struct Halves {
  alignas(32) uint16_t x[16];
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
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
QUIRE_INLINE F32x16 load_f16_n(const uint16_t* p, int64_t n) {
  return load_f16(copy_in(p, n).x);
}
QUIRE_INLINE void store_f16(uint16_t* p, F32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
QUIRE_INLINE void store_f16_n(uint16_t* p, F32x16 a, int64_t n) {
  Halves h;
  store_f16(h.x, a);
  copy_out(p, h, n);
}

QUIRE_INLINE __m256 widen_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
QUIRE_INLINE F32x16 load_bf16(const uint16_t* p) {
  return {widen_bf16(p), widen_bf16(p + 8)};
}
QUIRE_INLINE F32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  return load_bf16(copy_in(p, n).x);
}
QUIRE_INLINE __m256i round_to_bf16(__m256 a) {  // 8 results in 32-bit lanes
  const __m256i u = _mm256_castps_si256(a);
  const __m256i high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}
QUIRE_INLINE void store_bf16(uint16_t* p, F32x16 a) {
  const __m256i packed = _mm256_packus_epi32(round_to_bf16(a.lo), round_to_bf16(a.hi));  // by 128-bit halves
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
QUIRE_INLINE void store_bf16_n(uint16_t* p, F32x16 a, int64_t n) {
  Halves h;
  store_bf16(h.x, a);
  copy_out(p, h, n);
}

}  // namespace quire::cpu::QUIRE_ISA_NS
