// SPDX-License-Identifier: Apache-2.0
// Elements of one byte as KV pages hold them: int8 codes and the two fp8 types, sixteen at a time; bits as in
// base/half.h. Apart from simd.h because nothing but attention's pages needs them.
#pragma once

#include "backend/cpu/simd_math.h"

namespace quire::cpu::QUIRE_ISA_NS {

// Sixteen bytes as 32-bit lanes, by value or with their sign; and the low bytes of sixteen lanes.
#if defined(__AVX512F__) && defined(__AVX512BW__)
QUIRE_INLINE I32x16 load_u8(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
QUIRE_INLINE I32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
QUIRE_INLINE void store_8(void* p, I32x16 x) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
#else
#if defined(__AVX2__)
QUIRE_INLINE I32x16 load_u8(const uint8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
QUIRE_INLINE I32x16 load_i8(const int8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
#else
template <typename Byte>
QUIRE_INLINE I32x16 load_bytes(const Byte* p) {
  int32_t wide[16];
  for (int i = 0; i < 16; ++i) wide[i] = p[i];
  I32x16 out;
  static_assert(sizeof out == sizeof wide);
  __builtin_memcpy(&out, wide, sizeof out);
  return out;
}
QUIRE_INLINE I32x16 load_u8(const uint8_t* p) {
  return load_bytes(p);
}
QUIRE_INLINE I32x16 load_i8(const int8_t* p) {
  return load_bytes(p);
}
#endif
QUIRE_INLINE void store_8(void* p, I32x16 x) {
  int32_t wide[16];
  uint8_t bytes[16];
  __builtin_memcpy(wide, &x, sizeof wide);
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(wide[i]);
  __builtin_memcpy(p, bytes, sizeof bytes);
}
#endif

#if defined(__AVX2__)
// Sixteen fp16 of which a code is the upper part: the machine widens those, subnormals too.
QUIRE_INLINE F32x16 widen_halves(__m256i halves) {
#if defined(__AVX512F__)
  return {_mm512_cvtph_ps(halves)};
#else
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
#endif
}
#endif

// The float with `code`'s low seven bits as its exponent and top bits of its mantissa, of which a code has kMantissa;
// `bias` is what the exponents differ by. The least exponent stands for 0 and up, in steps of its own.
template <int kMantissa>
QUIRE_INLINE F32x16 widen_f8(I32x16 code, int bias) {
  const I32x16 high = shl<23 - kMantissa>(iand(code, isplat(0x7f)));
  const F32x16 normal = from_bits(iadd(high, isplat(bias << 23)));
  const F32x16 least = from_bits(isplat((bias + 1) << 23));
  const F32x16 small = from_bits(iadd(high, bits(least))) - least;
  return select(lt(normal, least), small, normal);
}
// The inverse for magnitudes that a code can hold; rounds to nearest even. unit: one whose steps are the code's least.
template <int kMantissa>
QUIRE_INLINE I32x16 narrow_f8(F32x16 a, int bias, float unit) {
  constexpr int kDropped = 23 - kMantissa;
  const I32x16 odd = iand(shr<kDropped>(bits(a)), isplat(1));
  const I32x16 rounded = shr<kDropped>(iadd(bits(a), iadd(isplat((1 << (kDropped - 1)) - 1), odd)));
  const I32x16 normal = isub(rounded, isplat(bias << kMantissa));
  const I32x16 small = isub(bits(a + splat(unit)), bits(splat(unit)));
  const F32x16 least = from_bits(isplat((bias + 1) << 23));
  return bits(select(lt(a, least), from_bits(small), from_bits(normal)));
}
QUIRE_INLINE F32x16 with_code_sign(F32x16 magnitude, I32x16 code) {
  return from_bits(ior(bits(magnitude), shl<24>(iand(code, isplat(0x80)))));
}
QUIRE_INLINE void store_code(uint8_t* p, I32x16 code, F32x16 x, int nan) {
  const I32x16 number = bits(select(eq(x, x), from_bits(code), from_bits(isplat(nan))));
  store_8(p, ior(number, shr<24>(iand(bits(x), isplat(INT32_MIN)))));
}

struct StoredF8E4M3 {  // no infinities; 0x7f is a NaN
  using Type = uint8_t;
  QUIRE_INLINE F32x16 get(const uint8_t* p) {
    const F32x16 nan = splat(__builtin_nanf(""));
#if defined(__AVX2__)
    // Exponents of fp16 are biased by 8 more; of the sign's two copies the lower one goes.
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(-0x4001));
    const F32x16 x = widen_halves(halves) * splat(256.0f);
    return select(gt(abs(x), splat(448.0f)), nan, x);
#else
    const I32x16 code = load_u8(p);
    const F32x16 a = widen_f8<3>(code, 120);
    return with_code_sign(select(gt(a, splat(448.0f)), nan, a), code);
#endif
  }
  QUIRE_INLINE void put(uint8_t* p, F32x16 x) {
    store_code(p, narrow_f8<3>(min(abs(x), splat(448.0f)), 120, 0x1p14f), x, 0x7f);
  }
};

struct StoredF8E5M2 {
  using Type = uint8_t;
  QUIRE_INLINE F32x16 get(const uint8_t* p) {
#if defined(__AVX2__)
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return widen_halves(_mm256_slli_epi16(wide, 8));
#else
    const I32x16 code = load_u8(p);
    F32x16 a = widen_f8<2>(code, 112);
    a = select(gt(a, splat(65536.0f)), splat(__builtin_nanf("")), a);
    return with_code_sign(select(eq(a, splat(65536.0f)), splat(__builtin_inff()), a), code);
#endif
  }
  QUIRE_INLINE void put(uint8_t* p, F32x16 x) {
    store_code(p, narrow_f8<2>(min(abs(x), splat(57344.0f)), 112, 0x1p7f), x, 0x7f);
  }
};

// Codes alone: what they stand for is float(code) times a scale.
struct StoredI8 {
  using Type = int8_t;
  QUIRE_INLINE F32x16 get(const int8_t* p) { return to_float(load_i8(p)); }
  QUIRE_INLINE void put(int8_t* p, F32x16 x) {  // |x| is at most 127 and a half
    store_8(p, isub(bits(x + splat(kRoundMagic)), bits(splat(kRoundMagic))));
  }
};

}  // namespace quire::cpu::QUIRE_ISA_NS
