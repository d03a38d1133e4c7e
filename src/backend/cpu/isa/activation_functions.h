// SPDX-License-Identifier: Apache-2.0
// The activation functions over sixteen lanes; the contract is in ops/activation.h.
#pragma once

#include "backend/cpu/simd_math.h"
#include "ops/activation.h"

namespace quire::cpu::QUIRE_ISA_NS {

struct Silu {
  QUIRE_INLINE F32x16 of(F32x16 x) { return x / (splat(1.0f) + exp(neg(x))); }
};
struct Gelu {
  QUIRE_INLINE F32x16 of(F32x16 x) {
    return (x * splat(0.5f)) * (splat(1.0f) + erf(x * splat(0x1.6a09e6p-1f)));  // sqrt(1/2)
  }
};
struct GeluTanh {
  QUIRE_INLINE F32x16 of(F32x16 x) {
    const F32x16 cubic = fma((x * x) * splat(0.044715f), x, x);
    return (x * splat(0.5f)) * (splat(1.0f) + tanh(cubic * splat(0x1.988454p-1f)));  // sqrt(2/pi)
  }
};
struct Relu {
  QUIRE_INLINE F32x16 of(F32x16 x) { return max(zero(), x); }
};
struct Relu2 {
  QUIRE_INLINE F32x16 of(F32x16 x) { return max(zero(), x) * max(zero(), x); }
};
struct Sigmoid {
  QUIRE_INLINE F32x16 of(F32x16 x) { return splat(1.0f) / (splat(1.0f) + exp(neg(x))); }
};

// Calls fn with the function as a template argument.
#define QUIRE_DISPATCH_ACTIVATION(activation, fn, ...) \
  switch (activation) {                                \
    case Activation::kSilu:                            \
      return fn<Silu>(__VA_ARGS__);                    \
    case Activation::kGelu:                            \
      return fn<Gelu>(__VA_ARGS__);                    \
    case Activation::kGeluTanh:                        \
      return fn<GeluTanh>(__VA_ARGS__);                \
    case Activation::kRelu:                            \
      return fn<Relu>(__VA_ARGS__);                    \
    case Activation::kRelu2:                           \
      return fn<Relu2>(__VA_ARGS__);                   \
    case Activation::kSigmoid:                         \
      return fn<Sigmoid>(__VA_ARGS__);                 \
  }

}  // namespace quire::cpu::QUIRE_ISA_NS
