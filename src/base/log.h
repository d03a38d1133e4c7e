// SPDX-License-Identifier: Apache-2.0
// The program's logger: spdlog to standard error. A message whose level is off costs nothing.
#pragma once

#include <spdlog/spdlog.h>

namespace quire {

// Sets pattern and level, once at start. `level` is debug, info, warning or error (as --log-level takes them).
void init_logging(const char* level);

}  // namespace quire
