// SPDX-License-Identifier: Apache-2.0
// The thread that looks at steps.
#include "backend/gpu/step_watch.h"

#include <algorithm>
#include <cstdlib>

namespace quire::gpu {
namespace {

int64_t nanoseconds_now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

StepWatch::StepWatch(Device& device, Ways ways) : device_(device), ways_(std::move(ways)) {
  thread_ = std::thread([this] { run(); });
}

StepWatch::~StepWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void StepWatch::note_progress() {
  progress_.store(nanoseconds_now(), std::memory_order_release);
}

void StepWatch::begin_step() {
  stay_if_aborted();
  note_progress();
  in_step_.store(true, std::memory_order_release);
}

void StepWatch::end_step() {
  probe();
  in_step_.store(false, std::memory_order_release);
}

void StepWatch::probe() {
  note_progress();
  device_.set_probe();
  probed_.store(true, std::memory_order_release);
}

void StepWatch::stay_if_aborted() {
  if (!aborted_.load(std::memory_order_acquire)) return;
  in_step_.store(false, std::memory_order_release);  // this thread is not what stalls
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

void StepWatch::add_abort(const void* key, std::function<void()> abort) {
  const std::lock_guard lock(mutex_);
  aborts_.emplace_back(key, std::move(abort));
}

void StepWatch::remove_abort(const void* key) {
  const std::lock_guard lock(mutex_);
  std::erase_if(aborts_, [key](const auto& abort) { return abort.first == key; });
}

// Whether all steps have ended.
bool StepWatch::idle() {
  return !in_step_.load(std::memory_order_acquire) &&
         (!probed_.load(std::memory_order_acquire) || device_.probe_passed());
}

bool StepWatch::wait(double seconds) {
  std::unique_lock lock(mutex_);
  return !stopped_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stop_; });
}

void StepWatch::run() {
  const double pause = std::min(0.25, ways_.limit_seconds / 4);
  while (wait(pause)) {
    const int64_t since = progress_.load(std::memory_order_acquire);
    const bool late = static_cast<double>(nanoseconds_now() - since) > ways_.limit_seconds * 1e9;
    // (A step that begins at this moment notes its progress before it is seen here.)
    if (since > 0 && late && !waiting_ && !idle() && progress_.load(std::memory_order_acquire) == since) give_up();
  }
}

// Aborting may wait for the device, so another thread does it.
void StepWatch::give_up() {
  {
    const std::lock_guard lock(mutex_);
    if (aborts_.empty()) ways_.end_stalled();
  }
  aborted_.store(true, std::memory_order_release);
  std::thread([this] {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, abort] : aborts_) abort();
  }).detach();
  const auto deadline = Clock::now() + std::chrono::duration<double>(ways_.grace_seconds);
  while (Clock::now() < deadline) {
    if (idle()) {
      std::this_thread::sleep_for(std::chrono::duration<double>(ways_.news_seconds));
      ways_.end_waiting();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ways_.end_stalled();
  std::abort();  // none of them returns
}

}  // namespace quire::gpu
