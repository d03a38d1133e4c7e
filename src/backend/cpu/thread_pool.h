// SPDX-License-Identifier: Apache-2.0
// ThreadPool: divides short parallel regions of work into pieces; made for thousands of regions per second.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace quire::cpu {

// Sets the calling thread's floating-point mode: round to nearest even, no flush to zero, all exceptions masked. Same
// bits need the same mode on every thread.
void set_fp_mode();

// A fixed set of threads; the thread that calls run() is number 0 and works too. Owned by a backend; regions are
// started from one thread at a time. Workers spin a bounded time for the next region (a decode step has hundreds of
// them some microseconds apart) and then sleep, so an idle server uses no CPU. A region never waits for a worker that
// has not begun: on a busy machine the threads that run do the work, and a late one finds the region closed.
class ThreadPool {
 public:
  // With `cpus` the workers run on these alone; the calling thread is left where it is.
  explicit ThreadPool(int threads, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // One region: calls fn(thread) on this thread, and on those workers that arrive before this thread's call returns;
  // then waits for them. So fn must take its work piece by piece from take_pieces().
  template <typename Fn>
  void run(const Fn& fn) {
    run_erased([](const void* f, int thread) { (*static_cast<const Fn*>(f))(thread); }, &fn);
  }
  // Inside a region: hands out [0, count) in pieces of `grain`, each to one thread, until none is left. Once per
  // region.
  template <typename Fn>
  void take_pieces(int64_t count, int64_t grain, const Fn& fn) {
    for (;;) {
      const int64_t begin = next_.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      fn(begin, begin + grain < count ? begin + grain : count);
    }
  }

  // A region of pieces: fn(begin, end, thread). Any thread may take any piece, so the result of a piece must not depend
  // on the thread.
  template <typename Fn>
  void for_each_piece(int64_t count, int64_t grain, const Fn& fn) {
    if (count <= grain) {  // nothing to share
      set_fp_mode();
      if (count > 0) fn(int64_t{0}, count, 0);
      return;
    }
    run([&](int thread) { take_pieces(count, grain, [&](int64_t b, int64_t e) { fn(b, e, thread); }); });
  }

 private:
  using Function = void (*)(const void*, int);

  void run_erased(Function function, const void* context);
  static void run_share(Function function, const void* context, int thread);
  void work(int thread);

  // The region: bit 0 says that it is open, bits 1 to 11 count the workers that joined, the rest numbers it. Atomics
  // stand on cache lines of their own, because spinning workers read some while others count.
  alignas(128) std::atomic<uint32_t> region_{0};
  alignas(128) std::atomic<uint32_t> finished_{0};  // workers that joined this region and are done
  alignas(128) std::atomic<int64_t> next_{0};       // the next piece
  alignas(128) Function function_ = nullptr;        // read after joining a region only, as context_
  const void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace quire::cpu
