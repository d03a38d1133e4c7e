// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/activation.h.
#pragma once

#include "kernels/params/elementwise.h"

// Each thread computes four neighbouring columns. Grid: (rows * fours / kElementThreads, rounded up).
struct RowsParams {
  i64 a_stride, b_stride, out_stride;  // elements from row to row
  int rows, cols;
  int fours;       // groups of four columns in a row; the last may be partial
  int aligned;     // addresses and strides are multiples of four elements, and so is cols
  int activation;  // the value of quire::Activation
  int by_row;      // scale: each row has a factor of its own as well
  float factor;    // the factor of scale and residual_add, soft_cap's cap, or glu's limit
};
