// SPDX-License-Identifier: Apache-2.0
// F32x16 as a plain array, for machines without a level of their own; see simd.h, which includes this file.
#pragma once

#include <bit>
#include <cmath>

#include "base/half.h"

namespace quire::cpu::QUIRE_ISA_NS {

struct F32x16 {
  float v[16];
};
struct I32x16 {
  int32_t v[16];
};
struct Mask16 {
  bool v[16];
};

// Runs `expression` for each lane i into the result r.
#define QUIRE_LANES(Type, expression)                 \
  Type r;                                             \
  for (int i = 0; i < 16; ++i) r.v[i] = (expression); \
  return r

QUIRE_INLINE F32x16 splat(float x) {
  QUIRE_LANES(F32x16, x);
}
QUIRE_INLINE F32x16 zero() {
  return splat(0.0f);
}
QUIRE_INLINE float first(const F32x16& a) {
  return a.v[0];
}
QUIRE_INLINE Mask16 first_lanes(int64_t n) {
  QUIRE_LANES(Mask16, i < n);
}
QUIRE_INLINE F32x16 load(const float* p) {
  QUIRE_LANES(F32x16, p[i]);
}
QUIRE_INLINE F32x16 load_n(const float* p, int64_t n) {
  QUIRE_LANES(F32x16, i < n ? p[i] : 0.0f);
}
QUIRE_INLINE void store(float* p, const F32x16& a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
QUIRE_INLINE void store_n(float* p, const F32x16& a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = a.v[i];
}

QUIRE_INLINE F32x16 operator+(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(F32x16, a.v[i] + b.v[i]);
}
QUIRE_INLINE F32x16 operator-(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(F32x16, a.v[i] - b.v[i]);
}
QUIRE_INLINE F32x16 operator*(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(F32x16, a.v[i] * b.v[i]);
}
QUIRE_INLINE F32x16 operator/(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(F32x16, a.v[i] / b.v[i]);
}

// A correctly rounded float fma from double arithmetic. The product of two floats is exact in a double; the sum's
// rounding error e is exact too (Knuth). Where e is not zero, the sum is moved to the neighbour with an odd last bit
// (rounding to odd), after which the second rounding, to float, cannot go wrong: 53 >= 24 + 2 bits. A sum that is
// infinite or NaN has e = NaN and stays.
QUIRE_INLINE float fma_lane(float a, float b, float c) {
  const double p = static_cast<double>(a) * static_cast<double>(b);
  const double s = p + static_cast<double>(c);
  const double cc = s - p;
  const double e = (p - (s - cc)) + (static_cast<double>(c) - cc);
  const int64_t u = std::bit_cast<int64_t>(s);
  const int64_t up = (e > 0.0) == (s > 0.0) ? 1 : -1;
  const bool move = ((e < 0.0) | (e > 0.0)) & ((u & 1) == 0);
  const int64_t odd = move ? u + up : u;
  return static_cast<float>(std::bit_cast<double>(odd));
}
QUIRE_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  QUIRE_LANES(F32x16, fma_lane(a.v[i], b.v[i], c.v[i]));
}
QUIRE_INLINE F32x16 sqrt(const F32x16& a) {
  QUIRE_LANES(F32x16, std::sqrt(a.v[i]));
}
QUIRE_INLINE F32x16 max(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(F32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
}
QUIRE_INLINE F32x16 min(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(F32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]);
}

QUIRE_INLINE I32x16 bits(const F32x16& a) {
  QUIRE_LANES(I32x16, std::bit_cast<int32_t>(a.v[i]));
}
QUIRE_INLINE F32x16 from_bits(const I32x16& a) {
  QUIRE_LANES(F32x16, std::bit_cast<float>(a.v[i]));
}
QUIRE_INLINE F32x16 to_float(const I32x16& a) {
  QUIRE_LANES(F32x16, static_cast<float>(a.v[i]));
}
QUIRE_INLINE I32x16 isplat(int32_t x) {
  QUIRE_LANES(I32x16, x);
}
QUIRE_INLINE uint32_t unsign(int32_t x) {  // lanes wrap around: signed overflow has no meaning in C++
  return static_cast<uint32_t>(x);
}
QUIRE_INLINE I32x16 iadd(const I32x16& a, const I32x16& b) {
  QUIRE_LANES(I32x16, static_cast<int32_t>(unsign(a.v[i]) + unsign(b.v[i])));
}
QUIRE_INLINE I32x16 isub(const I32x16& a, const I32x16& b) {
  QUIRE_LANES(I32x16, static_cast<int32_t>(unsign(a.v[i]) - unsign(b.v[i])));
}
QUIRE_INLINE I32x16 iand(const I32x16& a, const I32x16& b) {
  QUIRE_LANES(I32x16, a.v[i] & b.v[i]);
}
QUIRE_INLINE I32x16 ior(const I32x16& a, const I32x16& b) {
  QUIRE_LANES(I32x16, a.v[i] | b.v[i]);
}
QUIRE_INLINE I32x16 ixor(const I32x16& a, const I32x16& b) {
  QUIRE_LANES(I32x16, a.v[i] ^ b.v[i]);
}
template <int kCount>
QUIRE_INLINE I32x16 shl(const I32x16& a) {
  QUIRE_LANES(I32x16, static_cast<int32_t>(unsign(a.v[i]) << kCount));
}
template <int kCount>
QUIRE_INLINE I32x16 shr(const I32x16& a) {
  QUIRE_LANES(I32x16, static_cast<int32_t>(unsign(a.v[i]) >> kCount));
}
template <int kCount>
QUIRE_INLINE I32x16 sar(const I32x16& a) {
  QUIRE_LANES(I32x16, a.v[i] >> kCount);
}
QUIRE_INLINE F32x16 neg(const F32x16& a) {
  QUIRE_LANES(F32x16, -a.v[i]);
}
QUIRE_INLINE F32x16 abs(const F32x16& a) {
  return from_bits(iand(bits(a), isplat(INT32_MAX)));
}

QUIRE_INLINE Mask16 lt(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(Mask16, a.v[i] < b.v[i]);
}
QUIRE_INLINE Mask16 le(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(Mask16, a.v[i] <= b.v[i]);
}
QUIRE_INLINE Mask16 gt(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(Mask16, a.v[i] > b.v[i]);
}
QUIRE_INLINE Mask16 ge(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(Mask16, a.v[i] >= b.v[i]);
}
QUIRE_INLINE Mask16 eq(const F32x16& a, const F32x16& b) {
  QUIRE_LANES(Mask16, a.v[i] == b.v[i]);
}
QUIRE_INLINE F32x16 select(const Mask16& m, const F32x16& a, const F32x16& b) {
  QUIRE_LANES(F32x16, m.v[i] ? a.v[i] : b.v[i]);
}

// Lanes 0, 2, 4, ... and 1, 3, 5, ... of the 32 lanes x, y; and back.
QUIRE_INLINE void deinterleave(const F32x16& x, const F32x16& y, F32x16* even, F32x16* odd) {
  F32x16 e, o;
  for (int i = 0; i < 8; ++i) {
    e.v[i] = x.v[2 * i];
    o.v[i] = x.v[2 * i + 1];
    e.v[i + 8] = y.v[2 * i];
    o.v[i + 8] = y.v[2 * i + 1];
  }
  *even = e;
  *odd = o;
}
QUIRE_INLINE void interleave(const F32x16& even, const F32x16& odd, F32x16* x, F32x16* y) {
  F32x16 low, high;
  for (int i = 0; i < 8; ++i) {
    low.v[2 * i] = even.v[i];
    low.v[2 * i + 1] = odd.v[i];
    high.v[2 * i] = even.v[i + 8];
    high.v[2 * i + 1] = odd.v[i + 8];
  }
  *x = low;
  *y = high;
}

// Lanes fold 8, 4, 2, 1: lane i takes lane i+8, then i+4, i+2, i+1.
QUIRE_INLINE float reduce_add(F32x16 a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  }
  return a.v[0];
}
QUIRE_INLINE float reduce_max(F32x16 a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  }
  return a.v[0];
}

QUIRE_INLINE F32x16 load_f16(const uint16_t* p) {
  QUIRE_LANES(F32x16, fp16_to_float(p[i]));
}
QUIRE_INLINE F32x16 load_f16_n(const uint16_t* p, int64_t n) {
  QUIRE_LANES(F32x16, i < n ? fp16_to_float(p[i]) : 0.0f);
}
QUIRE_INLINE void store_f16_n(uint16_t* p, const F32x16& a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = float_to_fp16(a.v[i]);
}
QUIRE_INLINE void store_f16(uint16_t* p, const F32x16& a) {
  store_f16_n(p, a, 16);
}
QUIRE_INLINE F32x16 load_bf16(const uint16_t* p) {
  QUIRE_LANES(F32x16, bf16_to_float(p[i]));
}
QUIRE_INLINE F32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  QUIRE_LANES(F32x16, i < n ? bf16_to_float(p[i]) : 0.0f);
}
QUIRE_INLINE void store_bf16_n(uint16_t* p, const F32x16& a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = float_to_bf16(a.v[i]);
}
QUIRE_INLINE void store_bf16(uint16_t* p, const F32x16& a) {
  store_bf16_n(p, a, 16);
}

#undef QUIRE_LANES

}  // namespace quire::cpu::QUIRE_ISA_NS
