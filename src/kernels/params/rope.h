// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/rope.h.
#pragma once

#include "kernels/params/elementwise.h"

// Grid: (rows * heads * half_dim / kElementThreads, rounded up), one thread per pair.
struct RopeParams {
  i64 stride, out_stride;
  int rows, heads, head_dim;
  int half_dim;              // pairs per head
  int offset;                // offset of the first rotated element in a head
  int out_head, out_offset;  // the same of out
  int interleaved;
};
