// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/ranks.h. Sizes of rows are in units: elements, or 16 bytes of them.
#pragma once

#include "kernels/params/elementwise.h"

// Grid: (rows * blocks * cols / kElementThreads, rounded up).
struct JoinBlocksParams {
  i64 in_block, in_stride, out_stride;
  int rows, blocks, cols;  // cols: of a block
  int out_cols;            // of a row of the output, which may be shorter than its blocks
};

// Grid: (rows).
struct OwnedRowsParams {
  i64 in_block, in_stride, out_stride;
  int rows, cols;
  int width;  // ids of an owner
};

// Grid: (rows * blocks * cols / kElementThreads, rounded up).
struct OwnBlocksParams {
  i64 in_stride;
  int rows, blocks, cols;  // cols: of a block
  int width, rank;         // ids of an owner; the owner whose rows these are
};

// Grid: (count / kElementThreads, rounded up).
struct OwnIdsParams {
  int count, width, rank, other;
};
