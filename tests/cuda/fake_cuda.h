// SPDX-License-Identifier: Apache-2.0
// A libcuda and a libcublasLt for tests, on the host. Nothing runs before somebody waits for it, so that a missing wait
// shows. Misuse that a real driver would punish (no current context, a range out of bounds, waiting inside a capture)
// is an error here, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace quire::fake {

struct Launch {
  std::string kernel;
  unsigned grid[3], threads, dynamic_bytes;
  bool overlaps;  // launched with programmatic serialisation
  bool captured;
  std::vector<size_t> parameter_bytes;
};

struct Settings {
  int devices = 1;
  int capability = 90;
  int version = 13000;
  size_t memory = size_t{256} << 20;
};

// The behaviour of the fake cuBLASLt: algorithm `odd` (1, 2 or 3; 0: none) sums backwards if there are few rows, and
// `refused` (likewise) does not run.
struct LibrarySettings {
  int odd = 0, refused = 0;
  bool all_odd = false;
};

// Resets everything. REQUIRES: no object from before is alive.
void reset(const Settings& settings = {});
void set_library(const LibrarySettings& settings);
// Makes call number `after` (from 0) of that symbol return `code`, and all later calls if `forever` says so.
void fail(const std::string& symbol, int code, int after = 0, bool forever = false);
const std::vector<Launch>& launches();
size_t device_blocks();
size_t host_blocks();
size_t handles();  // live streams, events, modules and graphs
size_t graph_runs();
// The (algorithm, rows) of each product that ran.
const std::vector<std::pair<int, int64_t>>& products();

}  // namespace quire::fake
