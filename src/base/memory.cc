// SPDX-License-Identifier: Apache-2.0
// Trims glibc's arenas.
#include "base/memory.h"

#include <cstdlib>  // defines __GLIBC__ where there is one

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace quire {

void give_back_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

void keep_large_blocks_apart() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

}  // namespace quire
