// SPDX-License-Identifier: Apache-2.0
// Work that is divided among threads of its own, for loading; steps of the engine have thread pools.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace quire {

constexpr int kMaxLoadThreads = 16;

// Calls work(begin, end) for blocks of at most `block` of [0, count), on this thread and on others if there are several
// blocks, each block once and in no order; returns when all are done. `threads` 0 means all cores, and at most
// kMaxLoadThreads. REQUIRES: work does not throw, and may be called by several threads at once.
template <typename Work>
void parallel_blocks(int64_t count, int64_t block, const Work& work, int threads = 0) {
  const int64_t blocks = (count + block - 1) / block;
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < blocks;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      work(i * block, std::min(count, (i + 1) * block));
    }
  };
  if (threads == 0) threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxLoadThreads);
  std::vector<std::thread> helpers;
  for (int64_t i = 1; i < std::min<int64_t>(threads, blocks); ++i) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace quire
