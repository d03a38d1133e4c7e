// SPDX-License-Identifier: Apache-2.0
// The threads that fill masks.
#include "engine/mask_workers.h"

#include <algorithm>

#include "base/check.h"
#include "base/trace.h"

namespace quire::engine {

MaskWorkers::~MaskWorkers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::start(size_t count, Job job) {
  if (count == 0) return;
  if (threads_.empty()) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    const int threads = wanted_ > 0 ? wanted_ : std::clamp(cores, 1, kMaxThreads);
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] {
        trace::name_thread("masks");
        run();
      });
    }
  }
  {
    const std::lock_guard lock(mutex_);
    QUIRE_CHECK(next_ == count_ && running_ == 0, "the last masks were waited for");
    job_ = std::move(job);
    count_ = count;
    next_ = 0;
  }
  if (count >= threads_.size()) {
    begun_.notify_all();
  } else {
    for (size_t i = 0; i < count; ++i) begun_.notify_one();
  }
}

void MaskWorkers::wait() {
  std::unique_lock lock(mutex_);
  take_jobs(lock);
  ended_.wait(lock, [&] { return next_ == count_ && running_ == 0; });
}

void MaskWorkers::take_jobs(std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const size_t index = next_++;
    ++running_;
    lock.unlock();
    job_(index);
    lock.lock();
    --running_;
  }
  if (running_ == 0) ended_.notify_one();
}

void MaskWorkers::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    begun_.wait(lock, [&] { return stopping_ || next_ < count_; });
    if (stopping_) return;
    take_jobs(lock);
  }
}

}  // namespace quire::engine
