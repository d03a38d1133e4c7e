// SPDX-License-Identifier: Apache-2.0
// copy_pages copies whole pages, given pairs of page numbers. It is also the example of a kernel file.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/params/copy_pages.h"

// out[pair.to] = in[pair.from], pages of 16-byte words. REQUIRES: no page is both read and written in one launch. Grid:
// (count, parts of a page). The threads of all parts take the words of a page in turn.
struct CopyPages {
  enum { kThreads = 256 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const CopyPagesParams& p, TGROUP Smem& sm, DEVICE uint4* out,
                     DEVICE const uint4* in, DEVICE const int* pairs) {
    if ((int)c.tgx >= p.count) return;
    DEVICE uint4* to = out + (i64)pairs[2 * c.tgx] * p.words;
    DEVICE const uint4* from = in + (i64)pairs[2 * c.tgx + 1] * p.words;
    for (i64 i = (i64)c.tgy * p.threads + c.tid; i < p.words; i += (i64)p.parts * p.threads) to[i] = from[i];
  }
};
KERNEL(copy_pages, CopyPages, CopyPagesParams, uint4, const uint4, const int)
