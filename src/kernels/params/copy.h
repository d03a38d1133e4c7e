// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/copy.h.
#pragma once

#include "kernels/compat/types.h"

// Grid (count, parts): `parts` threadgroups share the copy of a page.
struct CopyPagesParams {
  i64 words;    // of 16 bytes, in a page
  int count;    // pages to copy: pairs of (to, from)
  int parts;    // threadgroups for one page
  int threads;  // in a threadgroup
};

// One threadgroup gathers one row: out[i] = in[index[i]].
struct GatherRowsParams {
  i64 out_stride, in_stride;  // elements from row to row
  int rows, cols;
  int threads;  // in a threadgroup
};
