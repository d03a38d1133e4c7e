// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/rope.h.
#pragma once

#include "kernels/params/elementwise.h"

// Grid: (rows * heads * half_dim / kElementThreads, rounded up), a thread a pair.
struct RopeParams {
  i64 stride;
  int rows, heads, head_dim;
  int half_dim;  // pairs of a head
  int offset;    // of a head's first rotated element
  int interleaved;
};
