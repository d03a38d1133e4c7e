// SPDX-License-Identifier: Apache-2.0
// rope: the rotary position embedding (Su et al. 2021); the contract is in ops/rope.h.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/params/rope.h"
#include "kernels/rope_pair.h"

// A thread has read a pair before it writes it, so out may be x.
template <typename T>
struct Rope {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const RopeParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* x,
                     DEVICE const float* cosines, DEVICE const float* sines, DEVICE const int* positions) {
    const uint index = c.tgx * (uint)kElementThreads + c.tid, of_row = (uint)(p.heads * p.half_dim);
    const i64 row = (i64)(index / of_row);
    if (row >= p.rows) return;
    const int in_row = (int)(index % of_row);
    const int head = in_row / p.half_dim, pair = in_row - head * p.half_dim;
    const i64 angle = (i64)positions[row] * p.half_dim + pair;
    DEVICE const T* from = x + row * p.stride + head * p.head_dim + p.offset;
    DEVICE T* rotated = out + row * p.out_stride + head * p.out_head + p.out_offset;
    const int first = rotate_first(pair, p.interleaved), second = rotate_second(pair, p.half_dim, p.interleaved);
    const float2 y = rotate_pair(to_f(from[first]), to_f(from[second]), cosines[angle], sines[angle]);
    rotated[first] = to<T>(y.x);
    rotated[second] = to<T>(y.y);
  }
};
KERNEL(rope_f32, Rope<float>, RopeParams, float, const float, const float, const float, const int)
KERNEL(rope_f16, Rope<half>, RopeParams, half, const half, const float, const float, const int)
KERNEL(rope_bf16, Rope<bfloat>, RopeParams, bfloat, const bfloat, const float, const float, const int)
