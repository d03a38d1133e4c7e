// SPDX-License-Identifier: Apache-2.0
// gather_rows and gather_columns: copies of the rows or columns that an index names; the contracts are in ops/gather.h.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/params/gather.h"

// out[i] = in[index[i]], row by row; a negative index leaves the row as it is. Grid: (rows).
template <typename T>
struct GatherRows {
  enum { kThreads = 256 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const GatherRowsParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* in,
                     DEVICE const int* index) {
    if ((int)c.tgx >= p.rows || index[c.tgx] < 0) return;
    DEVICE T* to = out + (i64)c.tgx * p.out_stride;
    DEVICE const T* from = in + (i64)index[c.tgx] * p.in_stride;
    for (int i = (int)c.tid; i < p.cols; i += p.threads) to[i] = from[i];
  }
};
KERNEL(gather_rows_f32, GatherRows<float>, GatherRowsParams, float, const float, const int)
KERNEL(gather_rows_f16, GatherRows<half>, GatherRowsParams, half, const half, const int)
KERNEL(gather_rows_bf16, GatherRows<bfloat>, GatherRowsParams, bfloat, const bfloat, const int)

template <typename T>
struct GatherColumns {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const GatherColumnsParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* x,
                     DEVICE const int* columns) {
    const uint index = c.tgx * (uint)kElementThreads + c.tid;
    const i64 row = (i64)(index / (uint)p.cols);
    if (row >= p.rows) return;
    const int column = (int)(index % (uint)p.cols);
    out[row * p.out_stride + column] = x[row * p.x_stride + columns[column]];
  }
};
KERNEL(gather_columns_f32, GatherColumns<float>, GatherColumnsParams, float, const float, const int)
KERNEL(gather_columns_f16, GatherColumns<half>, GatherColumnsParams, half, const half, const int)
KERNEL(gather_columns_bf16, GatherColumns<bfloat>, GatherColumnsParams, bfloat, const bfloat, const int)
