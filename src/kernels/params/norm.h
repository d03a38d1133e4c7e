// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/norm.h.
#pragma once

#include "kernels/compat/types.h"

enum {
  kNormThreads = 256,
  kNormNarrow = 256,  // groups up to this size are computed by one simdgroup each
  kNormRow = 4096,    // rows of up to this size are read once
  kAddNormRow = 6144  // the largest row of add_norm, which fits into threadgroup memory
};

// Grid: (groups of all rows) if wide, otherwise (groups of all rows / 8, rounded up).
struct NormParams {
  i64 x_stride, gate_stride, out_stride;  // elements from row to row
  int rows;
  int groups;  // groups per row
  int group;   // columns per group
  int weight_size;
  int wide;        // one threadgroup per group
  int fours;       // each row is one group, of at most kNormRow columns, in whole vectors of four
  int biased;      // layer norm: there is a bias
  int gate_first;  // gated norm: the gate is applied before the norm
  float eps;
};

// Grid: (rows). Rows are whole vectors of four, at most kAddNormRow columns.
struct AddNormParams {
  i64 x_stride, residual_stride, out_stride;  // elements from row to row
  int columns;
  int normed_x;    // a norm before the addition
  int normed_sum;  // a norm after it
  float scale;
  float eps;
};

// kernels/cuda/norm_row.cuh. Grid: (rows).
enum { kHopperNormThreads = 1024, kHopperNormRow = 8 * kHopperNormThreads };
struct HopperNormParams {
  AddNormParams row;
  int added;  // 0: rms_norm of the residual stream, which is not written
};
constexpr int hopper_norm_threads(int columns) {
  const int threads = (columns / 4 + 31) / 32 * 32;
  return threads < kNormThreads ? int{kNormThreads} : threads > kHopperNormThreads ? int{kHopperNormThreads} : threads;
}
