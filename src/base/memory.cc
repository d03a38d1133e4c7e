// SPDX-License-Identifier: Apache-2.0
// Tuning of glibc's malloc.
#include "base/memory.h"

#include <cstdlib>  // defines __GLIBC__ where there is one

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace quire {

void trim_malloc() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

void mmap_large_blocks() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

}  // namespace quire
