// SPDX-License-Identifier: Apache-2.0
// exp, exp2, sigmoid, softplus, tanh and erf over F32x16: own polynomials as fixed sequences of IEEE operations, no
// libm.
//
// So their bits are the same on every ISA level, in the vector body and in a masked tail. The coefficients are in
// kernels/compat/polynomials.h, which GPU kernels use too. NaN gives NaN. Largest errors, measured by simd_math_test
// over dense samples against long double:
//   exp 0.85 ulp, exp2_clamped 0.80 ulp, sigmoid 2.1 ulp, softplus 2.4 ulp, tanh 1.4 ulp, erf 0.95 ulp
#pragma once

#include "backend/cpu/simd.h"
#include "kernels/compat/polynomials.h"

// Inlined, unless an emulated fma makes them hundreds of instructions long.
#ifdef QUIRE_EMULATED_FMA
#define QUIRE_MATH [[maybe_unused]] static __attribute__((noinline))
#else
#define QUIRE_MATH QUIRE_INLINE
#endif

namespace quire::cpu::QUIRE_ISA_NS {

// A step of Horner's rule.
#define QUIRE_FIRST(p, x, c) F32x16 p = splat(c);
#define QUIRE_NEXT(p, x, c) p = fma(p, x, splat(c));

// Adding and subtracting it rounds a float of magnitude below 2^22 to the nearest integer, ties to even; in between,
// the low bits of the sum hold that integer.
constexpr float kRoundMagic = 0x1.8p23f;

QUIRE_INLINE F32x16 power_of_two(I32x16 n) {  // n in [-126, 127]
  return from_bits(shl<23>(iadd(n, isplat(127))));
}

// p * 2^n, rounded once, for p in [0.5, 2) and whole n from -150 to 128; shifted is n + kRoundMagic.
QUIRE_INLINE F32x16 times_power_of_two(F32x16 p, [[maybe_unused]] F32x16 n, [[maybe_unused]] F32x16 shifted) {
#if defined(__AVX512F__)
  return {_mm512_scalef_ps(p.v, n.v)};
#else
  // In two factors, of which the first product is exact.
  const I32x16 whole = isub(bits(shifted), isplat(0x4b400000));
  const I32x16 half = sar<1>(whole);
  return (p * power_of_two(half)) * power_of_two(isub(whole, half));
#endif
}

// e^x: -inf gives 0, results below the smallest subnormal are 0, results above the largest float are inf.
QUIRE_MATH F32x16 exp(F32x16 x) {
  // e^-104 rounds to 0 and e^89 to inf, so the clamps change nothing; the constant stands first to let NaN through.
  x = max(splat(-104.0f), min(splat(89.0f), x));
  const F32x16 shifted = fma(x, splat(0x1.715476p+0f), splat(kRoundMagic));  // n = round(x / ln 2)
  const F32x16 n = shifted - splat(kRoundMagic);
  F32x16 r = fma(n, splat(-0x1.62e400p-1f), x);  // ln 2 in two parts; the first has 15 bits, so n times it is exact
  r = fma(n, splat(-0x1.7f7d1cp-20f), r);
  QUIRE_EXP_POLYNOMIAL(QUIRE_FIRST, QUIRE_NEXT, p, r)
  return times_power_of_two(p, n, shifted);
}

// 2^max(x, -100) for x up to 127: the softmax's exponential. Its least value is not 0: the caller leaves masked
// elements out. The floor keeps products with a V element away from subnormals.
QUIRE_MATH F32x16 exp2_clamped(F32x16 x) {
  x = max(splat(-100.0f), x);
  const F32x16 shifted = x + splat(kRoundMagic);
  const F32x16 r = x - (shifted - splat(kRoundMagic));
  QUIRE_EXP2_POLYNOMIAL(QUIRE_FIRST, QUIRE_NEXT, p, r)
  // The shift drops the magic's own bits.
  return p * from_bits(iadd(shl<23>(bits(shifted)), isplat(0x3f800000)));
}

QUIRE_MATH F32x16 sigmoid(F32x16 x) {
  return splat(1.0f) / (splat(1.0f) + exp(neg(x)));
}

// log(1 + e^x) as max(x, 0) + log1p(y) with y = e^-|x|, and log1p(y) = 2 atanh(t), t = y / (2 + y), at most 1/3.
QUIRE_MATH F32x16 softplus(F32x16 x) {
  const F32x16 y = exp(neg(abs(x)));
  const F32x16 t = y / (splat(2.0f) + y);
  const F32x16 u = t * t;
  QUIRE_ATANH_POLYNOMIAL(QUIRE_FIRST, QUIRE_NEXT, q, u)
  const F32x16 twice = t + t;
  return max(zero(), x) + fma(twice * u, q, twice);
}

QUIRE_INLINE F32x16 copy_sign(F32x16 magnitude, F32x16 sign) {
  return from_bits(ior(iand(bits(magnitude), isplat(INT32_MAX)), iand(bits(sign), isplat(INT32_MIN))));
}

QUIRE_MATH F32x16 tanh(F32x16 x) {
  // |x| < 0.6: x + x * u * Q(u) with u = x^2.
  const F32x16 u = x * x;
  QUIRE_TANH_POLYNOMIAL(QUIRE_FIRST, QUIRE_NEXT, q, u)
  const F32x16 near = fma(q * u, x, x);
  // Else 1 - 2 / (e^2|x| + 1); an infinite exponential gives 1.
  const F32x16 a = abs(x);
  const F32x16 far = splat(1.0f) - splat(2.0f) / (exp(a + a) + splat(1.0f));
  return copy_sign(select(lt(a, splat(0.6f)), near, far), x);
}

QUIRE_MATH F32x16 erf(F32x16 x) {
  // |x| < 0.95: x + x * P(x^2).
  const F32x16 u = x * x;
  QUIRE_ERF_POLYNOMIAL(QUIRE_FIRST, QUIRE_NEXT, p, u)
  const F32x16 near = fma(p, x, x);
  // Else 1 - e^-g(|x|), where g = -log(erfc) is smooth; from 4 on the result rounds to 1.
  const F32x16 a = min(splat(4.0f), abs(x));
  QUIRE_ERFC_POLYNOMIAL(QUIRE_FIRST, QUIRE_NEXT, g, a)
  const F32x16 far = splat(1.0f) - exp(neg(g));
  return copy_sign(select(lt(abs(x), splat(0.95f)), near, far), x);
}

#undef QUIRE_FIRST
#undef QUIRE_NEXT

}  // namespace quire::cpu::QUIRE_ISA_NS
