// SPDX-License-Identifier: Apache-2.0
// exp, log and the Gumbel variate of the sampler, from basic operations only, so that the bits do not depend on the
// compiler or the library.
#pragma once

#include <bit>
#include <cstdint>

namespace quire::sampling {

// e^x for x <= 0 within 2 ulp; 0 below -87.7 (where the result would leave the normal range). NaN is not expected.
// e^x = 2^n * e^r with n = round(x / ln 2) and |r| <= ln(2)/2; e^r is its Taylor sum to r^7 (remainder below 6e-9).
// Branch-free, so loops over it vectorise.
inline float exp_nonpositive(float x) {
  constexpr float kMagic = 12582912.0f;           // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const float clamped = x > -88.0f ? x : -88.0f;  // there n = -127, whose power of two is written as 0
  const float shifted = clamped * 1.44269504f + kMagic;
  const float n = shifted - kMagic;
  // ln 2 in two parts: the first has 9 significant bits, so its product with n is exact.
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kMagic) + 127;
  return p * std::bit_cast<float>(exponent << 23);
}

// ln x for a positive normal x, relative error below 1e-15 also near 1.
// x = 2^e * m with m in [sqrt(1/2), sqrt 2); ln m = 2 atanh(s), s = (m-1)/(m+1), as the series s + s^3/3 + ... with
// s^2 < 0.0295, so that twelve terms leave less than 1e-18.
inline double log_positive(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t e = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    e += 1;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double sum = 1.0 / 23;
  for (int k = 21; k >= 1; k -= 2) sum = sum * z + 1.0 / k;
  const double log_m = 2.0 * s * sum;
  const double n = static_cast<double>(e);
  // ln 2 in two parts; the first has 21 trailing zero bits, so its product with n is exact.
  return n * 0.693147180369123816490 + (log_m + n * 1.90821492927058770002e-10);
}

// A standard Gumbel variate from 32 random bits: -ln(-ln(u)), u = 1 - (w + 1/2) / 2^32, which is exact in a double and
// never 0 or 1. The largest value is 22.9.
inline double gumbel(uint32_t w) {
  const double v = (static_cast<double>(w) + 0.5) * 0x1p-32;
  return -log_positive(-log_positive(1.0 - v));
}

// An upper bound of gumbel(w) without a logarithm: -ln(u) >= v >= 2^-(z+1), z the leading zeros of w.
inline double gumbel_bound(uint32_t w) {
  return static_cast<double>(std::countl_zero(w) + 1) * 0.6931471805599453 + 1e-9;  // room for rounding
}
inline constexpr double kMaxGumbel = 33 * 0.6931471805599453 + 1e-9;

// The smallest float that is not below x.
inline float round_up(double x) {
  const float f = static_cast<float>(x);
  if (static_cast<double>(f) >= x) return f;
  if (f == 0.0f) return std::bit_cast<float>(uint32_t{1});
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  return std::bit_cast<float>(f > 0 ? bits + 1 : bits - 1);
}

}  // namespace quire::sampling
