// SPDX-License-Identifier: Apache-2.0
// WorkerPool: a few threads for work that takes too long for an I/O thread: parsing, templates, tokenising.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace quire::api {

// Runs jobs in the order of their numbers. Half of the threads (rounded down) take only small jobs, so that these need
// not wait while large bodies are parsed. A job whose client has left is cancelled: it is dropped if it still waits; if
// it runs, its flag becomes true and it should end soon. Any thread may call. The destructor drops the waiting jobs,
// cancels the running ones, and returns when the threads have ended.
class WorkerPool {
 public:
  using JobId = uint64_t;
  using Job = std::function<void(const std::atomic<bool>& cancelled)>;

  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // The number of a job that will be posted. With it the job can be cancelled at any time, even before it is posted.
  JobId reserve();
  enum class Size { kSmall, kLarge };
  void post(JobId id, Job job, Size size = Size::kSmall);
  void cancel(JobId id);

  // How long jobs have been waiting while none was begun or finished; 0 if none waits.
  double stalled_seconds() const;
  size_t num_waiting() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Jobs = std::map<JobId, Job>;
  void run(bool takes_large);
  // The queue whose first job is next for such a thread; null if there is none.
  Jobs* next(bool takes_large);

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable filled_;
  JobId last_id_ = 0;
  Jobs small_, large_;                                         // the waiting jobs
  std::map<JobId, std::shared_ptr<std::atomic<bool>>> flags_;  // for reserved, waiting and running jobs
  Clock::time_point progress_ = Clock::now();  // when a job was begun or finished, or began to wait in empty queues
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::api
