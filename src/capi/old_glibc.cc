// SPDX-License-Identifier: Apache-2.0
// What a static libstdc++ of Debian 12 expects of glibc and glibc 2.31 does not have, for packages that run with that
// version. Local to the library, so the system's own are not replaced.
#include <sys/random.h>

#include <cstdint>

extern "C" {

// Whether the process has only one thread, so that reference counts need not be atomic. It is always safe to say no.
char __libc_single_threaded = 0;  // NOLINT: the name is glibc's

uint32_t arc4random() {
  uint32_t value = 0;
  while (::getrandom(&value, sizeof value, 0) != sizeof value) {  // four bytes come whole, once there is entropy
  }
  return value;
}
}
