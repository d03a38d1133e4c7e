// SPDX-License-Identifier: Apache-2.0
// ThreadPool: runs one function on all its threads and waits; made for thousands of short regions a second.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace quire::cpu {

// Cores that this process may use, at least 1.
int usable_cores();

// Sets the calling thread's floating-point mode: round to nearest even, no flush to zero, all exceptions masked. Same
// bits need the same mode on every thread.
void set_fp_mode();

// A fixed set of threads; the thread that calls run() is number 0 and works too. Owned by a backend; run() may be
// called from one thread at a time. Workers spin a bounded time for the next region (a decode step has hundreds of them
// some microseconds apart) and then sleep, so an idle server uses no CPU.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(thread) once on each thread, and returns when all have finished.
  template <typename Fn>
  void run(const Fn& fn) {
    run_erased([](const void* f, int thread) { (*static_cast<const Fn*>(f))(thread); }, &fn);
  }

  // Cuts [0, count) into pieces of `grain` and calls fn(begin, end, thread); threads take the next piece as they become
  // free. Which thread does which piece is a matter of luck: a piece's result must not depend on it.
  template <typename Fn>
  void for_each_piece(int64_t count, int64_t grain, const Fn& fn) {
    if (count <= grain) {
      if (count > 0) run_alone([&] { fn(int64_t{0}, count, 0); });
      return;
    }
    next_.store(0, std::memory_order_relaxed);
    run([&](int thread) { take_pieces(count, grain, [&](int64_t b, int64_t e) { fn(b, e, thread); }); });
  }

  // The inner half of for_each_piece, for use inside run(): the caller calls reset_pieces() before run().
  void reset_pieces() { next_.store(0, std::memory_order_relaxed); }
  template <typename Fn>
  void take_pieces(int64_t count, int64_t grain, const Fn& fn) {
    for (;;) {
      const int64_t begin = next_.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      fn(begin, begin + grain < count ? begin + grain : count);
    }
  }

 private:
  using Function = void (*)(const void*, int);

  template <typename Fn>
  void run_alone(const Fn& fn) {
    set_fp_mode();
    fn();
  }
  void run_erased(Function function, const void* context);
  void work(int thread);

  // Each on a cache line of its own: the epoch is read by spinning workers while others count down.
  alignas(128) std::atomic<uint32_t> epoch_{0};
  alignas(128) std::atomic<uint32_t> pending_{0};
  alignas(128) std::atomic<int64_t> next_{0};
  alignas(128) Function function_ = nullptr;
  const void* context_ = nullptr;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace quire::cpu
