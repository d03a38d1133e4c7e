// SPDX-License-Identifier: Apache-2.0
// The thread pool, and the choice of an ISA level.
#include "backend/cpu/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "backend/cpu/isa.h"

namespace quire::cpu {
namespace {

TEST(ThreadPool, CallsEachThreadAtMostOnceARegionAndTheCallerAlways) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    std::vector<int> calls(static_cast<size_t>(threads));
    for (int i = 0; i < 2000; ++i) pool.run([&](int thread) { ++calls[static_cast<size_t>(thread)]; });
    EXPECT_EQ(calls[0], 2000);
    EXPECT_THAT(calls, testing::Each(testing::Le(2000)));
  }
}

TEST(ThreadPool, WorkersTakePartWhenThereIsTime) {
  ThreadPool pool(3);
  std::atomic<int> inside{0};
  pool.run([&](int) {
    ++inside;
    while (inside.load() < 3) std::this_thread::yield();  // ends only when all three have come
  });
  EXPECT_EQ(inside.load(), 3);
}

TEST(ThreadPool, GivesOutEveryPieceOnce) {
  ThreadPool pool(3);
  for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 64}) {
      std::vector<int> hits(static_cast<size_t>(count));
      pool.for_each_piece(count, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      EXPECT_THAT(hits, testing::Each(1));
    }
  }
}

TEST(ThreadPool, WakesWorkersThatWentToSleep) {
  ThreadPool pool(3);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond the spin
    std::atomic<int> inside{0};
    pool.run([&](int) {
      ++inside;
      while (inside.load() < 3) std::this_thread::yield();
    });
    EXPECT_EQ(inside.load(), 3);
  }
}

TEST(ThreadPool, KeepsSubnormalsOnEveryThread) {
  ThreadPool pool(4);
  std::vector<float> results(4);
  volatile float tiny = 1e-40f;
  std::atomic<int> inside{0};
  pool.run([&](int thread) {
    results[static_cast<size_t>(thread)] = tiny * 0.5f;
    ++inside;
    while (inside.load() < 4) std::this_thread::yield();
  });
  EXPECT_THAT(results, testing::Each(testing::Gt(0.0f)));
}

TEST(Isa, ChoosesTheBestAndRefusesTheUnknown) {
  const std::vector<Isa> levels = available_isas();
  ASSERT_FALSE(levels.empty());
  EXPECT_EQ(levels.front(), Isa::kPortable);
  for (const Isa isa : levels) {
    const auto chosen = choose_isa(name(isa));
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ(*chosen, isa);
  }
  const auto wrong = choose_isa("mmx");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message, testing::AllOf(testing::HasSubstr("mmx"), testing::HasSubstr("portable")));
}

}  // namespace
}  // namespace quire::cpu
