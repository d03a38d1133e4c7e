// SPDX-License-Identifier: Apache-2.0
// The activation functions, selected by the value of quire::Activation, for every kernel that applies one. No kernels
// here.
#pragma once

#include "kernels/compat/float_math.h"

enum { kActSilu = 0, kActGelu = 1, kActGeluTanh = 2, kActRelu = 3, kActRelu2 = 4, kActSigmoid = 5 };

FN float activate(int kind, float x) {
  if (kind == kActSilu) return q_silu(x);
  if (kind == kActGelu) return (x * 0.5f) * (1.0f + q_erf(x * 0x1.6a09e6p-1f));  // sqrt(1/2)
  if (kind == kActGeluTanh) {
    return (x * 0.5f) * (1.0f + q_tanh(fma((x * x) * 0.044715f, x, x) * 0x1.988454p-1f));  // sqrt(2/pi)
  }
  if (kind == kActSigmoid) return q_sigmoid(x);
  const float positive = 0.0f > x ? 0.0f : x;
  return kind == kActRelu2 ? positive * positive : positive;
}

// act(gate) * up; with a limit above 0, GPT-OSS's clamped form, in which a NaN stays NaN.
FN float activate_glu(int kind, float limit, float gate, float up) {
  if (limit > 0.0f) {
    const float g = limit < gate ? limit : gate;
    float u = limit < up ? limit : up;
    u = u < -limit ? -limit : u;
    return (u + 1.0f) * (g * q_sigmoid(1.702f * g));
  }
  return activate(kind, gate) * up;
}
