// SPDX-License-Identifier: Apache-2.0
// Helpers of the elementwise kernels: a row's address, and a loop over sixteen lanes with a partial last group.
#pragma once

#include "backend/cpu/simd.h"
#include "ops/tensor.h"

namespace quire::cpu::QUIRE_ISA_NS {

QUIRE_INLINE float* row_of(const Tensor& t, int64_t row) {
  return static_cast<float*>(t.data) + row * t.stride;
}

// Up to sixteen elements; the usual case, all of them, without a mask.
QUIRE_INLINE F32x16 load_some(const float* p, int64_t n) {
  return n == kLanes ? load(p) : load_n(p, n);
}
QUIRE_INLINE void store_some(float* p, F32x16 v, int64_t n) {
  if (n == kLanes) {
    store(p, v);
  } else {
    store_n(p, v, n);
  }
}

// out[i] = f(x[i]) and out[i] = f(x[i], y[i]); a lane's bits do not depend on where the groups begin.
template <typename F>
QUIRE_INLINE void map_row(const float* x, float* out, int64_t n, F f) {
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, f(load(x + i)));
  if (whole < n) store_n(out + whole, f(load_n(x + whole, n - whole)), n - whole);
}
template <typename F>
QUIRE_INLINE void map_row(const float* x, const float* y, float* out, int64_t n, F f) {
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, f(load(x + i), load(y + i)));
  if (whole < n) {
    const int64_t rest = n - whole;
    store_n(out + whole, f(load_n(x + whole, rest), load_n(y + whole, rest)), rest);
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
