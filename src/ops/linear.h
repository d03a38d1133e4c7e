// SPDX-License-Identifier: Apache-2.0
// linear: y = x W^T (+ bias), for every weight type; the only door to a matrix product.
//
// Contract. x is [M, K] F32, W is [N, K], y is [M, N]. Row m of y depends on row m of x, W and bias alone: not on M,
// not on the other rows, not on the thread count. One accumulator an output, starting at +0, K ascending:
//  - plain weights (F32, F16, BF16), and every type when activations are kept in float:
//      for k: acc = fma(x[m,k], float(w[n,k]), acc)
//  - quantised weights with quantised activations. Each row of x is cut into blocks of 32: with amax the block's largest
//    magnitude, sa = amax/127 and xq = round-half-even(x * (127/amax)) as int8; a block below 2^-100 counts as zero
//    (sa = 0, xq = 0); one with an infinity or a NaN has sa = NaN, xq = 0. xsum = sum of xq. A weight block of 32
//    has an unsigned code q per element, an offset o per type, and scales; with the integer dot I (exact in any order):
//      acc = fma(float(I), sa * sw, acc), then, for types with a minimum, acc = fma(wm, sa * float(J), acc)
//      Q8_0 Q4_0 Q5_0 : I = sum (q-o) xq, sw = d
//      Q4_1 Q5_1      : I = sum q xq, sw = d, wm = m, J = xsum
//      Q4_K Q5_K      : I = sum q xq, sw = d*sc, wm = -(dmin*mn), J = xsum      (sc, mn of that block of 32)
//      Q6_K Q3_K      : I = sc0 * sum_lo16 (q-o) xq + sc1 * sum_hi16 (q-o) xq, sw = d
//      Q2_K           : I = sc0 * sum_lo16 q xq + sc1 * sum_hi16 q xq, sw = d, wm = -dmin, J = mn0*xsum_lo16 +
//      mn1*xsum_hi16
//    where products of scales are rounded to float once, in the order written.
//  - then y = acc + bias[n] where there is a bias.
// Every ISA level gives these bits exactly.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "ops/tensor.h"

namespace quire {

// A weight as a file holds it: n rows of k elements, each row_bytes(dtype, k) long, back to back.
struct RawMatrix {
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* data = nullptr;
  // Optional: row i of the packed weight is row row_map[i] of the file (undoes GGUF's permutation of q and k).
  std::span<const int32_t> row_map = {};
};

struct PackOptions {
  bool quantise_activations = true;  // false (--dtype float32): quantised weights meet float activations
};

// A weight in the backend's own layout, made once at load. Immutable; any thread may use it.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual size_t bytes() const = 0;
  DType dtype() const { return dtype_; }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }

 protected:
  PackedMatrix(DType dtype, int64_t n, int64_t k) : dtype_(dtype), n_(n), k_(k) {}

 private:
  DType dtype_;
  int64_t n_;
  int64_t k_;
};

struct LinearArgs {
  Tensor x;  // [M, K]
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;  // [N] or null
  Tensor out;                   // [M, N]; must not overlap x
};

}  // namespace quire
