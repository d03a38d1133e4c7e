// SPDX-License-Identifier: Apache-2.0
// linear: y = x W^T (+ bias), for every weight type; linear_heads: such a product for each head of a layer.
//
// Contract. x is [M, K] F32, W is [N, K], y is [M, N]. Row m of y depends only on row m of x, W and bias: not on M, the
// other rows or the number of threads. Each output has one accumulator that starts at +0, with K ascending. The weight
// type, the pack options and the ISA level select one of five forms of the product:
//  - float: plain weights (F32, F16, BF16), and every type when activations are kept in float.
//      for k: acc = fma(x[m,k], float(w[n,k]), acc)
//  - quantised: quantised weights. A row of x becomes blocks of 32 with a scale sa each, X = round-half-even(x / sa).
//    Twelve bits: sa = amax/2032, the quotient taken as x * (2032/amax), all 0 when amax is below 2^-100; with Arm's
//    dot instructions eight bits, the same with 127 for 2032. A block with an infinity or a NaN has sa = NaN. A weight
//    block of 32 has an unsigned code q per element, an offset o per type, and scales; with the integer dot I (exact in
//    any order):
//      acc = fma(float(I), sa * sw, acc), then, for types with a minimum, acc = fma(wm, sa * float(J), acc)
//      Q8_0 Q4_0 Q5_0 : I = sum (q-o) X, sw = d
//      Q4_1 Q5_1      : I = sum q X, sw = d, wm = m, J = sum X
//      Q4_K Q5_K      : I = sum q X, sw = d*sc, wm = -(dmin*mn), J = sum X      (sc, mn of that block of 32)
//      Q6_K Q3_K      : float(I) is fma(hi, sc1, lo*sc0) with lo = sum_lo16 (q-o) X, hi = sum_hi16 (q-o) X, sw = d
//      Q2_K           : float(I) likewise of sum q X, sw = d, wm = -dmin, J = mn0*sum_lo16 X + mn1*sum_hi16 X
//      IQ4_NL IQ4_XS  : I = sum t[q] X, sw = d, or d*(ls-32)                     (t: kIq4Values)
//      MXFP4          : I = sum t[q] X, sw = 2^(e-128)                          (t: kFp4Values)
//      G4             : I = sum q X, sw = d, wm = m, J = sum X                  (d, m of the group)
//      G8             : I = sum (q-128) X, sw = d, wm = fma(128, d, m), J = sum X
//    where products of scales are rounded to float once, in the order written. All levels with as many
//    bits give the same result. A scale sw of G4, G8 or MXFP4 below 2^-29 counts as zero, in every form.
//  - fixed: quantised weights with AMX. A row of x has one scale, sa = amax/32256, and whole numbers
//    X = round-half-even(x * (32256/amax)); all 0 when amax is below 2^-100, and sa = NaN with an infinity or a NaN in
//    the row. A weight is q sw + c, where q is its code less half of the codes' range h (a table's entry: as it is;
//    h = 2^(bits-1), of MXFP4 16, of IQ4 128) and c = fma(h - o, sw, wm). A column has a bound B, the largest
//    h |sw| + |c| of its blocks (where scales differ after 16 k: of their halves), and its weights become
//      m = round-half-even(sw * (32256/B h)), C = round-half-even(c * (32256/B)),
//      W = ((q 2^(16-bits) m + 2^14) >> 15) + C; all 0 when B is below 2^-100
//    With W = 256 Wh + Wl, Wl in 0..255, and X = 256 Xh + Xl, Xl in -128..127, sums are whole numbers:
//      H = sum Wh Xh, L = sum (Wl Xh + Wh Xl) + (sum Xl >> 1), acc = (fma(float(H), 256, float(L)) * (B/126)) * sa
//    Wl Xl is left out but for its mean. H and L have 32 bits, which suffice for every x and W up to K = 44,000.
//  - rounded: BF16 weights with AMX. x is rounded to bf16 (ties to even). For each 32 k, even and odd k are summed
//    separately, each from +0:
//      even = fma(x[2i], w[2i], even), odd = fma(x[2i+1], w[2i+1], odd) for i ascending; acc = acc + (even + odd)
//    Subnormal operands and results count as zeros. The instruction tdpbf16ps computes this, in either operand order.
//  - paired: BF16 weights with Arm's bfmmla. x is rounded to bf16 (ties to even). For each two k, ascending to the next
//    multiple of 32 (zeros past K):
//      acc = odd(acc + odd(x[2i] * w[2i] + x[2i+1] * w[2i+1]))
//    where odd() rounds once, to the neighbour with an odd last bit when inexact. Subnormals count as zeros.
//  - then y = acc + bias[n] where there is a bias.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/activation.h"
#include "ops/tensor.h"

namespace quire {

// Random elements (--load-format dummy; weights/dummy.h has the formula): element (r, c) of a matrix is element
// first + r * row_step + c * column_step of a random tensor, rounded to `stored` and then to the type of the matrix.
struct RandomElements {
  uint64_t key = 0;
  float base = 0, scale = 0;
  DType stored = DType::kF32;  // F32, F16 or BF16
  int64_t first = 0, row_step = 0, column_step = 1;
  int64_t rows = 0;  // the rows after these are zeros
  // Random codes instead, with random scales, for a quantised type: backend/random_rows.h has the formula. Rows are
  // then k elements of the tensor, and `scale` is the mean of the blocks' scales. In a plain matrix the elements are
  // the values of fp8 codes.
  struct Codes {
    int bits = 0;                               // of a code; 0: there are no codes
    bool fp8 = false;                           // codes are E4M3
    float middle = 0;                           // of all codes, if the type has minima
    int sub = 0;                                // the least scale of a sub-block, if the type has them
    int64_t scale_rows = 1, scale_columns = 0;  // of the tensor, that share a scale
  };
  Codes codes = {};
};

// A weight as a file stores it: n rows of k elements, each row_bytes(dtype, k) long, back to back.
// G4 and G8: data are unsigned codes in k order (G4: two per byte, the lower k in the low nibble) and
// w[n, k] = scales[n][k / group] * code + mins[n][k / group], as a float: G4 fma(d, q, m), G8 fma(d, q - 128, wm).
// GF8: data are E4M3 bytes and w[n, k] = scales[n][k / group] * float(byte), rounded to a float and, unless
// PackOptions::activation is F32, to BF16: the values of a plain F32 or BF16 weight. There are no minima.
// Scales and minima are finite and below 2^40. All parts of a packed weight have the same group.
struct RawMatrix {
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* data = nullptr;
  // Optional: row i of the packed weight is row row_map[i] of the file (undoes GGUF's permutation of q and k).
  std::span<const int32_t> row_map = {};
  // G4, G8 and GF8 only: [n, k / group] each.
  int64_t group = 0;  // 32, 64 or 128, or any multiple of 32; divides k
  const float* scales = nullptr;
  const float* mins = nullptr;  // null: none
  // With a row_map: how many rows the file has, where that is more than n.
  int64_t file_rows = 0;
  // Instead of data: the backend makes the elements itself, codes always and others where Backend::makes() the type. A
  // row_map says which row r of the random elements a row is.
  std::optional<RandomElements> random = {};
};

class PackedMatrix;

struct PackOptions {
  bool quantise_activations = true;  // false (--dtype float32): products always take float activations
  DType activation = DType::kF32;    // the type of the model's activations (Backend::activation_dtype)
  // Optional: called on the packing thread with the bytes of a part that will not be read again.
  std::function<void(std::span<const std::byte>)> consumed = {};
  bool for_linear = true;  // false: linear() never gets it, but moe_experts(), linear_heads() or embedding()
  // One of several matrices of one shape and type that Backend::stack() will get: a backend may give all of them one
  // block of memory. `first` is null for the first of them, which is packed before the others.
  struct Stack {
    int64_t count = 1, place = 0;
    const PackedMatrix* first = nullptr;
  };
  Stack stack = {};
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

// A glu (ops/activation.h) after the product.
struct FusedGlu {
  Activation activation = Activation::kSilu;
  float limit = 0;  // as in GluArgs
};

// An rms_norm (ops/norm.h) over all columns of x before the product.
struct FusedNorm {
  const float* weight = nullptr;  // [K]
  float eps = 0;
};

struct LoraArgs;

struct LinearArgs {
  Tensor x;  // [M, K]
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;  // [N] or null
  Tensor out;                   // [M, N]; must not overlap x
  // Not empty: column i of the weight is multiplied with column columns[i] of x (GPTQ's act-order).
  std::span<const int32_t> columns = {};
  // Optional: the first N/2 columns are a gate and the others its up. out is then [M, N/2], with the bits of a linear
  // to [M, N] and a glu of its halves.
  const FusedGlu* gated = nullptr;
  // `norm`, only where Backend::joins_linear(): x is F32 and is normalised first, rounded to the type of activations.
  // `residual`, only where Backend::joins_residual(): out is F32 and becomes fma(y, residual_scale, residual), with y
  // rounded to the type of activations before. The bits are those of the separate ops.
  const FusedNorm* norm = nullptr;
  Tensor residual = {};  // no data: none; may be out
  float residual_scale = 1.0f;
  // `lora`, only where Backend::joins_lora(): both products of the step's adapters, which are added to the sums before
  // a gate or a residual. Its x is this x; its out is not used. The bits are those of the separate ops.
  const LoraArgs* lora = nullptr;
};
void check(const LinearArgs& args);

// Every head of x times a weight of its own, in one call: columns [0, n) of head h of out are the linear, without a
// bias, of columns [0, K) of head h of x and rows h * head_rows(n) to h * head_rows(n) + n - 1 of the weight. The bits
// are those of that linear.
struct LinearHeadsArgs {
  Tensor x;                              // [M, heads * columns of a head]; a head has K columns or more
  const PackedMatrix* weight = nullptr;  // [heads * head_rows(n), K]
  int64_t heads = 0;
  int64_t n = 0;
  Tensor out;  // [M, heads * columns of a head]; a head has n columns or more, and the others stay as they are
};
void check(const LinearHeadsArgs& args);

// The rows that a head has in the weight, those past n being padding: heads begin with a panel of a packed weight.
constexpr int64_t head_rows(int64_t n) {
  return (n + 15) / 16 * 16;
}

}  // namespace quire
