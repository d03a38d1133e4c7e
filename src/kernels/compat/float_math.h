// SPDX-License-Identifier: Apache-2.0
// exp, log and related functions as fixed sequences of IEEE operations, the same as in backend/cpu/simd_math.h where
// that has them.
//
// So results are within a rounding or two of the CPU's, and the same on every GPU that rounds according to IEEE 754.
// NaN gives NaN. tests/kernels/math_test.cc measures and bounds the errors against long double.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/compat/polynomials.h"

// A step of Horner's rule.
#define Q_FIRST(p, x, c) float p = c;
#define Q_NEXT(p, x, c) p = fma(p, x, c);

// 2^n for n in [-126, 127].
FN float q_power_of_two(int n) {
  return as_float((uint)(n + 127) << 23);
}

// e^x: -inf gives 0, results below the smallest subnormal are 0, results above the largest float are inf.
FN float q_exp(float x) {
  // e^-104 rounds to 0 and e^89 to inf, so the clamps change no result. They let a NaN through.
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = fma(x, 0x1.715476p+0f, 0x1.8p23f);  // n = round(x / ln 2), in the low bits of the sum
  const float n = shifted - 0x1.8p23f;
  float r = fma(n, -0x1.62e400p-1f, x);  // ln 2 in two parts; the first has 15 bits, so its product with n is exact
  r = fma(n, -0x1.7f7d1cp-20f, r);
  QUIRE_EXP_POLYNOMIAL(Q_FIRST, Q_NEXT, p, r)
  // 2^n in two factors; the first product is exact. For a NaN n is arbitrary, so it is limited to where shifts are
  // defined.
  int whole = as_int(shifted) - 0x4b400000;
  whole = min(max(whole, -200), 200);
  const int half_of_it = whole >> 1;
  return p * q_power_of_two(half_of_it) * q_power_of_two(whole - half_of_it);
}

// 2^max(x, -100) for x up to 127: the exponential of the softmax. Its smallest value is not 0, so the caller must leave
// out masked elements. The limit keeps products with an element of V away from subnormal numbers.
FN float q_exp2(float x) {
  x = x < -100.0f ? -100.0f : x;
  const float shifted = x + 0x1.8p23f;
  const float r = x - (shifted - 0x1.8p23f);
  QUIRE_EXP2_POLYNOMIAL(Q_FIRST, Q_NEXT, p, r)
  // The shift drops the bits of the magic number itself.
  return p * as_float((as_uint(shifted) << 23) + 0x3f800000u);
}

FN float q_sigmoid(float x) {
  return 1.0f / (1.0f + q_exp(-x));
}

FN float q_silu(float x) {
  return x * q_sigmoid(x);
}

// 2 atanh(t) for |t| up to 1/3: log(m) where t = (m - 1) / (m + 1).
FN float q_twice_atanh(float t) {
  const float u = t * t;
  QUIRE_ATANH_POLYNOMIAL(Q_FIRST, Q_NEXT, q, u)
  const float twice = t + t;
  return fma(twice * u, q, twice);
}

// log(1 + e^x).
FN float q_softplus(float x) {
  const float y = q_exp(-abs(x));
  return (x > 0.0f ? x : 0.0f) + q_twice_atanh(y / (2.0f + y));
}

// log(x): 0 gives -inf, inf gives inf, less than 0 gives NaN.
FN float q_log(float x) {
  if (!(x > 0.0f)) return x == 0.0f ? as_float(0xff800000u) : as_float(0x7fc00000u);
  if (x > 0x1.fffffep+127f) return x;
  int n = 0;
  if (x < 0x1p-126f) {
    x *= 0x1p24f;
    n = -24;
  }
  // x = m 2^n with m in [sqrt(1/2), sqrt(2)).
  const int exponent = (as_int(x) - 0x3f3504f3) >> 23;
  n += exponent;
  const float m = as_float(as_uint(x) - ((uint)exponent << 23));
  const float f = m - 1.0f;
  const float log_m = q_twice_atanh(f / (2.0f + f));
  return fma((float)n, 0x1.62e400p-1f, fma((float)n, 0x1.7f7d1cp-20f, log_m));
}

// log(1 + x).
FN float q_log1p(float x) {
  if (x > -0.5f && x < 1.0f) return q_twice_atanh(x / (2.0f + x));
  return q_log(1.0f + x);
}

FN float q_copy_sign(float magnitude, float sign) {
  return as_float((as_uint(magnitude) & 0x7fffffffu) | (as_uint(sign) & 0x80000000u));
}

FN float q_tanh(float x) {
  // |x| < 0.6: x + x u Q(u) with u = x^2.
  const float u = x * x;
  QUIRE_TANH_POLYNOMIAL(Q_FIRST, Q_NEXT, q, u)
  const float near = fma(q * u, x, x);
  // Else 1 - 2 / (e^2|x| + 1); an infinite exponential gives 1.
  const float a = abs(x);
  const float far = 1.0f - 2.0f / (q_exp(a + a) + 1.0f);
  return q_copy_sign(a < 0.6f ? near : far, x);
}

FN float q_erf(float x) {
  // |x| < 0.95: x + x P(x^2).
  const float u = x * x;
  QUIRE_ERF_POLYNOMIAL(Q_FIRST, Q_NEXT, p, u)
  const float near = fma(p, x, x);
  // Else 1 - e^-g(|x|), where g = -log(erfc) is smooth; from 4 on the result rounds to 1.
  float a = abs(x);
  a = a > 4.0f ? 4.0f : a;
  QUIRE_ERFC_POLYNOMIAL(Q_FIRST, Q_NEXT, g, a)
  const float far = 1.0f - q_exp(-g);
  return q_copy_sign(abs(x) < 0.95f ? near : far, x);
}
