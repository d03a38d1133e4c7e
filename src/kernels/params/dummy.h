// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/dummy.h.
#pragma once

#include "kernels/compat/types.h"
#include "kernels/params/linear.h"

enum {
  kDummyThreads = 128,
  kDummyColumns = 2048,  // that a threadgroup of fill_dummy makes of a row
  kDummySteps = 8        // steps of 16 elements that a threadgroup of fill_dummy_codes makes of each of 16 rows
};

// Random elements (RandomElements of ops/linear.h): (r, c) is element first + map[r] * row_step + c * column_step of
// the random tensor, where map[r] is r without a map.
struct DummyParams {
  i64 first, row_step, column_step;
  i64 stride;  // elements from row to row
  uint key_low, key_high;
  float base, scale;
  int stored;  // 0: f32, 1: f16, 2: bf16
  int rows, columns;
  int mapped;
};

// Random codes (RandomElements::Codes): row r of the weight is row first + map[r] of the random tensor.
struct DummyCodesParams {
  WeightParams weight;
  i64 first;
  i64 scale_rows;  // rows of the tensor that share their scales
  i64 scales;      // of a row
  uint key_low, key_high, scale_key_low, scale_key_high;
  float scale, middle;
  int scale_columns;
  int bits, fp8, sub;
  int head_steps;  // steps that share a head
  int rows, mapped;
  int first_row;  // of the weight
};
