// SPDX-License-Identifier: Apache-2.0
// RankTotals: what one of the ranks that compute a model together has done since it was loaded, and what it holds.
#pragma once

#include <cstdint>

namespace quire::metrics {

// Plain numbers: ranks send it to each other as bytes.
struct RankTotals {
  int64_t steps = 0;
  int64_t compute_nanoseconds = 0;  // in steps, without the next
  int64_t wait_nanoseconds = 0;     // for other ranks, and to exchange bytes with them
  int64_t sent_bytes = 0;
  int64_t pages = 0;           // of its part of the KV cache
  int64_t resident_bytes = 0;  // of its process
};

}  // namespace quire::metrics
