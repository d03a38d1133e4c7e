// SPDX-License-Identifier: Apache-2.0
// Gated and plain activations, and the scaled residual addition.
//
// Contract. Elementwise: silu(x) = x / (1 + exp(-x)); gelu(x) = 0.5 x (1 + erf(x/sqrt 2)); gelu_tanh with the usual
// cubic. exp, tanh and erf are the project's own polynomials (backend/cpu/simd_math.h), the same bits in vector body
// and tail.
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
