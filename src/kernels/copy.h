// SPDX-License-Identifier: Apache-2.0
// Kernels that move data: whole pages by pairs of page numbers, and rows by an index. The example of a kernel file.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/params/copy.h"

// out[pair.to] = in[pair.from], pages of 16-byte words. Pages that are written must not be read by the same launch.
// Grid: (count, parts of a page). Threads of all parts share a page's words in turn.
struct CopyPages {
  enum { kThreads = 256 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const CopyPagesParams& p, TGROUP Smem& sm, DEVICE uint4* out,
                     DEVICE const uint4* in, DEVICE const int* pairs) {
    if ((int)c.tgx >= p.count) return;
    DEVICE uint4* to = out + (i64)pairs[2 * c.tgx] * p.words;
    DEVICE const uint4* from = in + (i64)pairs[2 * c.tgx + 1] * p.words;
    for (i64 i = (i64)c.tgy * p.threads + c.tid; i < p.words; i += (i64)p.parts * p.threads) to[i] = from[i];
  }
};
KERNEL(copy_pages, CopyPages, CopyPagesParams, uint4, const uint4, const int)

// out[i] = in[index[i]], row by row. Grid: (rows).
template <typename T>
struct GatherRows {
  enum { kThreads = 256 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const GatherRowsParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* in,
                     DEVICE const int* index) {
    if ((int)c.tgx >= p.rows) return;
    DEVICE T* to = out + (i64)c.tgx * p.out_stride;
    DEVICE const T* from = in + (i64)index[c.tgx] * p.in_stride;
    for (int i = (int)c.tid; i < p.cols; i += p.threads) to[i] = from[i];
  }
};
KERNEL(gather_rows_f32, GatherRows<float>, GatherRowsParams, float, const float, const int)
KERNEL(gather_rows_f16, GatherRows<half>, GatherRowsParams, half, const half, const int)
KERNEL(gather_rows_bf16, GatherRows<bfloat>, GatherRowsParams, bfloat, const bfloat, const int)
