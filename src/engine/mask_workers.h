// SPDX-License-Identifier: Apache-2.0
// MaskWorkers: a few threads that fill the masks of constrained sequences while the model runs.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quire::engine {

// Runs one set of jobs at a time; each thread takes the next job as soon as it is free. The threads are started with
// the first set, so an engine without constraints has none. Owned by the engine; start() and wait() are called on its
// thread, in turn.
class MaskWorkers {
 public:
  using Job = std::function<void(size_t index)>;

  // 0 threads: as many as there are cores, at most kMaxThreads.
  explicit MaskWorkers(int threads = 0) : wanted_(threads) {}
  ~MaskWorkers();
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // Begins to run job(0) to job(count - 1), in any order and on any thread.
  // REQUIRES: the last set was waited for; what the job refers to lives until wait() returns.
  void start(size_t count, Job job);
  // Helps with the jobs that are left, and returns when all have ended.
  void wait();

  static constexpr int kMaxThreads = 8;

 private:
  void run();
  void take_jobs(std::unique_lock<std::mutex>& lock);

  const int wanted_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable begun_, ended_;
  Job job_;
  size_t count_ = 0;
  size_t next_ = 0;
  size_t running_ = 0;  // jobs that a thread has taken and not finished
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::engine
