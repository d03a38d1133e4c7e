// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/copy_pages.h.
#pragma once

#include "kernels/compat/types.h"

// Grid: (count, parts).
struct CopyPagesParams {
  i64 words;    // 16-byte words in a page
  int count;    // pages to copy: the index has `count` pairs (to, from)
  int parts;    // threadgroups that share one page
  int threads;  // in a threadgroup
};
