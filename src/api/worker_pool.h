// SPDX-License-Identifier: Apache-2.0
// WorkerPool: a few threads for work that is too long for an I/O thread: parsing, templates, tokenising.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quire::api {

// Runs jobs in the order of their arrival. The destructor runs what is still queued, then joins.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void post(std::function<void()> job);

 private:
  void run();

  std::mutex mutex_;  // guards jobs_ and stopping_
  std::condition_variable filled_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::api
