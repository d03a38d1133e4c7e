// SPDX-License-Identifier: Apache-2.0
// rms_norm, gated_rms_norm and layer_norm of rows; the contract is in ops/norm.h.
#include "backend/cpu/isa/declare.h"
#include "backend/cpu/isa/row_loops.h"
#include "backend/cpu/simd_math.h"

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

void rms_norm_group(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const int64_t whole = n / kLanes * kLanes;
  const int64_t rest = n - whole;
  F32x16 squares = zero();
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F32x16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (rest > 0) {
    const F32x16 v = load_n(x + whole, rest);
    squares = fma(v, v, squares);
  }
  const F32x16 inverse = splat(1.0f / sqrt1(reduce_add(squares) / static_cast<float>(n) + eps));
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, (load(x + i) * inverse) * load(weight + i));
  if (rest > 0) store_n(out + whole, (load_n(x + whole, rest) * inverse) * load_n(weight + whole, rest), rest);
}

void layer_norm_group(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* out) {
  const int64_t whole = n / kLanes * kLanes;
  const int64_t rest = n - whole;
  F32x16 sum = zero();
  for (int64_t i = 0; i < whole; i += kLanes) sum = sum + load(x + i);
  if (rest > 0) sum = sum + load_n(x + whole, rest);
  const F32x16 mean = splat(reduce_add(sum) / static_cast<float>(n));

  F32x16 squares = zero();
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F32x16 d = load(x + i) - mean;
    squares = fma(d, d, squares);
  }
  if (rest > 0) {
    const F32x16 d = select(first_lanes(rest), load_n(x + whole, rest) - mean, zero());
    squares = fma(d, d, squares);
  }
  const F32x16 rstd = splat(1.0f / sqrt1(reduce_add(squares) / static_cast<float>(n) + eps));

  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    const F32x16 v = (load_some(x + i, lanes) - mean) * rstd;
    const F32x16 w = load_some(weight + i, lanes);
    store_some(out + i, bias != nullptr ? fma(v, w, load_some(bias + i, lanes)) : v * w, lanes);
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = row_of(args.x, row);
    float* out = row_of(args.out, row);
    for (int64_t c = 0; c < args.x.cols; c += args.group) {
      rms_norm_group(x + c, args.weight, args.group, args.eps, out + c);
    }
  }
}

void gated_rms_norm(const GatedRmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  const auto gated = [](F32x16 x, F32x16 gate) __attribute__((always_inline)) {
    return x * (gate / (splat(1.0f) + exp(neg(gate))));
  };
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = row_of(args.x, row);
    const float* gate = row_of(args.gate, row);
    float* out = row_of(args.out, row);
    if (args.gate_first) map_row(x, gate, out, args.x.cols, gated);
    for (int64_t c = 0; c < args.x.cols; c += args.group) {
      const float* weight = args.weight + c % args.weight_size;
      rms_norm_group((args.gate_first ? out : x) + c, weight, args.group, args.eps, out + c);
    }
    if (!args.gate_first) map_row(out, gate, out, args.x.cols, gated);
  }
}

void layer_norm(const LayerNormArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = row_of(args.x, row);
    float* out = row_of(args.out, row);
    for (int64_t c = 0; c < args.x.cols; c += args.group) {
      layer_norm_group(x + c, args.weight, args.bias, args.group, args.eps, out + c);
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
