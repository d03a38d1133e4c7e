// SPDX-License-Identifier: Apache-2.0
// ThreadPool: epochs, bounded spins and waits.
#include "backend/cpu/thread_pool.h"

#include <chrono>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace quire::cpu {

namespace {

// Long enough for the single-threaded pieces between two regions of a step, short enough not to heat an idle machine.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kSpinsBetweenClockReads = 32;

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // `yield` is a no-op on most cores; isb waits some tens of cycles
#endif
}

// Waits until the value differs from `old`: spins first, then sleeps.
void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kSpinsBetweenClockReads; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return count;
  }
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<int>(count) : 1;
}

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

ThreadPool::ThreadPool(int threads) {
  QUIRE_CHECK(threads >= 1);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;  // published by the epoch
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(Function function, const void* context) {
  set_fp_mode();
  if (workers_.empty()) return function(context, 0);
  function_ = function;
  context_ = context;
  pending_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  function(context, 0);
  for (;;) {
    const uint32_t left = pending_.load(std::memory_order_acquire);
    if (left == 0) return;
    wait_while_equal(pending_, left);
  }
}

void ThreadPool::work(int thread) {
  set_fp_mode();
  uint32_t seen = 0;
  for (;;) {
    wait_while_equal(epoch_, seen);
    ++seen;
    if (stop_) return;
    function_(context_, thread);
    if (pending_.fetch_sub(1, std::memory_order_release) == 1) pending_.notify_all();
  }
}

}  // namespace quire::cpu
