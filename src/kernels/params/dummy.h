// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/dummy.h.
#pragma once

#include "kernels/compat/types.h"

enum {
  kDummyThreads = 128,
  kDummyColumns = 2048,  // that a threadgroup of fill_dummy makes of a row
  kDummyBlocks = 8       // blocks of 32 elements that a threadgroup of fill_dummy_fp4 makes of each of 16 rows
};

// Random elements (RandomElements of ops/linear.h): (r, c) is element first + map[r] * row_step + c * column_step of
// the random tensor, where map[r] is r without a map.
struct DummyParams {
  i64 first, row_step, column_step;
  i64 stride;  // fill_dummy: elements from row to row; fill_dummy_fp4: bytes from panel to panel
  uint key_low, key_high;
  float base, scale;
  int stored;  // 0: f32, 1: f16, 2: bf16
  int rows, columns;
  int first_row;  // fill_dummy_fp4: of the weight
  int mapped;
  int head_at;  // fill_dummy_fp4: as in WeightParams
};
