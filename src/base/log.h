// SPDX-License-Identifier: Apache-2.0
// One logger for the program, to standard error; spdlog behind, so that a message costs nothing when its level is off.
#pragma once

#include <spdlog/spdlog.h>

namespace quire {

// Sets pattern and level once at start; `level` is one of debug, info, warning, error (as --log-level takes them).
void init_logging(const char* level);

}  // namespace quire
