// SPDX-License-Identifier: Apache-2.0
// A GPU that does not finish a step: who is to blame, and that nobody else is blamed.
#include "backend/gpu/step_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <optional>

#include "backend/gpu/recording_device.h"

namespace quire::gpu {
namespace {

using namespace std::chrono_literals;

constexpr double kLimit = 0.4;
constexpr int kThisStalls = 3, kAnotherStalls = 4;  // exit codes

// A device with work that ends when the test says so.
struct Watched {
  explicit Watched(double news_seconds = 60) {
    StepWatch::Ways ways;
    ways.limit_seconds = kLimit;
    ways.grace_seconds = 0.5;
    ways.news_seconds = news_seconds;
    ways.end_stalled = [] { std::_Exit(kThisStalls); };
    ways.end_waiting = [] { std::_Exit(kAnotherStalls); };
    watch.emplace(device, std::move(ways));
  }
  void run_step() {
    device.passed = false;
    watch->begin_step();
    watch->end_step();
  }
  std::vector<std::string> notes;
  RecordingDevice device{notes};
  std::optional<StepWatch> watch;
};

// Long enough for the watch to give up.
void wait_long() {
  std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLimit));
}

TEST(StepWatch, LeavesStepsAloneThatEnd) {
  Watched watched;
  wait_long();  // before the first step
  watched.run_step();
  watched.device.passed = true;
  wait_long();  // without work
  watched.watch->begin_step();
  {
    const StepWatch::Waiting waiting(&*watched.watch);
    wait_long();  // for other ranks
  }
  watched.watch->end_step();
}

TEST(StepWatchDeathTest, EndsTheProcessOfAGpuThatStalls) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stall = [](bool in_step) {
    Watched watched;
    const int key = 0;
    watched.watch->add_abort(&key, [] {});
    in_step ? watched.watch->begin_step() : watched.run_step();
    std::this_thread::sleep_for(60s);
  };
  EXPECT_EXIT(stall(false), ::testing::ExitedWithCode(kThisStalls), "");
  EXPECT_EXIT(stall(true), ::testing::ExitedWithCode(kThisStalls), "") << "the call that adds work does not return";
}

// Its exchanges wait for another rank: once they are aborted, its step ends.
TEST(StepWatchDeathTest, DoesNotBlameAGpuThatWaitsForAnother) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto wait = [] {
    Watched watched(0.1);
    const int key = 0;
    watched.watch->add_abort(&key, [&] { watched.device.passed = true; });
    watched.run_step();
    std::this_thread::sleep_for(60s);
  };
  EXPECT_EXIT(wait(), ::testing::ExitedWithCode(kAnotherStalls), "");
}

// A step that ended because its exchanges were aborted has computed nothing that may be used.
TEST(StepWatchDeathTest, LetsNobodyGoOnAfterAnAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int kWentOn = 99;
  const auto go_on = [](bool in_step) {
    Watched watched(0.1);
    std::atomic<bool> aborted = false;
    const int key = 0;
    watched.watch->add_abort(&key, [&] {
      watched.device.passed = true;
      aborted = true;
    });
    in_step ? watched.watch->begin_step() : watched.run_step();
    while (!aborted) std::this_thread::sleep_for(1ms);
    in_step ? watched.watch->stay_if_aborted() : watched.watch->begin_step();
    std::_Exit(kWentOn);
  };
  EXPECT_EXIT(go_on(false), ::testing::ExitedWithCode(kAnotherStalls), "");
  EXPECT_EXIT(go_on(true), ::testing::ExitedWithCode(kAnotherStalls), "") << "it waited in the middle of a step";
}

}  // namespace
}  // namespace quire::gpu
