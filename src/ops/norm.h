// SPDX-License-Identifier: Apache-2.0
// rms_norm and layer_norm over groups of columns of each row.
//
// Contract. Sums run in 16 lanes (lane i takes elements i, i+16, ...; a last partial group adds nothing to the lanes
// past it) with fma for squares, then the lanes fold 8, 4, 2, 1. So the order depends on `group` alone.
//   rms_norm:   y = (x * (1 / sqrt(sum(x^2)/group + eps))) * w, each operation rounded
//   layer_norm: mean first, then the sum of squared differences; rstd as in rms_norm;
//               y = fma((x - mean) * rstd, w, b), without a bias ((x - mean) * rstd) * w
// In place is fine (out == x).
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

struct LayerNormArgs {
  Tensor x;
  const float* weight = nullptr;  // [group]
  const float* bias = nullptr;    // [group] or null
  int64_t group = 0;
  float eps = 0;
  Tensor out;
};

// Norms with a gate, as recurrent layers have them. Gate last: out = rms_norm(x) * silu(gate). Gate first:
// out = rms_norm(x * silu(gate)). Each product rounded; rms_norm as above, over `group` columns.
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

}  // namespace quire
