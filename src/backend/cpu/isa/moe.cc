// SPDX-License-Identifier: Apache-2.0
// The sums of mixtures of experts: softmax of a router's row, and the weighted sum of the outputs of experts; the
// contract is in ops/moe.h.
#include "backend/cpu/isa/declare.h"
#include "backend/cpu/isa/row_loops.h"
#include "backend/cpu/simd_math.h"

namespace quire::cpu::QUIRE_ISA_NS {

void moe_softmax(const float* x, int64_t n, float* out) {
  const int64_t whole = n / kLanes * kLanes;
  const int64_t rest = n - whole;
  F32x16 most = splat(-__builtin_inff());
  for (int64_t i = 0; i < whole; i += kLanes) most = max(load(x + i), most);
  if (rest > 0) most = max(select(first_lanes(rest), load_n(x + whole, rest), most), most);
  const F32x16 top = splat(reduce_max(most));  // a NaN that it missed comes back with the sum

  F32x16 sums = zero();
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F32x16 e = exp(load(x + i) - top);
    store(out + i, e);
    sums = sums + e;
  }
  if (rest > 0) {
    const F32x16 e = select(first_lanes(rest), exp(load_n(x + whole, rest) - top), zero());
    store_n(out + whole, e, rest);
    sums = sums + e;
  }
  const F32x16 sum = splat(reduce_add(sums));
  map_row(
      out, out, n, [sum](F32x16 e) __attribute__((always_inline)) { return e / sum; });
}

void moe_sum(const Tensor& y, const int32_t* rows, const float* weights, int64_t k, float* out) {
  for (int64_t c = 0; c < y.cols; c += kLanes) {
    const int64_t lanes = y.cols - c < kLanes ? y.cols - c : kLanes;
    F32x16 sum = zero();
    for (int64_t r = 0; r < k; ++r) sum = fma(splat(weights[r]), load_some(row_of(y, rows[r]) + c, lanes), sum);
    store_some(out + c, sum, lanes);
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
