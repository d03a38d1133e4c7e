// SPDX-License-Identifier: Apache-2.0
// The threads of the pool.
#include "api/worker_pool.h"

#include "base/check.h"

namespace quire::api {

WorkerPool::WorkerPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkerPool::~WorkerPool() {
  std::map<JobId, Job> dropped;  // destroyed without the lock: a job may own anything
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
    for (auto& [id, flag] : flags_) *flag = true;
  }
  filled_.notify_all();
  dropped.clear();
  for (std::thread& thread : threads_) thread.join();
}

WorkerPool::JobId WorkerPool::reserve() {
  const std::lock_guard lock(mutex_);
  flags_.emplace(++last_id_, std::make_shared<std::atomic<bool>>(false));
  return last_id_;
}

void WorkerPool::post(JobId id, Job job) {
  {
    const std::lock_guard lock(mutex_);
    const auto flag = flags_.find(id);
    QUIRE_CHECK(flag != flags_.end() && !waiting_.contains(id), "a job is posted once, under a reserved number");
    if (stopping_ || *flag->second) {
      flags_.erase(flag);
      return;
    }
    if (waiting_.empty()) progress_ = Clock::now();
    waiting_.emplace(id, std::move(job));
  }
  filled_.notify_one();
}

void WorkerPool::cancel(JobId id) {
  Job dropped;
  const std::lock_guard lock(mutex_);
  const auto flag = flags_.find(id);
  if (flag == flags_.end()) return;  // it has ended
  *flag->second = true;
  const auto job = waiting_.find(id);
  if (job == waiting_.end()) return;  // it runs, or is not posted yet
  dropped = std::move(job->second);
  waiting_.erase(job);
  flags_.erase(flag);
}

double WorkerPool::stalled_seconds() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() ? 0 : std::chrono::duration<double>(Clock::now() - progress_).count();
}

size_t WorkerPool::num_waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

void WorkerPool::run() {
  for (;;) {
    JobId id = 0;
    Job job;
    std::shared_ptr<std::atomic<bool>> flag;
    {
      std::unique_lock lock(mutex_);
      filled_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      id = waiting_.begin()->first;
      job = std::move(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
      flag = flags_.at(id);
      progress_ = Clock::now();
    }
    job(*flag);
    job = nullptr;  // before it counts as finished: what it owns may take a while to go
    const std::lock_guard lock(mutex_);
    flags_.erase(id);
    progress_ = Clock::now();
  }
}

}  // namespace quire::api
