// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/elementwise.h.
#pragma once

#include "kernels/compat/types.h"

enum { kElementThreads = 256 };  // all threads of a grid are fewer than 2^31: divisions of 64 bits are slow on a GPU

// Kernels over rows in fours: thread i of the grid has four columns. Grid: (rows * fours / kElementThreads, rounded
// up).
struct RowsParams {
  i64 a_stride, b_stride, out_stride;  // elements from row to row
  int rows, cols;
  int fours;       // of a row, the last perhaps partial
  int aligned;     // addresses and strides are multiples of four elements, and so is cols
  int activation;  // as quire::Activation counts
  int by_row;      // scale: there is a factor a row too
  float factor;    // scale's and residual_add's factor, soft_cap's cap, glu's limit
};

// Grid: (rows * heads * half_dim / kElementThreads, rounded up), a thread a pair.
struct RopeParams {
  i64 stride;
  int rows, heads, head_dim;
  int half_dim;  // pairs of a head
  int offset;    // of a head's first rotated element
  int interleaved;
};

// Grid: (rows * cols / kElementThreads, rounded up).
struct GatherColumnsParams {
  i64 x_stride, out_stride;
  int rows, cols;  // of the output
};
