// SPDX-License-Identifier: Apache-2.0
// The functions of ops/activation.h in doubles: the oracle of the tests of every backend.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/activation.h"

namespace quire::cases {

inline constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu,  Activation::kGeluTanh,
                                              Activation::kRelu, Activation::kRelu2, Activation::kSigmoid};

inline double exact_activation(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kRelu2:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return 0;
}

inline double exact_clamped_glu(double gate, double up, double limit) {
  const double g = std::min(gate, limit);
  return (std::clamp(up, -limit, limit) + 1) * g / (1 + std::exp(-1.702 * g));
}

inline double exact_soft_cap(double x, double cap) {
  return cap * std::tanh(x / cap);
}

}  // namespace quire::cases
