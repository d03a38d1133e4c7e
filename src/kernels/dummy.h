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

// Random codes in the panels of a quantised weight (params/linear.h), with the bits of backend/random_rows.h. A thread
// makes 16 elements of a row, and what scales begin there; neighbouring threads have neighbouring rows. Grid: (rows /
// 16, columns / (16 * kDummySteps)).
struct FillDummyCodes {
  enum { kThreads = kDummyThreads };
  typedef NoSmem Smem;

  static FN uint4 random_words(i64 counter, uint key_low, uint key_high) {
    return philox_words(make_uint4((uint)counter, (uint)(counter >> 32), 0u, 0u), key_low, key_high);
  }

  static FN void put_codes(CONSTANT const WeightParams& w, DEVICE uchar* panel, int at, THREAD const uint* code) {
    if (w.low_bits == 8) {
      uint v[4] = {0u, 0u, 0u, 0u};
      UNROLL for (int i = 0; i < 16; i++) v[i >> 2] |= code[i] << (8 * (i & 3));
      ((DEVICE uint4*)panel)[at] = make_uint4(v[0], v[1], v[2], v[3]);
    } else if (w.low_bits == 4) {
      uint v[2] = {0u, 0u};
      UNROLL for (int i = 0; i < 16; i++) v[(i >> 2) & 1] |= (code[i] & 15u) << (8 * (i & 3) + 4 * (i >> 3));
      ((DEVICE uint2*)panel)[at] = make_uint2(v[0], v[1]);
    } else {
      uint v = 0u;
      UNROLL for (int i = 0; i < 16; i++) v |= (code[i] & 3u) << (2 * i);
      ((DEVICE uint*)panel)[at] = v;
    }
    uint high = 0u;
    UNROLL for (int i = 0; i < 16; i++) high |= (code[i] >> w.low_bits) << (w.high_bits * i);
    if (w.high_bits == 1) ((DEVICE ushort*)(panel + w.high_at))[at] = (ushort)high;
    if (w.high_bits == 2) ((DEVICE uint*)(panel + w.high_at))[at] = high;
  }

  static FN uint bits_of_half(float x) { return (uint)to_bits16(to<half>(x)); }

  // The scale that begins at a step; `words` are its random ones.
  static FN void put_head(CONSTANT const DummyCodesParams& p, DEVICE uchar* panel, int at, uint4 words) {
    CONSTANT const WeightParams& w = p.weight;
    DEVICE uchar* heads = panel + w.head_at;
    const float v = 2.0f * ((float)(words.x >> 8) * 0x1p-24f) - 1.0f;
    const float size = p.scale * (1.0f + 0.25f * v);
    const float d = p.middle == 0.0f && p.fp8 == 0 && (words.x & 1u) != 0u ? -size : size;
    const float least = p.middle * d;
    if (w.scheme == kSchemeGroup) {
      const float whole = to_f(to<half>(d)), zero = p.middle + ((words.x & 1u) != 0u ? 0.5f : -0.5f);
      ((DEVICE uint2*)heads)[at] = make_uint2(as_uint(whole), as_uint(fma((float)w.offset, whole, -(zero * whole))));
    } else if (w.scheme == kSchemeScale || w.scheme == kSchemeSubScale) {
      ((DEVICE ushort*)heads)[at] = (ushort)bits_of_half(d);
    } else if (w.scheme == kSchemeScaleMin) {
      ((DEVICE uint*)heads)[at] = bits_of_half(d) | bits_of_half(-least) << 16;
    } else if (w.scheme == kSchemeExponent) {
      heads[at] = (uchar)((as_uint(p.scale) >> 23) + 1u - (words.x & 1u));
    } else if (w.scheme == kSchemeE4M3) {
      ((DEVICE uint*)heads)[at] = as_uint(d);
    } else {
      ((DEVICE uint*)heads)[at] = bits_of_half(d) | bits_of_half(least) << 16;
    }
  }

  static FN void put_sub(CONSTANT const DummyCodesParams& p, DEVICE uchar* panel, int step, int row, uint4 words) {
    CONSTANT const WeightParams& w = p.weight;
    DEVICE uchar* subs = panel + w.sub_at;
    const uint t = ((step & 8) != 0 ? words.z : words.y) >> (4 * (step & 7)) & 15u;
    const uint sub = (uint)p.sub + (t * (uint)p.sub >> 4);
    if (w.scheme == kSchemeSuperMin) {
      ((DEVICE ushort*)subs)[(step >> 1) * 16 + row] = (ushort)(sub | sub << 8);
    } else if (w.scheme == kSchemeSubScaleMin) {
      subs[step * 16 + row] = (uchar)(sub | sub << 4);
    } else {
      subs[(step >> w.sub_shift) * 16 + row] = (uchar)sub;
    }
  }

  static FN void run(Ctx c, CONSTANT const DummyCodesParams& p, TGROUP Smem& sm, DEVICE uchar* out,
                     DEVICE const int* map) {
    CONSTANT const WeightParams& w = p.weight;
    const int row = (int)(c.tgx * 16u + (c.tid & 15u)), step = (int)(c.tgy * kDummySteps + (c.tid >> 4));
    if (row >= p.rows || step * 16 >= w.k) return;
    const i64 from = p.first + (p.mapped != 0 ? map[row] : row);  // a row of the random tensor
    const int weight_row = p.first_row + row, in_panel = weight_row & 15;
    DEVICE uchar* panel = out + (i64)(weight_row >> 4) * w.stride;
    const uint4 words = random_words(from * (w.k >> 4) + step, p.key_low, p.key_high);
    uint code[16];
    UNROLL for (int i = 0; i < 16; i++) {
      const uint byte = (philox_word(words, i >> 2) >> (8 * (i & 3))) & 255u;
      code[i] = p.fp8 != 0 ? (byte & 128u) | (88u + ((byte >> 2) & 31u)) : byte >> (8 - p.bits);
    }
    put_codes(w, panel, step * 16 + in_panel, code);
    const bool begins = step % p.head_steps == 0;
    const int between = w.scheme == kSchemeSuperMin ? 2 : 1 << w.sub_shift;  // steps that share a sub-scale
    const bool has_sub = p.sub != 0 && step % between == 0;
    if (!begins && !has_sub) return;
    const i64 index = from / p.scale_rows * p.scales + step * 16 / p.scale_columns;
    const uint4 scale = random_words(index, p.scale_key_low, p.scale_key_high);
    if (begins) put_head(p, panel, step / p.head_steps * 16 + in_panel, scale);
    if (has_sub) put_sub(p, panel, step, in_panel, scale);
  }
};
KERNEL(fill_dummy_codes, FillDummyCodes, DummyCodesParams, uchar, const int)
