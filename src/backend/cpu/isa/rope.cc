// SPDX-License-Identifier: Apache-2.0
// rope of rows; the contract is in ops/rope.h.
#include "backend/cpu/isa/declare.h"
#include "backend/cpu/isa/row_loops.h"

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

struct Pair {
  F32x16 a, b;
};
QUIRE_INLINE Pair rotate(F32x16 a, F32x16 b, F32x16 c, F32x16 s) {
  return {fma(a, c, neg(b * s)), fma(b, c, a * s)};
}

// Pairs (i, i + half). `to` may be x.
void rotate_halves(const float* x, const float* cosines, const float* sines, int64_t half, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Pair y = rotate(load(x + i), load(x + half + i), load(cosines + i), load(sines + i));
    store(to + i, y.a);
    store(to + half + i, y.b);
  }
  if (i < half) {
    const int64_t n = half - i;
    const Pair y = rotate(load_n(x + i, n), load_n(x + half + i, n), load_n(cosines + i, n), load_n(sines + i, n));
    store_n(to + i, y.a, n);
    store_n(to + half + i, y.b, n);
  }
}

// Pairs (2i, 2i + 1). `to` may be x.
void rotate_neighbours(const float* x, const float* cosines, const float* sines, int64_t half, float* to) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i < kLanes ? half - i : kLanes;
    const int64_t low = 2 * n < kLanes ? 2 * n : kLanes;  // elements in the first and the second vector
    const int64_t high = 2 * n - low;
    const float* p = x + 2 * i;
    F32x16 a, b, first_half, second_half;
    deinterleave(load_some(p, low), load_some(p + low, high), &a, &b);
    const Pair y = rotate(a, b, load_some(cosines + i, n), load_some(sines + i, n));
    interleave(y.a, y.b, &first_half, &second_half);
    store_some(to + 2 * i, first_half, low);
    store_some(to + 2 * i + low, second_half, high);
  }
}

}  // namespace

void rope(const RopeArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t half = args.rot_dim / 2;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t at = args.positions.data()[row] * half;
    const float* cosines = args.cos_table + at;
    const float* sines = args.sin_table + at;
    float* x = row_of(args.x, row) + args.offset;
    const bool in_place = args.into.data == nullptr;
    const int64_t to_step = in_place ? args.head_dim : args.into_head_dim;
    float* to = in_place ? x : row_of(args.into, row) + to_step - args.rot_dim;
    for (int64_t c = 0; c < args.x.cols; c += args.head_dim, to += to_step) {
      if (args.interleaved) {
        rotate_neighbours(x + c, cosines, sines, half, to);
      } else {
        rotate_halves(x + c, cosines, sines, half, to);
      }
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
