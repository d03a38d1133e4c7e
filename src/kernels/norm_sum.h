// SPDX-License-Identifier: Apache-2.0
// The order of sums in a norm, for every kernel that normalises: the norm kernels and those fused with a norm. No
// kernels here.
//
// The rule, for groups of every size n: element j belongs to chain (j / 32) % 8 of lane j % 32, and a chain adds its
// elements in ascending order from +0 (squares by fma: s = fma(x, x, s)). Each lane adds its eight chains,
//   ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)),
// and simd_sum adds the 32 lanes. Elements past the end count as zeros, which change no bit. So the order depends on n
// alone. It is the same for one simdgroup (a lane keeps eight chains), for a threadgroup of 256 (thread t keeps chain
// t / 32 of lane t % 32, elements t, t + 256, ...) and for one of 128 (thread t keeps chains t / 32 and t / 32 + 4).
//
//   rms_norm: y = (x * norm_inverse(sum of squares, n, eps)) * w, rounded to the output's type at the end.
#pragma once

#include "kernels/compat/dialect.h"

FN float norm_fold(float c0, float c1, float c2, float c3, float c4, float c5, float c6, float c7) {
  return ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7));
}

FN float norm_inverse(float sum, int n, float eps) {
  return 1.0f / sqrt(sum / (float)n + eps);
}

// For one simdgroup: a group of any size in device memory. All lanes get the sum of squares.
template <typename X>
FN float norm_sum_of_squares(DEVICE const X* x, int n, uint lane) {
  float c[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  for (int base = (int)lane; base < n; base += 256) {
    UNROLL for (int i = 0; i < 8; i++) {
      const float v = base + 32 * i < n ? to_f(x[base + 32 * i]) : 0.0f;
      c[i] = fma(v, v, c[i]);
    }
  }
  return simd_sum(norm_fold(c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]));
}

// For one simdgroup: a group of at most 256 in registers, so that each chain has one element. v[i] is element lane + 32
// * i, zero past the end.
FN float norm_sum_of_squares(THREAD const float* v) {
  return simd_sum(norm_fold(v[0] * v[0], v[1] * v[1], v[2] * v[2], v[3] * v[3], v[4] * v[4], v[5] * v[5], v[6] * v[6],
                            v[7] * v[7]));
}

// For a threadgroup of 256: each thread passes its chain, and all get the sum. `chains` may be reused at once.
FN float norm_sum_of_chains(TGROUP float* chains, float chain, Ctx c) {
  TG_BARRIER();
  chains[c.tid] = chain;
  TG_BARRIER();
  const uint l = c.lane;
  return simd_sum(norm_fold(chains[l], chains[32 + l], chains[64 + l], chains[96 + l], chains[128 + l], chains[160 + l],
                            chains[192 + l], chains[224 + l]));
}
