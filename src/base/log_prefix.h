// SPDX-License-Identifier: Apache-2.0
// A prefix for the messages of a process that is one of several.
#pragma once

#include <string>

namespace quire {

// Puts `prefix` in front of every message, also after another init_logging(): "[rank 1 host]".
void set_log_prefix(const std::string& prefix);

}  // namespace quire
