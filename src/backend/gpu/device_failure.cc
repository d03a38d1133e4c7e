// SPDX-License-Identifier: Apache-2.0
// The message about a failed device.
#include "backend/gpu/device_failure.h"

#include <cstdio>
#include <cstdlib>

namespace quire::gpu {

void exit_on_device_failure(const Error& error) {
  std::fprintf(stderr,
               "quire: the GPU failed: %s. What was under way is lost: start quire again, and if it comes back, report "
               "it with the output of quire devices and quire selftest\n",
               error.message.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

}  // namespace quire::gpu
