// SPDX-License-Identifier: Apache-2.0
// The rotation of one pair of elements, for rope and for the kernels that are fused with it. No kernels here.
#pragma once

#include "kernels/compat/dialect.h"

// Rotates (a, b) by the angle whose cosine and sine are given: x is the new a, y the new b.
FN float2 rotate_pair(float a, float b, float cosine, float sine) {
  return make_float2(fma(a, cosine, -(b * sine)), fma(b, cosine, a * sine));
}

// The indices of the two elements of pair i, counted from the first rotated element.
FN int rotate_first(int i, int interleaved) {
  return interleaved != 0 ? 2 * i : i;
}
FN int rotate_second(int i, int half_dim, int interleaved) {
  return interleaved != 0 ? 2 * i + 1 : i + half_dim;
}
