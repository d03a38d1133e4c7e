// SPDX-License-Identifier: Apache-2.0
// Random weights (--load-format dummy), with the bits of weights/dummy.h: an element depends only on the tensor's key
// and on its index there.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/params/dummy.h"
#include "kernels/philox.h"

// Element `index` of the random tensor. `words` are those of `block`, four elements, and are kept for the next call.
FN float dummy_element(CONSTANT const DummyParams& p, i64 index, THREAD i64& block, THREAD uint4& words) {
  const i64 wanted = index >> 2;
  if (wanted != block) {
    block = wanted;
    words = philox_words(make_uint4((uint)wanted, (uint)(wanted >> 32), 0u, 0u), p.key_low, p.key_high);
  }
  const uint word = philox_word(words, (int)(index & 3));
  const float v = 2.0f * ((float)(word >> 8) * 0x1p-24f) - 1.0f;  // exact
  const float scaled = v * p.scale;
  const float x = p.base == 0.0f ? scaled : p.base + scaled;  // 0 + x would turn -0 into 0
  return p.stored == 0 ? x : p.stored == 1 ? to_f(to<half>(x)) : to_f(to<bfloat>(x));
}

FN i64 dummy_row(CONSTANT const DummyParams& p, DEVICE const int* map, int row) {
  return p.first + (i64)(p.mapped != 0 ? map[row] : row) * p.row_step;
}

// Rows of a plain weight. A thread makes four neighbouring elements at a time. Grid: (rows, columns / kDummyColumns).
template <typename T>
struct FillDummy {
  enum { kThreads = kDummyThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const DummyParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const int* map) {
    const i64 from = dummy_row(p, map, (int)c.tgx);
    DEVICE T* to_row = out + (i64)c.tgx * p.stride;
    const int end = min((int)(c.tgy + 1) * kDummyColumns, p.columns);
    for (int at = (int)c.tgy * kDummyColumns + 4 * (int)c.tid; at < end; at += 4 * kThreads) {
      i64 block = -1;
      uint4 words = make_uint4(0u, 0u, 0u, 0u);
      const int last = min(at + 4, end);
      for (int i = at; i < last; i++) to_row[i] = to<T>(dummy_element(p, from + i * p.column_step, block, words));
    }
  }
};
KERNEL(fill_dummy_f32, FillDummy<float>, DummyParams, float, const int)
KERNEL(fill_dummy_f16, FillDummy<half>, DummyParams, half, const int)
KERNEL(fill_dummy_bf16, FillDummy<bfloat>, DummyParams, bfloat, const int)

// The code of the nearest of 0, 1, 2, 3, 4, 6, 8 and 12 (kFp4Values); of two that are as near, the smaller one.
FN uint dummy_fp4(float x, float inverse) {
  const float a = abs(x) * inverse;  // exact: a power of two
  uint code = 0u;
  code += a > 0.5f ? 1u : 0u;
  code += a > 1.5f ? 1u : 0u;
  code += a > 2.5f ? 1u : 0u;
  code += a > 3.5f ? 1u : 0u;
  code += a > 5.0f ? 1u : 0u;
  code += a > 7.0f ? 1u : 0u;
  code += a > 10.0f ? 1u : 0u;
  return x < 0.0f && code != 0u ? code + 8u : code;
}

// Rows of a weight in MXFP4, in its panels (params/linear.h), with the bits of weights::quantise_row. A thread makes 32
// elements of a row, and neighbouring threads neighbouring rows. Grid: (rows / 16, columns / (32 * kDummyBlocks)).
struct FillDummyFp4 {
  enum { kThreads = kDummyThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const DummyParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const int* map) {
    const int row = (int)(c.tgx * 16u + (c.tid & 15u)), at = (int)(c.tgy * kDummyBlocks + (c.tid >> 4));
    if (row >= p.rows || at * 32 >= p.columns) return;
    const i64 from = dummy_row(p, map, row) + (i64)at * 32 * p.column_step;
    float x[32];
    float most = 0.0f;
    i64 block = -1;
    uint4 words = make_uint4(0u, 0u, 0u, 0u);
    for (int i = 0; i < 32; i++) {
      x[i] = dummy_element(p, from + i * p.column_step, block, words);
      most = max(most, abs(x[i]));
    }
    // The scale 2^(e - 128) brings the largest to between 8 and 16. Only a block of zeros is smaller than a normal
    // float.
    const int e = most == 0.0f ? 0 : max((int)(as_uint(most) >> 23) - 2, 0);
    const float inverse = e == 0 ? 0.0f : as_float((uint)(255 - e) << 23);
    const int weight_row = p.first_row + row, in_panel = weight_row & 15;
    DEVICE uchar* panel = out + (i64)(weight_row >> 4) * p.stride;
    for (int half_block = 0; half_block < 2; half_block++) {
      uint low[2] = {0u, 0u};
      for (int i = 0; i < 8; i++) {
        const uint byte = dummy_fp4(x[16 * half_block + i], inverse) | dummy_fp4(x[16 * half_block + 8 + i], inverse)
                                                                           << 4;
        low[i >> 2] |= byte << (8 * (i & 3));
      }
      *(DEVICE uint2*)(panel + ((2 * at + half_block) * 16 + in_panel) * 8) = make_uint2(low[0], low[1]);
    }
    panel[p.head_at + at * 16 + in_panel] = (uchar)(e < 128 - 29 ? 0 : e);  // too small: zero (ops/linear.h)
  }
};
KERNEL(fill_dummy_fp4, FillDummyFp4, DummyParams, uchar, const int)
