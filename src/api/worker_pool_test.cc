// SPDX-License-Identifier: Apache-2.0
// The pool: order, cancelling, and an end that does not wait for what nobody wants any more.
#include "api/worker_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <thread>

namespace quire::api {
namespace {

// Waits for what another thread will do; the half minute is a net for broken code, not a measure.
template <typename Condition>
bool eventually(const Condition& condition) {
  for (int i = 0; i < 30'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// A pool of one thread, which is held up by its first job until release().
struct HeldPool {
  HeldPool() {
    const auto id = pool->reserve();
    pool->post(id, [this](const std::atomic<bool>& cancelled) {
      began.set_value();
      open.get_future().wait();
      saw_cancel = cancelled.load();
    });
    first = id;
    began.get_future().wait();
  }
  WorkerPool::JobId add(std::function<void()> job) {
    const auto id = pool->reserve();
    pool->post(id, [job = std::move(job)](const std::atomic<bool>&) { job(); });
    return id;
  }
  void release() { open.set_value(); }

  std::promise<void> began, open;
  std::atomic<bool> saw_cancel{false};
  WorkerPool::JobId first = 0;
  std::optional<WorkerPool> pool{std::in_place, 1};
};

TEST(WorkerPool, RunsJobsInOrder) {
  HeldPool held;
  std::vector<int> order;
  std::promise<void> done;
  for (int i = 0; i < 5; ++i) held.add([&order, i] { order.push_back(i); });
  held.add([&] { done.set_value(); });
  held.release();
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(WorkerPool, SmallJobsNeedNotWaitForLargeOnes) {
  WorkerPool pool(2);
  std::promise<void> open, small_done;
  std::shared_future<void> opened = open.get_future().share();
  for (int i = 0; i < 5; ++i) {
    pool.post(
        pool.reserve(), [opened](const std::atomic<bool>&) { opened.wait(); }, WorkerPool::Size::kLarge);
  }
  pool.post(pool.reserve(), [&](const std::atomic<bool>&) { small_done.set_value(); });
  small_done.get_future().wait();  // with all large jobs still under way or waiting
  open.set_value();
  EXPECT_TRUE(eventually([&] { return pool.num_waiting() == 0; }));
}

TEST(WorkerPool, DropsACancelledJobThatWaitsAndTellsOneThatRuns) {
  HeldPool held;
  std::atomic<int> ran{0};
  const auto owned = std::make_shared<int>(7);
  const auto dropped = held.add([&ran, owned] { ++ran; });
  held.add([&ran] { ran += 10; });
  EXPECT_EQ(owned.use_count(), 2);
  held.pool->cancel(dropped);
  EXPECT_EQ(owned.use_count(), 1) << "what a dropped job holds goes at once";
  EXPECT_EQ(held.pool->num_waiting(), 1u);
  held.pool->cancel(held.first);
  held.pool->cancel(12345);  // unknown: nothing happens
  held.release();
  EXPECT_TRUE(eventually([&] { return ran == 10; }));
  EXPECT_TRUE(held.saw_cancel);
}

TEST(WorkerPool, NeverRunsAJobThatWasCancelledBeforeItWasPosted) {
  WorkerPool pool(1);
  std::atomic<bool> ran{false};
  std::promise<void> done;
  const auto id = pool.reserve();
  pool.cancel(id);
  pool.post(id, [&](const std::atomic<bool>&) { ran = true; });
  pool.post(pool.reserve(), [&](const std::atomic<bool>&) { done.set_value(); });
  done.get_future().wait();
  EXPECT_FALSE(ran);
}

// It used to run everything that was queued.
TEST(WorkerPool, EndsWithoutTheJobsThatWait) {
  HeldPool held;
  std::atomic<int> ran{0};
  const auto owned = std::make_shared<int>(7);
  for (int i = 0; i < 100; ++i) held.add([&ran, owned] { ++ran; });
  std::thread end([&] { held.pool.reset(); });
  EXPECT_TRUE(eventually([&] { return owned.use_count() == 1; }));
  held.release();
  end.join();
  EXPECT_EQ(ran, 0);
  EXPECT_TRUE(held.saw_cancel);
}

TEST(WorkerPool, SaysHowLongWaitingJobsHaveSeenNoProgress) {
  HeldPool held;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(held.pool->stalled_seconds(), 0) << "nobody waits";
  held.add([] {});
  EXPECT_TRUE(eventually([&] { return held.pool->stalled_seconds() > 0.01; }));
  held.release();
  EXPECT_TRUE(eventually([&] { return held.pool->stalled_seconds() == 0; }));
}

}  // namespace
}  // namespace quire::api
