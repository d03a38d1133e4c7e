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

}  // namespace quire
