// SPDX-License-Identifier: Apache-2.0
// Conversions between float and the two fp8 types (base/half.h has the same for the host). No kernels here.
#pragma once

#include "kernels/compat/dialect.h"

FN float e4m3_to_f(uint code) {
  const uint magnitude = code & 0x7fu;
  float a = (float)magnitude * 0x1p-9f;  // subnormal: exponent field 0
  if (magnitude >= 8u) a = as_float((magnitude << 20) + (120u << 23));
  if (magnitude == 0x7fu) a = as_float(0x7fc00000u);
  return as_float(as_uint(a) | (code & 0x80u) << 24);
}
FN float e5m2_to_f(uint code) {
  return to_f(from_bits16<half>((ushort)(code << 8)));  // E5M2 is the upper byte of an fp16
}

// Round to the nearest code, ties to even. Magnitudes beyond the largest number saturate, NaN stays NaN. Normal numbers
// are rounded in their own bits, subnormal ones as multiples of the smallest.
FN uint f_to_e4m3(float x) {
  const uint sign = (as_uint(x) >> 24) & 0x80u;
  if (x != x) return sign | 0x7fu;
  const float a = min(abs(x), 448.0f);
  if (a < 0x1p-6f) return sign | (uint)rint(a * 0x1p9f);
  const uint bits = as_uint(a);
  return sign | (((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3));
}
FN uint f_to_e5m2(float x) {
  const uint sign = (as_uint(x) >> 24) & 0x80u;
  if (x != x) return sign | 0x7fu;
  const float a = min(abs(x), 57344.0f);
  if (a < 0x1p-14f) return sign | (uint)rint(a * 0x1p16f);
  const uint bits = as_uint(a);
  return sign | (((bits + 0xfffffu + ((bits >> 21) & 1u)) >> 21) - (112u << 2));
}
