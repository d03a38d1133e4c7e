// SPDX-License-Identifier: Apache-2.0
// glu, activation, residual_add, scale and soft_cap of rows; the contract is in ops/activation.h.
#include "backend/cpu/isa/activation_functions.h"
#include "backend/cpu/isa/declare.h"
#include "backend/cpu/isa/row_loops.h"

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

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
  QUIRE_DISPATCH_ACTIVATION(args.activation, glu_rows, args, row_begin, row_end)
}

void activation(const ActivationArgs& args, int64_t row_begin, int64_t row_end) {
  QUIRE_DISPATCH_ACTIVATION(args.activation, activation_rows, args, row_begin, row_end)
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
