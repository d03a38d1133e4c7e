// SPDX-License-Identifier: Apache-2.0
// Elementwise ops: gated and plain activations, the scaled residual addition, scaling and the soft cap.
//
// Contract. Each operation is rounded to float, in the order written:
//   silu(x)      = x / (1 + exp(-x))
//   gelu(x)      = (x * 0.5) * (1 + erf(x * sqrt(1/2)))
//   gelu_tanh(x) = (x * 0.5) * (1 + tanh(fma((x * x) * 0.044715, x, x) * sqrt(2/pi)))
//   relu(x)      = 0 > x ? 0 : x
//   relu2(x)     = relu(x) * relu(x)
//   sigmoid(x)   = 1 / (1 + exp(-x))
// exp, tanh and erf are the project's own polynomials (backend/cpu/simd_math.h), with the same bits in the vector body
// and in the tail of a row.
#pragma once

#include <span>

#include "ops/tensor.h"

namespace quire {

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kSigmoid };

// out = act(gate) * up. With a limit (GPT-OSS): g = limit < gate ? limit : gate, u = up clamped to [-limit, limit]
// likewise (a NaN stays), out = (u + 1) * (g * sigmoid(1.702 * g)).
struct GluArgs {
  Tensor gate;  // [rows, cols]
  Tensor up;    // [rows, cols]
  Activation activation = Activation::kSilu;
  Tensor out;       // may be gate or up
  float limit = 0;  // > 0: the clamped form, which ignores `activation`
};
void check(const GluArgs& args);

struct ActivationArgs {  // out = act(x)
  Tensor x;
  Activation activation = Activation::kSilu;
  Tensor out;
};
void check(const ActivationArgs& args);

struct ResidualAddArgs {  // out = fma(x, scale, residual); a scale of 1 is a plain addition
  Tensor x;
  Tensor residual;
  float scale = 1.0f;
  Tensor out;  // may be residual
};
void check(const ResidualAddArgs& args);

struct SoftCapArgs {  // out = cap * tanh(x / cap)
  Tensor x;
  float cap = 0;
  Tensor out;  // may be x
};
void check(const SoftCapArgs& args);

// out[t] = x[t] * (factor * rows[t]), the product of the factors rounded first; without rows, out[t] = x[t] * factor.
struct ScaleArgs {
  Tensor x;
  float factor = 1.0f;
  std::span<const float> rows = {};  // [rows] or empty
  Tensor out;                        // may be x
};
void check(const ScaleArgs& args);

}  // namespace quire
