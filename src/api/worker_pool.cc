// SPDX-License-Identifier: Apache-2.0
// The threads of the pool.
#include "api/worker_pool.h"

#include "base/check.h"
#include "base/memory.h"

namespace quire::api {
namespace {

constexpr std::chrono::seconds kTrimAfter(1);

}  // namespace

WorkerPool::WorkerPool(int threads) {
  for (int i = 0; i < threads; ++i) {
    const bool takes_large = i < (threads + 1) / 2;
    threads_.emplace_back([this, takes_large] { run(takes_large); });
  }
}

WorkerPool::~WorkerPool() {
  Jobs dropped;  // destroyed without the lock: a job may own anything
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(small_);
    dropped.merge(large_);
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

void WorkerPool::post(JobId id, Job job, Size size) {
  {
    const std::lock_guard lock(mutex_);
    const auto flag = flags_.find(id);
    QUIRE_CHECK(flag != flags_.end() && !small_.contains(id) && !large_.contains(id),
                "a job is posted once, under a reserved number");
    if (stopping_ || *flag->second) {
      flags_.erase(flag);
      return;
    }
    if (small_.empty() && large_.empty()) progress_ = Clock::now();
    (size == Size::kSmall ? small_ : large_).emplace(id, std::move(job));
  }
  filled_.notify_all();  // not every thread takes every job
}

void WorkerPool::cancel(JobId id) {
  Job dropped;
  const std::lock_guard lock(mutex_);
  const auto flag = flags_.find(id);
  if (flag == flags_.end()) return;  // it has ended
  *flag->second = true;
  for (Jobs* jobs : {&small_, &large_}) {  // in neither: it runs, or is not posted yet
    const auto job = jobs->find(id);
    if (job == jobs->end()) continue;
    dropped = std::move(job->second);
    jobs->erase(job);
    flags_.erase(flag);
    return;
  }
}

double WorkerPool::stalled_seconds() const {
  const std::lock_guard lock(mutex_);
  return small_.empty() && large_.empty() ? 0 : std::chrono::duration<double>(Clock::now() - progress_).count();
}

size_t WorkerPool::num_waiting() const {
  const std::lock_guard lock(mutex_);
  return small_.size() + large_.size();
}

WorkerPool::Jobs* WorkerPool::next(bool takes_large) {
  if (!takes_large || large_.empty()) return small_.empty() ? nullptr : &small_;
  return small_.empty() || large_.begin()->first < small_.begin()->first ? &large_ : &small_;
}

void WorkerPool::run(bool takes_large) {
  bool untrimmed = false;  // it has run a job since it last gave memory back
  for (;;) {
    JobId id = 0;
    Job job;
    std::shared_ptr<std::atomic<bool>> flag;
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] { return stopping_ || next(takes_large) != nullptr; };
      // A parsed body takes a multiple of its size. An idle process should not keep that memory.
      while (untrimmed && !filled_.wait_for(lock, kTrimAfter, ready)) {
        untrimmed = false;
        lock.unlock();
        trim_malloc();
        lock.lock();
      }
      filled_.wait(lock, ready);
      if (stopping_) return;
      Jobs& jobs = *next(takes_large);
      id = jobs.begin()->first;
      job = std::move(jobs.begin()->second);
      jobs.erase(jobs.begin());
      flag = flags_.at(id);
      progress_ = Clock::now();
    }
    job(*flag);
    untrimmed = takes_large;
    job = nullptr;  // before it counts as finished: destroying what it owns may take a while
    const std::lock_guard lock(mutex_);
    flags_.erase(id);
    progress_ = Clock::now();
  }
}

}  // namespace quire::api
