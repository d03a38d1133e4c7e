// SPDX-License-Identifier: Apache-2.0
// F32x16 in one AVX-512 register; see simd.h, which includes this file.
#pragma once

#include <immintrin.h>

namespace quire::cpu::QUIRE_ISA_NS {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct Mask16 {
  __mmask16 v;
};

QUIRE_INLINE Mask16 first_lanes(int64_t n) {
  return {static_cast<__mmask16>((1u << n) - 1u)};
}

QUIRE_INLINE F32x16 zero() {
  return {_mm512_setzero_ps()};
}
QUIRE_INLINE F32x16 splat(float x) {
  return {_mm512_set1_ps(x)};
}
QUIRE_INLINE float first(F32x16 a) {
  return _mm512_cvtss_f32(a.v);
}
QUIRE_INLINE F32x16 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
QUIRE_INLINE F32x16 load_n(const float* p, int64_t n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n).v, p)};
}
QUIRE_INLINE void store(float* p, F32x16 a) {
  _mm512_storeu_ps(p, a.v);
}
QUIRE_INLINE void store_n(float* p, F32x16 a, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n).v, a.v);
}

QUIRE_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
QUIRE_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
QUIRE_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
QUIRE_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
QUIRE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
QUIRE_INLINE F32x16 sqrt(F32x16 a) {
  return {_mm512_sqrt_ps(a.v)};
}
QUIRE_INLINE F32x16 max(F32x16 a, F32x16 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
QUIRE_INLINE F32x16 min(F32x16 a, F32x16 b) {
  return {_mm512_min_ps(a.v, b.v)};
}

QUIRE_INLINE I32x16 bits(F32x16 a) {
  return {_mm512_castps_si512(a.v)};
}
QUIRE_INLINE F32x16 from_bits(I32x16 a) {
  return {_mm512_castsi512_ps(a.v)};
}
QUIRE_INLINE F32x16 to_float(I32x16 a) {
  return {_mm512_cvtepi32_ps(a.v)};
}
QUIRE_INLINE I32x16 isplat(int32_t x) {
  return {_mm512_set1_epi32(x)};
}
QUIRE_INLINE I32x16 iadd(I32x16 a, I32x16 b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
QUIRE_INLINE I32x16 isub(I32x16 a, I32x16 b) {
  return {_mm512_sub_epi32(a.v, b.v)};
}
QUIRE_INLINE I32x16 iand(I32x16 a, I32x16 b) {
  return {_mm512_and_si512(a.v, b.v)};
}
QUIRE_INLINE I32x16 ior(I32x16 a, I32x16 b) {
  return {_mm512_or_si512(a.v, b.v)};
}
QUIRE_INLINE I32x16 ixor(I32x16 a, I32x16 b) {
  return {_mm512_xor_si512(a.v, b.v)};
}
template <int kCount>
QUIRE_INLINE I32x16 shl(I32x16 a) {
  return {_mm512_slli_epi32(a.v, kCount)};
}
template <int kCount>
QUIRE_INLINE I32x16 shr(I32x16 a) {
  return {_mm512_srli_epi32(a.v, kCount)};
}
template <int kCount>
QUIRE_INLINE I32x16 sar(I32x16 a) {
  return {_mm512_srai_epi32(a.v, kCount)};
}
QUIRE_INLINE F32x16 neg(F32x16 a) {
  return from_bits(ixor(bits(a), isplat(INT32_MIN)));
}
QUIRE_INLINE F32x16 abs(F32x16 a) {
  return from_bits(iand(bits(a), isplat(INT32_MAX)));
}

QUIRE_INLINE Mask16 lt(F32x16 a, F32x16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
QUIRE_INLINE Mask16 le(F32x16 a, F32x16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)};
}
QUIRE_INLINE Mask16 gt(F32x16 a, F32x16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)};
}
QUIRE_INLINE Mask16 ge(F32x16 a, F32x16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)};
}
QUIRE_INLINE Mask16 eq(F32x16 a, F32x16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)};
}
QUIRE_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) {
  return {_mm512_mask_blend_ps(m.v, b.v, a.v)};
}

// Lanes 0, 2, 4, ... and 1, 3, 5, ... of the 32 lanes x, y; and back.
QUIRE_INLINE void deinterleave(F32x16 x, F32x16 y, F32x16* even, F32x16* odd) {
  const __m512i ramp = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even->v = _mm512_permutex2var_ps(x.v, ramp, y.v);
  odd->v = _mm512_permutex2var_ps(x.v, _mm512_add_epi32(ramp, _mm512_set1_epi32(1)), y.v);
}
QUIRE_INLINE void interleave(F32x16 even, F32x16 odd, F32x16* x, F32x16* y) {
  const __m512i ramp = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  x->v = _mm512_permutex2var_ps(even.v, ramp, odd.v);
  y->v = _mm512_permutex2var_ps(even.v, _mm512_add_epi32(ramp, _mm512_set1_epi32(8)), odd.v);
}

// Lanes fold 8, 4, 2, 1: lane i takes lane i+8, then i+4, i+2, i+1.
QUIRE_INLINE float reduce_add(F32x16 a) {
  const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
QUIRE_INLINE float reduce_max(F32x16 a) {
  const __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

QUIRE_INLINE F32x16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
QUIRE_INLINE F32x16 load_f16_n(const uint16_t* p, int64_t n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n).v, p))};
}
QUIRE_INLINE void store_f16(uint16_t* p, F32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
QUIRE_INLINE void store_f16_n(uint16_t* p, F32x16 a, int64_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n).v, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

QUIRE_INLINE F32x16 load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
QUIRE_INLINE F32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n).v, p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// By integers: the machine's own bf16 conversion flushes subnormals.
QUIRE_INLINE __m256i round_to_bf16(F32x16 a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i high = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
}
QUIRE_INLINE void store_bf16(uint16_t* p, F32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bf16(a));
}
QUIRE_INLINE void store_bf16_n(uint16_t* p, F32x16 a, int64_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n).v, round_to_bf16(a));
}

}  // namespace quire::cpu::QUIRE_ISA_NS
