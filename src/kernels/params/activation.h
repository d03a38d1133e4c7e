// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/activation.h.
#pragma once

#include "kernels/params/elementwise.h"

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
