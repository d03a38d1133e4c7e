// SPDX-License-Identifier: Apache-2.0
// embedding: rows of a table of any weight type, selected by token or consecutive, times a scale, rounded to the
// output's type. It also expands rows of a quantised weight.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/linear_weight.h"
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
    const int count = min(16, p.weight.k - step * 16);
    for (int i = 0; i < count; i++) to_row[i] = to<T>(v[i] * p.scale);
  }
};
KERNEL(embedding_f32, Embedding<float>, EmbeddingParams, float, const uchar, const int)
KERNEL(embedding_f16, Embedding<half>, EmbeddingParams, half, const uchar, const int)
KERNEL(embedding_bf16, Embedding<bfloat>, EmbeddingParams, bfloat, const uchar, const int)
