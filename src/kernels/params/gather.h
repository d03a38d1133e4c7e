// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/gather.h.
#pragma once

#include "kernels/params/elementwise.h"

// out[i] = in[index[i]], one threadgroup per row; rows with a negative index stay as they are.
struct GatherRowsParams {
  i64 out_stride, in_stride;  // elements from row to row
  int rows, cols;
  int threads;  // in a threadgroup
};

// Grid: (rows * cols / kElementThreads, rounded up).
struct GatherColumnsParams {
  i64 x_stride, out_stride;
  int rows, cols;  // shape of the output
};
