// SPDX-License-Identifier: Apache-2.0
// F32x16 in four of the compiler's generic vectors of 16 bytes, for machines without a level of their own; see simd.h,
// which includes this file. Generic vectors, not loops over an array: they become the machine's own (SSE2 on x86), and
// a sanitizer build compiles them in seconds.
#pragma once

#include <cmath>

#include "base/half.h"

#define QUIRE_EMULATED_FMA 1

namespace quire::cpu::QUIRE_ISA_NS {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef uint32_t Uint4 __attribute__((vector_size(16)));
typedef float Float2 __attribute__((vector_size(8)));
typedef double Double2 __attribute__((vector_size(16)));
typedef int64_t Long2 __attribute__((vector_size(16)));

struct F32x16 {
  Float4 a, b, c, d;
};
struct I32x16 {
  Int4 a, b, c, d;
};
struct Mask16 {  // all bits of a lane set or clear
  Int4 a, b, c, d;
};

QUIRE_INLINE F32x16 splat(float x) {
  const Float4 v = {x, x, x, x};
  return {v, v, v, v};
}
QUIRE_INLINE F32x16 zero() {
  return splat(0.0f);
}
QUIRE_INLINE float first(const F32x16& x) {
  return x.a[0];
}
QUIRE_INLINE Mask16 first_lanes(int64_t n) {
  const auto k = static_cast<int32_t>(n);
  const Int4 count = {k, k, k, k};
  const Int4 ramp = {0, 1, 2, 3};
  return {count > ramp, count > ramp + 4, count > ramp + 8, count > ramp + 12};
}

QUIRE_INLINE F32x16 load(const float* p) {
  F32x16 r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
QUIRE_INLINE void store(float* p, const F32x16& x) {
  __builtin_memcpy(p, &x, sizeof x);
}
QUIRE_INLINE F32x16 load_n(const float* p, int64_t n) {
  float buffer[16] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
QUIRE_INLINE void store_n(float* p, const F32x16& x, int64_t n) {
  float buffer[16];
  store(buffer, x);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

QUIRE_INLINE F32x16 operator+(const F32x16& x, const F32x16& y) {
  return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d};
}
QUIRE_INLINE F32x16 operator-(const F32x16& x, const F32x16& y) {
  return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d};
}
QUIRE_INLINE F32x16 operator*(const F32x16& x, const F32x16& y) {
  return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d};
}
QUIRE_INLINE F32x16 operator/(const F32x16& x, const F32x16& y) {
  return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d};
}

// Each half of four floats as doubles, and back with one rounding. The vectors of doubles have 16 bytes, too: gcc 12
// compares larger ones lane by lane where the machine has no larger registers.
QUIRE_INLINE Double2 low_half(const Float4& x) {
  return __builtin_convertvector(__builtin_shufflevector(x, x, 0, 1), Double2);
}
QUIRE_INLINE Double2 high_half(const Float4& x) {
  return __builtin_convertvector(__builtin_shufflevector(x, x, 2, 3), Double2);
}
QUIRE_INLINE Float4 rounded(const Double2& low, const Double2& high) {
  return __builtin_shufflevector(__builtin_convertvector(low, Float2), __builtin_convertvector(high, Float2), 0, 1, 2,
                                 3);
}
// The product of two floats is exact in a double; the sum's rounding error e is exact too (Knuth). Where e is not zero,
// the sum is moved to the neighbour with an odd last bit (rounding to odd), after which the second rounding, to float,
// cannot go wrong: 53 >= 24 + 2 bits. A sum that is infinite or NaN has e = NaN and stays.
QUIRE_INLINE Double2 round_to_odd(const Double2& x, const Double2& y, const Double2& c) {
  const Double2 p = x * y;
  const Double2 s = p + c;
  const Double2 cc = s - p;
  const Double2 e = (p - (s - cc)) + (c - cc);
  const Long2 u = (Long2)s;
  const Long2 inexact = (e < 0.0) | (e > 0.0);
  const Long2 even = (u & 1) - 1;                  // all bits where the last one is clear
  const Long2 step = ((e > 0.0) ^ (s > 0.0)) | 1;  // 1 away from zero, -1 towards it
  return (Double2)(u + (inexact & even & step));
}
QUIRE_INLINE Float4 exact_fma4(const Float4& x, const Float4& y, const Float4& z) {
  return rounded(round_to_odd(low_half(x), low_half(y), low_half(z)),
                 round_to_odd(high_half(x), high_half(y), high_half(z)));
}
// A correctly rounded float fma from double arithmetic.
[[maybe_unused]] static __attribute__((noinline, cold)) F32x16 exact_fma(const F32x16& x, const F32x16& y,
                                                                         const F32x16& z) {
  return {exact_fma4(x.a, y.a, z.a), exact_fma4(x.b, y.b, z.b), exact_fma4(x.c, y.c, z.c), exact_fma4(x.d, y.d, z.d)};
}
// The same, but rounded twice: first to a double, then to a float. This is the correct result unless the double lies
// exactly between two floats. Doubles that do are marked as doubtful: half of a normal float's last bit and nothing
// below it, and all that are less than the smallest normal float, but zero.
QUIRE_INLINE Float4 fma4(const Float4& x, const Float4& y, const Float4& z, Int4* doubtful) {
  const Double2 a = low_half(x) * low_half(y) + low_half(z);
  const Double2 b = high_half(x) * high_half(y) + high_half(z);
  const Int4 last = __builtin_shufflevector((Int4)a, (Int4)b, 0, 2, 4, 6);
  const Int4 top = __builtin_shufflevector((Int4)a, (Int4)b, 1, 3, 5, 7) & INT32_MAX;
  *doubtful |= ((last & 0x1fffffff) == 0x10000000) | ((top < (1023 - 126) << 20) & (top > 0));
  return rounded(a, b);
}
QUIRE_INLINE F32x16 fma(const F32x16& x, const F32x16& y, const F32x16& z) {
  Int4 doubtful = {};
  const F32x16 r = {fma4(x.a, y.a, z.a, &doubtful), fma4(x.b, y.b, z.b, &doubtful), fma4(x.c, y.c, z.c, &doubtful),
                    fma4(x.d, y.d, z.d, &doubtful)};
  const Long2 any = (Long2)doubtful;
  if (__builtin_expect((any[0] | any[1]) != 0, 0)) return exact_fma(x, y, z);
  return r;
}
QUIRE_INLINE Float4 sqrt4(const Float4& x) {
  return Float4{std::sqrt(x[0]), std::sqrt(x[1]), std::sqrt(x[2]), std::sqrt(x[3])};
}
QUIRE_INLINE F32x16 sqrt(const F32x16& x) {
  return {sqrt4(x.a), sqrt4(x.b), sqrt4(x.c), sqrt4(x.d)};
}

QUIRE_INLINE I32x16 bits(const F32x16& x) {
  return {(Int4)x.a, (Int4)x.b, (Int4)x.c, (Int4)x.d};
}
QUIRE_INLINE F32x16 from_bits(const I32x16& x) {
  return {(Float4)x.a, (Float4)x.b, (Float4)x.c, (Float4)x.d};
}
QUIRE_INLINE F32x16 to_float(const I32x16& x) {
  return {__builtin_convertvector(x.a, Float4), __builtin_convertvector(x.b, Float4),
          __builtin_convertvector(x.c, Float4), __builtin_convertvector(x.d, Float4)};
}
QUIRE_INLINE I32x16 isplat(int32_t x) {
  const Int4 v = {x, x, x, x};
  return {v, v, v, v};
}
// Lanes wrap around: signed overflow has no meaning in C++.
QUIRE_INLINE Int4 add4(const Int4& x, const Int4& y) {
  return (Int4)((Uint4)x + (Uint4)y);
}
QUIRE_INLINE Int4 sub4(const Int4& x, const Int4& y) {
  return (Int4)((Uint4)x - (Uint4)y);
}
QUIRE_INLINE I32x16 iadd(const I32x16& x, const I32x16& y) {
  return {add4(x.a, y.a), add4(x.b, y.b), add4(x.c, y.c), add4(x.d, y.d)};
}
QUIRE_INLINE I32x16 isub(const I32x16& x, const I32x16& y) {
  return {sub4(x.a, y.a), sub4(x.b, y.b), sub4(x.c, y.c), sub4(x.d, y.d)};
}
QUIRE_INLINE I32x16 iand(const I32x16& x, const I32x16& y) {
  return {x.a & y.a, x.b & y.b, x.c & y.c, x.d & y.d};
}
QUIRE_INLINE I32x16 ior(const I32x16& x, const I32x16& y) {
  return {x.a | y.a, x.b | y.b, x.c | y.c, x.d | y.d};
}
QUIRE_INLINE I32x16 ixor(const I32x16& x, const I32x16& y) {
  return {x.a ^ y.a, x.b ^ y.b, x.c ^ y.c, x.d ^ y.d};
}
template <int kCount>
QUIRE_INLINE Int4 shl4(const Int4& x) {
  return (Int4)((Uint4)x << kCount);
}
template <int kCount>
QUIRE_INLINE Int4 shr4(const Int4& x) {
  return (Int4)((Uint4)x >> kCount);
}
template <int kCount>
QUIRE_INLINE I32x16 shl(const I32x16& x) {
  return {shl4<kCount>(x.a), shl4<kCount>(x.b), shl4<kCount>(x.c), shl4<kCount>(x.d)};
}
template <int kCount>
QUIRE_INLINE I32x16 shr(const I32x16& x) {
  return {shr4<kCount>(x.a), shr4<kCount>(x.b), shr4<kCount>(x.c), shr4<kCount>(x.d)};
}
template <int kCount>
QUIRE_INLINE I32x16 sar(const I32x16& x) {
  return {x.a >> kCount, x.b >> kCount, x.c >> kCount, x.d >> kCount};
}
QUIRE_INLINE F32x16 neg(const F32x16& x) {
  return {-x.a, -x.b, -x.c, -x.d};
}
QUIRE_INLINE F32x16 abs(const F32x16& x) {
  return from_bits(iand(bits(x), isplat(INT32_MAX)));
}

QUIRE_INLINE Mask16 lt(const F32x16& x, const F32x16& y) {
  return {x.a < y.a, x.b < y.b, x.c < y.c, x.d < y.d};
}
QUIRE_INLINE Mask16 le(const F32x16& x, const F32x16& y) {
  return {x.a <= y.a, x.b <= y.b, x.c <= y.c, x.d <= y.d};
}
QUIRE_INLINE Mask16 gt(const F32x16& x, const F32x16& y) {
  return {x.a > y.a, x.b > y.b, x.c > y.c, x.d > y.d};
}
QUIRE_INLINE Mask16 ge(const F32x16& x, const F32x16& y) {
  return {x.a >= y.a, x.b >= y.b, x.c >= y.c, x.d >= y.d};
}
QUIRE_INLINE Mask16 eq(const F32x16& x, const F32x16& y) {
  return {x.a == y.a, x.b == y.b, x.c == y.c, x.d == y.d};
}
QUIRE_INLINE Float4 select4(const Int4& m, const Float4& x, const Float4& y) {
  return (Float4)((m & (Int4)x) | (~m & (Int4)y));
}
QUIRE_INLINE F32x16 select(const Mask16& m, const F32x16& x, const F32x16& y) {
  return {select4(m.a, x.a, y.a), select4(m.b, x.b, y.b), select4(m.c, x.c, y.c), select4(m.d, x.d, y.d)};
}
QUIRE_INLINE F32x16 max(const F32x16& x, const F32x16& y) {
  return select(gt(x, y), x, y);
}
QUIRE_INLINE F32x16 min(const F32x16& x, const F32x16& y) {
  return select(lt(x, y), x, y);
}

// Lanes 0, 2, 4, ... and 1, 3, 5, ... of the 32 lanes x, y; and back.
QUIRE_INLINE void deinterleave(const F32x16& x, const F32x16& y, F32x16* even, F32x16* odd) {
  float all[32], e[16], o[16];
  store(all, x);
  store(all + 16, y);
  for (int i = 0; i < 16; ++i) {
    e[i] = all[2 * i];
    o[i] = all[2 * i + 1];
  }
  *even = load(e);
  *odd = load(o);
}
QUIRE_INLINE void interleave(const F32x16& even, const F32x16& odd, F32x16* x, F32x16* y) {
  float all[32], e[16], o[16];
  store(e, even);
  store(o, odd);
  for (int i = 0; i < 16; ++i) {
    all[2 * i] = e[i];
    all[2 * i + 1] = o[i];
  }
  *x = load(all);
  *y = load(all + 16);
}

// Lanes fold 8, 4, 2, 1: lane i takes lane i+8, then i+4, i+2, i+1.
QUIRE_INLINE float reduce_add(const F32x16& x) {
  const Float4 y = (x.a + x.c) + (x.b + x.d);
  return (y[0] + y[2]) + (y[1] + y[3]);
}
QUIRE_INLINE float reduce_max(const F32x16& x) {
  const Float4 ac = select4(x.a > x.c, x.a, x.c);
  const Float4 bd = select4(x.b > x.d, x.b, x.d);
  const Float4 y = select4(ac > bd, ac, bd);
  const float even = y[0] > y[2] ? y[0] : y[2];
  const float odd = y[1] > y[3] ? y[1] : y[3];
  return even > odd ? even : odd;
}

QUIRE_INLINE Int4 load_halves(const uint16_t* p) {
  return Int4{p[0], p[1], p[2], p[3]};
}
// As fp16_to_float of base/half.h: normal numbers get the other bias, subnormals are an integer times 2^-24, and the
// largest exponent is infinity or a NaN, made quiet.
QUIRE_INLINE Float4 widen_f16(const uint16_t* p) {
  const Int4 h = load_halves(p);
  const Int4 magnitude = h & 0x7fff;
  const Int4 normal = (magnitude << 13) + (112 << 23);
  const Int4 special = (magnitude << 13) | 0x7f800000 | ((magnitude > 0x7c00) & 0x400000);
  const Int4 small = (Int4)(__builtin_convertvector(magnitude, Float4) * 0x1p-24f);
  const Int4 is_small = magnitude < 0x400, is_special = magnitude >= 0x7c00;
  const Int4 value = (is_small & small) | (is_special & special) | (~(is_small | is_special) & normal);
  return (Float4)(value | shl4<16>(h & 0x8000));
}
QUIRE_INLINE F32x16 load_f16(const uint16_t* p) {
  return {widen_f16(p), widen_f16(p + 4), widen_f16(p + 8), widen_f16(p + 12)};
}
QUIRE_INLINE F32x16 load_bf16(const uint16_t* p) {
  return {(Float4)shl4<16>(load_halves(p)), (Float4)shl4<16>(load_halves(p + 4)), (Float4)shl4<16>(load_halves(p + 8)),
          (Float4)shl4<16>(load_halves(p + 12))};
}

struct Halves {
  uint16_t x[16];
};
QUIRE_INLINE Halves copy_in(const uint16_t* p, int64_t n) {
  Halves h = {};
  for (int64_t i = 0; i < n; ++i) h.x[i] = p[i];
  return h;
}
QUIRE_INLINE F32x16 load_f16_n(const uint16_t* p, int64_t n) {
  return load_f16(copy_in(p, n).x);
}
QUIRE_INLINE F32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  return load_bf16(copy_in(p, n).x);
}
// Storing is rare: once a token. So these stay functions.
static inline void store_f16_n(uint16_t* p, const F32x16& x, int64_t n) {
  float buffer[16];
  store(buffer, x);
  for (int64_t i = 0; i < n; ++i) p[i] = float_to_fp16(buffer[i]);
}
static inline void store_bf16_n(uint16_t* p, const F32x16& x, int64_t n) {
  float buffer[16];
  store(buffer, x);
  for (int64_t i = 0; i < n; ++i) p[i] = float_to_bf16(buffer[i]);
}
QUIRE_INLINE void store_f16(uint16_t* p, const F32x16& x) {
  store_f16_n(p, x, 16);
}
QUIRE_INLINE void store_bf16(uint16_t* p, const F32x16& x) {
  store_bf16_n(p, x, 16);
}

}  // namespace quire::cpu::QUIRE_ISA_NS
