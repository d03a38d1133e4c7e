// SPDX-License-Identifier: Apache-2.0
// The norms of ops/norm.h in doubles, for one group of columns: the oracle of the tests of every backend.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "backend/testing/scalar_math.h"

namespace quire::cases {

inline double inverse_rms(std::span<const double> x, float eps) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  return 1 / std::sqrt(squares / static_cast<double>(x.size()) + double{eps});
}

inline std::vector<double> exact_rms_norm(std::span<const float> x, std::span<const float> weight, float eps) {
  std::vector<double> y(x.begin(), x.end());
  const double scale = inverse_rms(y, eps);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= scale * double{weight[i]};
  return y;
}

struct LayerNormTruth {
  std::vector<double> y;
  double scale;  // 1 / standard deviation
};
inline LayerNormTruth exact_layer_norm(std::span<const float> x, std::span<const float> weight, const float* bias,
                                       float eps) {
  std::vector<double> y(x.begin(), x.end());
  double mean = 0;
  for (const double v : y) mean += v / static_cast<double>(y.size());
  for (double& v : y) v -= mean;
  const double scale = inverse_rms(y, eps);
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = y[i] * scale * double{weight[i]} + (bias != nullptr ? double{bias[i]} : 0);
  }
  return {y, scale};
}

inline std::vector<double> exact_gated_rms_norm(std::span<const float> x, std::span<const float> gate,
                                                std::span<const float> weight, float eps, bool gate_first) {
  std::vector<double> y(x.begin(), x.end());
  for (size_t i = 0; i < y.size() && gate_first; ++i) y[i] *= silu(double{gate[i]});
  const double scale = inverse_rms(y, eps);
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] *= scale * double{weight[i]} * (gate_first ? 1 : silu(double{gate[i]}));
  }
  return y;
}

}  // namespace quire::cases
