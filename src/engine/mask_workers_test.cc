// SPDX-License-Identifier: Apache-2.0
// Every job of a set runs once, on one of several threads, before wait() returns.
#include "engine/mask_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>

namespace quire::engine {
namespace {

TEST(MaskWorkers, RunsEachJobOnce) {
  MaskWorkers workers(3);
  for (const size_t count : {0, 1, 2, 3, 4, 100, 0, 7}) {
    std::vector<std::atomic<int>> runs(count);
    workers.start(count, [&](size_t i) { ++runs[i]; });
    workers.wait();
    for (const auto& times : runs) EXPECT_EQ(times, 1);
  }
}

TEST(MaskWorkers, WorksWhileTheCallerDoesSomethingElse) {
  MaskWorkers workers(2);
  std::atomic<int> done = 0;
  workers.start(8, [&](size_t) { ++done; });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (done < 8 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(done, 8);
  workers.wait();
}

TEST(MaskWorkers, SlowJobsAreShared) {
  MaskWorkers workers(4);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  workers.start(12, [&](size_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  workers.wait();
  EXPECT_GT(threads.size(), 1u);
}

}  // namespace
}  // namespace quire::engine
