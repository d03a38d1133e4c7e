// SPDX-License-Identifier: Apache-2.0
// StepWatch: notices that a GPU of several ranks does not finish a step.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/gpu/device.h"

namespace quire::gpu {

// The calls by which GPUs exchange bytes wait for a rank without a limit, so one GPU that stalls stalls all of them.
// When neither this rank's thread nor its GPU has come further for too long, the watch lets such calls end without the
// other ranks. If the step then ends, another rank is to blame; if not, this GPU is.
class StepWatch {
 public:
  struct Ways {
    double limit_seconds = 300;
    std::function<void()> end_stalled;  // ends the process: this GPU stalls
    std::function<void()> end_waiting;  // ends the process: a rank that stalls should have ended it
    double grace_seconds = 3;           // for a step to end after the exchanges were aborted
    double news_seconds = 10;           // for the news of another rank's end
  };
  StepWatch(Device& device, Ways ways);
  ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // On the device's thread: before the work of a step is queued, and after.
  void begin_step();
  void end_step();
  // The same after work that is no part of a step's layers: the head, and the sampling.
  void probe();
  // While it lives, this rank waits for others on the host, which have a limit of their own.
  class Waiting {
   public:
    explicit Waiting(StepWatch* watch) : watch_(watch) {
      if (watch_ != nullptr) watch_->waiting_ = true;
    }
    ~Waiting() {
      if (watch_ == nullptr) return;
      watch_->note_progress();
      watch_->waiting_ = false;
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    StepWatch* const watch_;
  };

  // Does not return once exchanges were aborted: they may not be used any more, what the GPU computes from then on
  // means nothing, and the process is about to end. On the device's thread, before an exchange and after a wait for the
  // GPU.
  void stay_if_aborted();

  // What lets exchanges end without the other ranks. Removed by the same key.
  void add_abort(const void* key, std::function<void()> abort);
  void remove_abort(const void* key);

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  void note_progress();
  bool idle();
  bool wait(double seconds);  // false: the watch is to stop
  [[noreturn]] void give_up();

  Device& device_;
  const Ways ways_;
  std::atomic<int64_t> progress_ = 0;  // when the device's thread came further last, in nanoseconds
  std::atomic<bool> in_step_ = false;  // it queues the work of a step
  std::atomic<bool> probed_ = false;   // there is a probe behind a step
  std::atomic<bool> waiting_ = false;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;                                                  // guarded by mutex_
  std::vector<std::pair<const void*, std::function<void()>>> aborts_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace quire::gpu
