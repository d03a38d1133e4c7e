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
// Expands whole panels of a quantised weight, kExpandColumns columns per threadgroup. Neighbouring lanes take
// neighbouring rows, whose codes are neighbours in memory, and 16 columns of them at a time; the values go through
// threadgroup memory, so that rows are written in long pieces. Grid: (panels, columns / kExpandColumns). REQUIRES:
// first_row is a multiple of 16, k one of 8, and rows of out start on 16 bytes.
template <typename T>
struct ExpandPanels {
  enum {
    kThreads = kEmbeddingThreads,
    kTurns = kExpandColumns / kThreads,  // steps of 16 columns per thread
    kPieces = kExpandColumns / 8,        // 16-byte pieces of a row
    kPitch = kPieces + 1
  };
  struct Smem {
    uint4 rows[16 * kPitch];
  };
  static FN uint pair(float a, float b) { return (uint)to_bits16(to<T>(a)) | (uint)to_bits16(to<T>(b)) << 16; }
  static FN void run(Ctx c, CONSTANT const EmbeddingParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const uchar* w) {
    const int panel = (int)c.tgx * 16, row = (int)(c.tid & 15u), begin = (int)c.tgy * kExpandColumns;
    WeightRaw raw[kTurns];
    UNROLL for (int i = 0; i < kTurns; i++) {
      const int step = begin / 16 + (int)(c.tid >> 4) + i * (kThreads / 16);
      if (panel + row < p.rows) weight_begin(p.weight, w, p.first_row + panel + row, step, raw[i]);
    }
    UNROLL for (int i = 0; i < kTurns; i++) {
      const int mine = (int)(c.tid >> 4) + i * (kThreads / 16);
      if (panel + row < p.rows) {
        float v[16];
        weight_finish(p.weight, w, p.first_row + panel + row, begin / 16 + mine, raw[i], v);
        TGROUP uint4* to_row = sm.rows + row * kPitch + 2 * mine;
        to_row[0] = make_uint4(pair(v[0], v[1]), pair(v[2], v[3]), pair(v[4], v[5]), pair(v[6], v[7]));
        to_row[1] = make_uint4(pair(v[8], v[9]), pair(v[10], v[11]), pair(v[12], v[13]), pair(v[14], v[15]));
      }
    }
    TG_BARRIER();
    UNROLL for (int i = 0; i < 16 * kPieces / kThreads; i++) {
      const int at = (int)c.tid + i * kThreads, r = at / kPieces, piece = at % kPieces;
      if (panel + r < p.rows && begin + 8 * piece < p.weight.k) {
        *(DEVICE uint4*)(out + (i64)(panel + r) * p.out_stride + begin + 8 * piece) = sm.rows[r * kPitch + piece];
      }
    }
  }
};

KERNEL(embedding_f32, Embedding<float>, EmbeddingParams, float, const uchar, const int)
KERNEL(embedding_f16, Embedding<half>, EmbeddingParams, half, const uchar, const int)
KERNEL(embedding_bf16, Embedding<bfloat>, EmbeddingParams, bfloat, const uchar, const int)
KERNEL(expand_panels_f16, ExpandPanels<half>, EmbeddingParams, half, const uchar)
KERNEL(expand_panels_bf16, ExpandPanels<bfloat>, EmbeddingParams, bfloat, const uchar)
