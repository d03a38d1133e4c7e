// SPDX-License-Identifier: Apache-2.0
// Gated and plain activations, and the scaled residual addition.
//
// Contract. Elementwise, each operation rounded to float in the order written:
//   silu(x)      = x / (1 + exp(-x))
//   gelu(x)      = (x * 0.5) * (1 + erf(x * sqrt(1/2)))
//   gelu_tanh(x) = (x * 0.5) * (1 + tanh(fma((x * x) * 0.044715, x, x) * sqrt(2/pi)))
//   relu(x)      = 0 > x ? 0 : x
// exp, tanh and erf are the project's own polynomials (backend/cpu/simd_math.h), the same bits in vector body and tail.
#pragma once

#include "ops/tensor.h"

namespace quire {

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };

struct GluArgs {  // out = act(gate) * up
  Tensor gate;    // [rows, cols]
  Tensor up;      // [rows, cols]
  Activation activation = Activation::kSilu;
  Tensor out;  // may be gate or up
};

struct ActivationArgs {  // out = act(x)
  Tensor x;
  Activation activation = Activation::kSilu;
  Tensor out;
};

struct ResidualAddArgs {  // out = fma(x, scale, residual); scale 1 is a plain addition
  Tensor x;
  Tensor residual;
  float scale = 1.0f;
  Tensor out;  // may be residual
};

}  // namespace quire
