// SPDX-License-Identifier: Apache-2.0
// The operating system's figures for this process, for the process_* series.
#pragma once

#include <optional>

namespace quire::metrics {

struct ProcessStats {
  double cpu_seconds = 0;  // user and system
  // Only on Linux, from /proc.
  std::optional<double> virtual_bytes, resident_bytes, start_time, open_fds, max_fds;
};

ProcessStats read_process_stats();

}  // namespace quire::metrics
