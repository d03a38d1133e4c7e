// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/copy_pages.h.
#pragma once

#include "kernels/compat/types.h"

// Grid (count, parts): `parts` threadgroups share the copy of a page.
struct CopyPagesParams {
  i64 words;    // of 16 bytes, in a page
  int count;    // pages to copy: pairs of (to, from)
  int parts;    // threadgroups for one page
  int threads;  // in a threadgroup
};
