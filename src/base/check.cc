// SPDX-License-Identifier: Apache-2.0
// Prints a failed check and aborts.
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace quire {

void check_failed(const char* file, int line, const char* condition, const char* why) {
  std::fprintf(stderr, "quire: internal error at %s:%d: %s does not hold%s%s\n", file, line, condition,
               *why != '\0' ? ": " : "", why);
  std::fflush(stderr);
  std::abort();
}

}  // namespace quire
