// SPDX-License-Identifier: Apache-2.0
// Scalar conversions between float and the 16-bit and 8-bit storage types: round to nearest even, NaN stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace quire {

inline float bf16_to_float(uint16_t h) {
  return std::bit_cast<float>(static_cast<uint32_t>(h) << 16);
}

inline uint16_t float_to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);  // quiet the NaN
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

inline float fp16_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 0x1f;
  const uint32_t mantissa = h & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in a float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t float_to_fp16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00 | ((a >> 13) & 0x3ff));
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and up round to infinity
  if (a < 0x38800000u) {  // below 2^-14: the result is subnormal; adding 0.5 aligns the bits and rounds to even
    const float shifted = std::bit_cast<float>(a) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// The two fp8 types (OCP 8-bit Floating Point Specification): E4M3 has no infinities (only 0x7f and 0xff are NaN, the
// largest number is 448), E5M2 has them (the largest number is 57344). Conversion to either saturates: larger
// magnitudes, infinities included, become the largest number.
inline float fp8_e4m3_to_float(uint8_t h) {
  const int exponent = (h >> 3) & 0xf, mantissa = h & 7;
  float a = std::numeric_limits<float>::quiet_NaN();
  if ((h & 0x7f) != 0x7f) {
    a = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                      : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  }
  return std::copysign(a, h & 0x80 ? -1.0f : 1.0f);
}
inline float fp8_e5m2_to_float(uint8_t h) {  // the upper half of an fp16
  return fp16_to_float(static_cast<uint16_t>(h << 8));
}

// The code of the nearest number with `mantissa` bits; `least` is the exponent of the smallest normal number.
inline uint8_t float_to_fp8(float f, int mantissa, int least, float largest) {
  const uint8_t sign = std::signbit(f) ? 0x80 : 0;
  if (std::isnan(f)) return sign | 0x7f;
  const float a = std::fmin(std::fabs(f), largest);
  const int exponent = a < std::ldexp(1.0f, least) ? least : std::ilogb(a);
  // Numbers with one exponent are multiples of one step. If `a` rounds up to the next exponent, its code is still next.
  const float steps = std::nearbyint(std::ldexp(a, mantissa - exponent));
  return static_cast<uint8_t>(sign | (((exponent - least) << mantissa) + static_cast<int>(steps)));
}
inline uint8_t float_to_fp8_e4m3(float f) {
  return float_to_fp8(f, 3, -6, 448.0f);
}
inline uint8_t float_to_fp8_e5m2(float f) {
  return float_to_fp8(f, 2, -14, 57344.0f);
}

}  // namespace quire
