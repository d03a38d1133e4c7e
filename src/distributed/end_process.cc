// SPDX-License-Identifier: Apache-2.0
// The end of a rank whose group cannot go on.
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "base/log.h"
#include "distributed/group.h"

namespace quire::distributed {

void end_process(const std::string& sentence) {
  static std::atomic_flag ended = ATOMIC_FLAG_INIT;
  if (ended.test_and_set()) {
    for (;;) ::pause();  // another thread is about to end the process
  }
  log_error("{}", sentence);
  flush_log();
  std::_Exit(1);
}

}  // namespace quire::distributed
