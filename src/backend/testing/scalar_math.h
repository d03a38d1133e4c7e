// SPDX-License-Identifier: Apache-2.0
// Scalar functions of the oracles: the project's own exp, tanh and the like on one number, the lane sums of
// ops/norm.h, rounding to an activation type, and random floats.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/simd_probe.h"
#include "base/half.h"
#include "ops/dtype.h"

namespace quire::cases {

inline float call(cpu::ProbeOp op, float x) {
  float out;
  cpu::simd_probe(cpu::Isa::kPortable).map(op, &x, &x, &x, &out, 1);
  return out;
}
inline float exp_of(float x) {
  return call(cpu::ProbeOp::kExp, x);
}
inline float sigmoid_of(float x) {
  return call(cpu::ProbeOp::kSigmoid, x);
}
inline float softplus_of(float x) {
  return call(cpu::ProbeOp::kSoftplus, x);
}
inline float tanh_of(float x) {
  return call(cpu::ProbeOp::kTanh, x);
}
inline float erf_of(float x) {
  return call(cpu::ProbeOp::kErf, x);
}
inline float silu(float x) {
  return x / (1.0f + exp_of(-x));
}
inline double silu(double x) {
  return x / (1 + std::exp(-x));
}
inline double softplus(double x) {
  return x > 20 ? x : std::log1p(std::exp(x));  // as in torch
}

// The sum of the contract: element i goes to lane i % 16 by add(lane, i), then the lanes fold 8, 4, 2, 1.
template <typename F>
float lane_sum(int64_t n, const F& add) {
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % 16] = add(lanes[i % 16], i);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}
inline float lane_dot(const float* x, const float* y, int64_t n) {
  return lane_sum(n, [&](float acc, int64_t i) { return std::fma(x[i], y[i], acc); });
}

inline float rounded(float x, DType type) {
  if (type == DType::kF16) return fp16_to_float(float_to_fp16(x));
  if (type == DType::kBF16) return bf16_to_float(float_to_bf16(x));
  return x;
}

// In [-range, range), the same on every machine.
inline std::vector<float> random_floats(int64_t n, uint32_t seed, float range = 1.0f) {
  std::mt19937 random(seed);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = range * (static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f);
  return out;
}

}  // namespace quire::cases
