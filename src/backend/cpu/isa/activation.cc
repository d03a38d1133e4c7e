// SPDX-License-Identifier: Apache-2.0
// glu, activation, residual_add, scale and soft_cap of rows; the contract is in ops/activation.h.
#include "backend/cpu/isa/declare.h"
#include "backend/cpu/isa/row_loops.h"
#include "backend/cpu/simd_math.h"

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

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

template <typename Act>
void glu_rows(const GluArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    map_row(
        row_of(args.gate, row), row_of(args.up, row), row_of(args.out, row), args.out.cols,
        [](F32x16 gate, F32x16 up) __attribute__((always_inline)) { return Act::of(gate) * up; });
  }
}

void clamped_glu_rows(const GluArgs& args, int64_t row_begin, int64_t row_end) {
  const F32x16 most = splat(args.limit), least = splat(-args.limit);
  for (int64_t row = row_begin; row < row_end; ++row) {
    map_row(
        row_of(args.gate, row), row_of(args.up, row), row_of(args.out, row), args.out.cols,
        [ most, least ](F32x16 gate, F32x16 up) __attribute__((always_inline)) {
          const F32x16 g = min(most, gate);  // the bound stands first to let NaN through
          const F32x16 u = max(least, min(most, up));
          return (u + splat(1.0f)) * (g * sigmoid(splat(1.702f) * g));
        });
  }
}

template <typename Act>
void activation_rows(const ActivationArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    map_row(
        row_of(args.x, row), row_of(args.out, row), args.out.cols,
        [](F32x16 x) __attribute__((always_inline)) { return Act::of(x); });
  }
}

}  // namespace

void glu(const GluArgs& args, int64_t row_begin, int64_t row_end) {
  if (args.limit > 0) return clamped_glu_rows(args, row_begin, row_end);
  switch (args.activation) {
    case Activation::kSilu:
      return glu_rows<Silu>(args, row_begin, row_end);
    case Activation::kGelu:
      return glu_rows<Gelu>(args, row_begin, row_end);
    case Activation::kGeluTanh:
      return glu_rows<GeluTanh>(args, row_begin, row_end);
    case Activation::kRelu:
      return glu_rows<Relu>(args, row_begin, row_end);
    case Activation::kRelu2:
      return glu_rows<Relu2>(args, row_begin, row_end);
    case Activation::kSigmoid:
      return glu_rows<Sigmoid>(args, row_begin, row_end);
  }
}

void activation(const ActivationArgs& args, int64_t row_begin, int64_t row_end) {
  switch (args.activation) {
    case Activation::kSilu:
      return activation_rows<Silu>(args, row_begin, row_end);
    case Activation::kGelu:
      return activation_rows<Gelu>(args, row_begin, row_end);
    case Activation::kGeluTanh:
      return activation_rows<GeluTanh>(args, row_begin, row_end);
    case Activation::kRelu:
      return activation_rows<Relu>(args, row_begin, row_end);
    case Activation::kRelu2:
      return activation_rows<Relu2>(args, row_begin, row_end);
    case Activation::kSigmoid:
      return activation_rows<Sigmoid>(args, row_begin, row_end);
  }
}

void residual_add(const ResidualAddArgs& args, int64_t row_begin, int64_t row_end) {
  const F32x16 scale = splat(args.scale);
  for (int64_t row = row_begin; row < row_end; ++row) {
    map_row(
        row_of(args.x, row), row_of(args.residual, row), row_of(args.out, row),
        args.out.cols, [scale](F32x16 x, F32x16 residual) __attribute__((always_inline)) {
          return fma(x, scale, residual);
        });
  }
}

void scale(const ScaleArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const F32x16 factor = splat(args.rows.empty() ? args.factor : args.factor * args.rows.data()[row]);
    map_row(
        row_of(args.x, row), row_of(args.out, row),
        args.out.cols, [factor](F32x16 x) __attribute__((always_inline)) { return x * factor; });
  }
}

void soft_cap(const SoftCapArgs& args, int64_t row_begin, int64_t row_end) {
  const F32x16 cap = splat(args.cap);
  for (int64_t row = row_begin; row < row_end; ++row) {
    map_row(
        row_of(args.x, row), row_of(args.out, row),
        args.out.cols, [cap](F32x16 x) __attribute__((always_inline)) { return cap * tanh(x / cap); });
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
