// SPDX-License-Identifier: Apache-2.0
// ThreadPool: epochs, bounded spins and waits.
#include "backend/cpu/thread_pool.h"

#include <chrono>
#include <string>

#include "backend/cpu/topology.h"
#include "base/check.h"
#include "base/trace.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire::cpu {

namespace {

// Long enough for the single-threaded work between two regions of a step, short enough to let an idle machine sleep.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kSpinsBetweenClockReads = 32;

constexpr uint32_t kOpen = 1;
constexpr uint32_t kJoin = 2;
constexpr uint32_t kJoinedMask = 0xffe;
constexpr uint32_t kNumber = 0x1000;  // one region
constexpr uint32_t kNumberMask = ~(kNumber - 1);

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // `yield` is a no-op on most cores; isb waits some tens of cycles
#endif
}

// Waits until done(value), spinning first and then asleep; returns that value. Whoever makes it true notifies.
template <typename Done>
uint32_t wait_until(const std::atomic<uint32_t>& atomic, const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kSpinsBetweenClockReads; ++i) {
      const uint32_t value = atomic.load(std::memory_order_acquire);
      if (done(value)) return value;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  for (;;) {
    const uint32_t value = atomic.load(std::memory_order_acquire);
    if (done(value)) return value;
    atomic.wait(value, std::memory_order_acquire);
  }
}

}  // namespace

void set_fp_mode() {
#if defined(__x86_64__)
  constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, nearest, no FTZ, no DAZ
  if ((_mm_getcsr() & ~0x3fu) != kDefault) _mm_setcsr(kDefault);
#elif defined(__aarch64__)
  uint64_t fpcr = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
  if (fpcr != 0) __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
#endif
}

ThreadPool::ThreadPool(int threads, std::span<const int> cpus) {
  QUIRE_CHECK(threads >= 1);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this, i, own = std::vector<int>(cpus.begin(), cpus.end())] {
      keep_to_cpus(own);
      work(i);
    });
  }
}

ThreadPool::~ThreadPool() {
  function_ = nullptr;  // workers that join the last region end
  region_.store(((region_.load() & kNumberMask) + kNumber) | kOpen);
  region_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_share(Function function, const void* context, int thread) {
  const trace::WorkSpan span(thread == 0 ? trace::WorkSpan::Of::kCaller : trace::WorkSpan::Of::kWorker);
  function(context, thread);
}

void ThreadPool::run_erased(Function function, const void* context) {
  set_fp_mode();
  next_.store(0, std::memory_order_relaxed);
  if (workers_.empty()) return run_share(function, context, 0);
  function_ = function;
  context_ = context;
  finished_.store(0, std::memory_order_relaxed);
  const uint32_t number = (region_.load(std::memory_order_relaxed) & kNumberMask) + kNumber;
  region_.store(number | kOpen);
  region_.notify_all();
  run_share(function, context, 0);
  // Close the region: from here on no worker joins, and the number of those that did is known.
  const uint32_t joined = (region_.fetch_and(~kOpen) & kJoinedMask) / kJoin;
  wait_until(finished_, [&](uint32_t finished) { return finished == joined; });
}

void ThreadPool::work(int thread) {
  set_fp_mode();
  trace::name_thread("worker " + std::to_string(thread));
  uint32_t seen = 0;
  for (;;) {
    uint32_t region = wait_until(region_, [&](uint32_t r) { return (r & kOpen) != 0 && (r & kNumberMask) != seen; });
    // A failed exchange means that another worker joined or that the region closed: look again.
    if (!region_.compare_exchange_strong(region, region + kJoin)) continue;
    seen = region & kNumberMask;
    if (function_ == nullptr) return;
    run_share(function_, context_, thread);
    finished_.fetch_add(1);
    finished_.notify_one();
  }
}

}  // namespace quire::cpu
