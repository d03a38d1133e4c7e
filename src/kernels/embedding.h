// SPDX-License-Identifier: Apache-2.0
// embedding: rows of a table of any weight type, selected by token or consecutive, times a scale, rounded to the
// output's type. It also expands rows of a quantised weight.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/linear_weight.h"
#include "kernels/load4.h"
#include "kernels/params/embedding.h"

// A thread computes 16 columns. Grid: (rows, columns / (16 * threads)).
template <typename T>
struct Embedding {
  enum { kThreads = kEmbeddingThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const EmbeddingParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const uchar* w,
                     DEVICE const int* tokens) {
    const int step = (int)(c.tgy * kThreads + c.tid);
    if (step * 16 >= p.weight.k) return;
    float v[16];
    weight_load16(p.weight, w, p.from_tokens != 0 ? tokens[c.tgx] : p.first_row + (int)c.tgx, step, v);
    DEVICE T* to_row = out + (i64)c.tgx * p.out_stride + step * 16;
    if (p.fours != 0) {
      UNROLL for (int i = 0; i < 16; i += 4) {
        store4(to_row + i, make_float4(v[i] * p.scale, v[i + 1] * p.scale, v[i + 2] * p.scale, v[i + 3] * p.scale));
      }
      return;
    }
    const int count = min(16, p.weight.k - step * 16);
    for (int i = 0; i < count; i++) to_row[i] = to<T>(v[i] * p.scale);
  }
};
// Expands whole panels of a quantised weight. Neighbouring lanes take neighbouring rows, whose codes are neighbours in
// memory; a thread computes 16 columns of one row. Grid: (panels, columns / 128). REQUIRES: first_row is a multiple of
// 16, and rows of out start on 16 bytes.
template <typename T>
struct ExpandPanels {
  enum { kThreads = kEmbeddingThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const EmbeddingParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const uchar* w) {
    const int step = (int)(c.tgy * (kThreads / 16) + (c.tid >> 4)), row = (int)(c.tgx * 16 + (c.tid & 15u));
    if (step * 16 >= p.weight.k || row >= p.rows) return;
    float v[16];
    weight_load16(p.weight, w, p.first_row + row, step, v);
    uint u[8];
    UNROLL for (int i = 0; i < 8; i++) {
      u[i] = (uint)to_bits16(to<T>(v[2 * i])) | (uint)to_bits16(to<T>(v[2 * i + 1])) << 16;
    }
    DEVICE uint4* to_row = (DEVICE uint4*)(out + (i64)row * p.out_stride + step * 16);
    to_row[0] = make_uint4(u[0], u[1], u[2], u[3]);
    to_row[1] = make_uint4(u[4], u[5], u[6], u[7]);
  }
};

KERNEL(embedding_f32, Embedding<float>, EmbeddingParams, float, const uchar, const int)
KERNEL(embedding_f16, Embedding<half>, EmbeddingParams, half, const uchar, const int)
KERNEL(embedding_bf16, Embedding<bfloat>, EmbeddingParams, bfloat, const uchar, const int)
KERNEL(expand_panels_f16, ExpandPanels<half>, EmbeddingParams, half, const uchar)
KERNEL(expand_panels_bf16, ExpandPanels<bfloat>, EmbeddingParams, bfloat, const uchar)
