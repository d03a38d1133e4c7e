// SPDX-License-Identifier: Apache-2.0
// rms_norm, layer_norm and gated_rms_norm over groups of columns of each row, and add_norm.
//
// Contract. Sums run in 16 lanes (lane i takes elements i, i+16, ...; a last partial group adds nothing to the lanes
// past it) with fma for squares, then the lanes fold 8, 4, 2, 1. So the order of a sum depends on `group` alone.
//   rms_norm:   y = (x * (1 / sqrt(sum(x^2)/group + eps))) * w, each operation rounded
//   layer_norm: mean first, then the sum of squared differences; rstd as in rms_norm;
//               y = fma((x - mean) * rstd, w, b), without a bias ((x - mean) * rstd) * w
// `out` may be `x`.
#pragma once

#include "ops/tensor.h"

namespace quire {

struct RmsNormArgs {
  Tensor x;                       // [rows, cols]
  const float* weight = nullptr;  // [group]
  int64_t group = 0;              // divides cols; each group of columns is normalised on its own (head_dim for qk-norm)
  float eps = 0;
  Tensor out;
};
void check(const RmsNormArgs& args);

struct LayerNormArgs {
  Tensor x;
  const float* weight = nullptr;  // [group]
  const float* bias = nullptr;    // [group] or null
  int64_t group = 0;
  float eps = 0;
  Tensor out;
};
void check(const LayerNormArgs& args);

// A norm with a gate, as recurrent layers have it. Gate last: out = rms_norm(x) * silu(gate). Gate first:
// out = rms_norm(x * silu(gate)). Each product is rounded; rms_norm is as above, over `group` columns.
struct GatedRmsNormArgs {
  Tensor x;     // [rows, cols]
  Tensor gate;  // [rows, cols]
  const float* weight = nullptr;
  int64_t weight_size = 0;  // column c takes weight[c % weight_size]; group or cols
  int64_t group = 0;
  float eps = 0;
  bool gate_first = false;
  Tensor out;  // may be x
};
void check(const GatedRmsNormArgs& args);

// What stands between two products of a layer as one op, where Backend::joins_add_norm(): the addition to the residual
// stream, with the norm before it where a model has one, and the norm of the next part. The bits are those of the
// separate ops:
//   with post_weight: x = rms_norm(x) with these weights, rounded to x's type
//   residual = fma(x, scale, residual)
//   with weight: out = rms_norm(residual)
struct AddNormArgs {
  Tensor x;                            // [rows, cols]
  const float* post_weight = nullptr;  // [cols]
  float scale = 1;
  Tensor residual;                // F32
  const float* weight = nullptr;  // [cols]
  float eps = 0;
  Tensor out;  // with weight; of x's type, may be x
};
void check(const AddNormArgs& args);

}  // namespace quire
