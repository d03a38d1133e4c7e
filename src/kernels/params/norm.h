// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/norm.h.
#pragma once

#include "kernels/compat/types.h"

enum {
  kNormThreads = 256,
  kNormNarrow = 256  // groups up to this size take one simdgroup each
};

// Grid: wide, (groups of all rows); else (groups of all rows / 8, rounded up).
struct NormParams {
  i64 x_stride, gate_stride, out_stride;  // elements from row to row
  int rows;
  int groups;  // in a row
  int group;   // columns of a group
  int weight_size;
  int wide;        // one threadgroup a group
  int biased;      // layer norm
  int gate_first;  // gated norm
  float eps;
};
