// SPDX-License-Identifier: Apache-2.0
// F32x16: sixteen virtual float lanes with one implementation per ISA compile, so that a kernel is written once.
//
// Every operation is a correctly rounded IEEE operation or moves bits, so all ISA levels give the same bits (a NaN
// stays a NaN, its payload is not promised). All is in the namespace of the ISA level and always inlined: two levels in
// one binary never share a function. Kernels include this header and base/check.h, and no other inline code.
//
// Each implementation provides (read simd_avx512.h first):
//   F32x16, I32x16, Mask16
//   zero() splat(x) load(p) load_n(p, n) store(p, v) store_n(p, v, n)      n in 0..16; lanes past n load as zero
//   load_f16 load_f16_n store_f16 store_f16_n, and the same for bf16       bits as in base/half.h
//   + - * /  fma(a, b, c)  neg  abs  sqrt  max  min                        max is a > b ? a : b, min a < b ? a : b
//   lt le gt ge eq  first_lanes(n)  select(mask, a, b)                     an unordered comparison is false
//   bits(f) from_bits(i) to_float(i) isplat iadd isub iand ior shl<n> shr<n> sar<n>    32-bit lanes
//   deinterleave interleave                                               pairs of neighbours to even and odd, and back
//   reduce_add(v) reduce_max(v)  first(v)                                   lanes fold 8, 4, 2, 1
#pragma once

#include <cstdint>

#define QUIRE_INLINE static inline __attribute__((always_inline))

// The build sets the namespace of each ISA level; a compile without it derives one from its flags.
#ifndef QUIRE_ISA_NS
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define QUIRE_ISA_NS isa_avx512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define QUIRE_ISA_NS isa_avx2
#else
#define QUIRE_ISA_NS isa_portable
#endif
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "backend/cpu/simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "backend/cpu/simd_avx2.h"
#elif defined(__aarch64__)
#include "backend/cpu/simd_neon.h"
#else
#include "backend/cpu/simd_portable.h"
#endif

namespace quire::cpu::QUIRE_ISA_NS {

constexpr int64_t kLanes = 16;

// A scalar fma with the bits of the vector one, also on machines without the instruction.
QUIRE_INLINE float fma1(float a, float b, float c) {
  return first(fma(splat(a), splat(b), splat(c)));
}
QUIRE_INLINE float sqrt1(float a) {
  return first(sqrt(splat(a)));
}
QUIRE_INLINE float max1(float a, float b) {
  return a > b ? a : b;
}

// Element access by storage type, for kernels that are templates over it.
struct StoredF32 {
  using Type = float;
  QUIRE_INLINE F32x16 get(const float* p) { return load(p); }
  QUIRE_INLINE F32x16 get_n(const float* p, int64_t n) { return load_n(p, n); }
  QUIRE_INLINE void put(float* p, F32x16 v) { store(p, v); }
  QUIRE_INLINE void put_n(float* p, F32x16 v, int64_t n) { store_n(p, v, n); }
};
struct StoredF16 {
  using Type = uint16_t;
  QUIRE_INLINE F32x16 get(const uint16_t* p) { return load_f16(p); }
  QUIRE_INLINE F32x16 get_n(const uint16_t* p, int64_t n) { return load_f16_n(p, n); }
  QUIRE_INLINE void put(uint16_t* p, F32x16 v) { store_f16(p, v); }
  QUIRE_INLINE void put_n(uint16_t* p, F32x16 v, int64_t n) { store_f16_n(p, v, n); }
};
struct StoredBF16 {
  using Type = uint16_t;
  QUIRE_INLINE F32x16 get(const uint16_t* p) { return load_bf16(p); }
  QUIRE_INLINE F32x16 get_n(const uint16_t* p, int64_t n) { return load_bf16_n(p, n); }
  QUIRE_INLINE void put(uint16_t* p, F32x16 v) { store_bf16(p, v); }
  QUIRE_INLINE void put_n(uint16_t* p, F32x16 v, int64_t n) { store_bf16_n(p, v, n); }
};

}  // namespace quire::cpu::QUIRE_ISA_NS
