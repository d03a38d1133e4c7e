// SPDX-License-Identifier: Apache-2.0
// The helper threads of an emulator: each takes the next threadgroup of a launch until none is left.
#include "backend/emulator/emulator.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/env.h"

namespace quire::emulator {
namespace {

constexpr int kMaxOrder = 1 << 30, kMaxWorkers = 1024;

// Sets `value` if the variable is set. Anything but a number is an error; otherwise a test could pass without running
// in the order that it asked for.
Status read_environment(const char* name, int max, int& value) {
  const auto text = env(name);
  if (!text) return {};
  int number = 0;
  const auto [end, wrong] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (wrong != std::errc() || end != text->data() + text->size() || number < 0 || number > max) {
    return invalid_argument({name, " is '", *text, "'; it must be a whole number from 0 to ", max});
  }
  value = number;
  return {};
}

}  // namespace

// Helpers sleep between launches; a new value of `round` means that there is a new launch.
struct Emulator::Pool {
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> helpers;
  std::mutex mutex;
  std::condition_variable wake, idle;
  uint64_t round = 0;
  size_t busy = 0;
  bool stopping = false;
  Job job;
  uint64_t groups = 0;
  std::atomic<uint64_t> next{0};
  std::string fault;  // the first fault; guarded by the mutex

  void work(Worker& worker) {
    for (uint64_t i; (i = next.fetch_add(1)) < groups;) {
      std::string wrong = worker.run_group(job, i);
      if (wrong.empty()) continue;
      const std::lock_guard lock(mutex);
      if (fault.empty()) fault = std::move(wrong);
      next.store(groups);  // the remaining groups need not run
    }
  }

  void help(Worker& worker) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return stopping || round != seen; });
      if (stopping) return;
      seen = round;
      lock.unlock();
      work(worker);
      lock.lock();
      if (--busy == 0) idle.notify_one();
    }
  }

  void start_helpers(size_t wanted) {
    while (helpers.size() < wanted) {
      workers.push_back(std::make_unique<Worker>());
      helpers.emplace_back([this, worker = workers.back().get()] { help(*worker); });
    }
  }
};

Result<EmulatorOptions> settle(EmulatorOptions options) {
  if (options.order < 0) QUIRE_TRY(read_environment("QUIRE_EMULATOR_ORDER", kMaxOrder, options.order));
  if (options.workers < 1) QUIRE_TRY(read_environment("QUIRE_EMULATOR_WORKERS", kMaxWorkers, options.workers));
  if (options.stall < 1) QUIRE_TRY(read_environment("QUIRE_EMULATOR_STALL", kMaxOrder, options.stall));
  return options;
}

Emulator::Emulator(const EmulatorOptions& options)
    : order_(std::max(options.order, 0)), workers_(std::max(options.workers, 0)), pool_(std::make_unique<Pool>()) {
  if (workers_ == 0) workers_ = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  pool_->workers.push_back(std::make_unique<Worker>());
}

Emulator::~Emulator() {
  {
    const std::lock_guard lock(pool_->mutex);
    pool_->stopping = true;
  }
  pool_->wake.notify_all();
  for (std::thread& helper : pool_->helpers) helper.join();
}

Status Emulator::run(const KernelRecord& kernel, std::span<const uint32_t, 3> grid, uint32_t threads,
                     const void* params, void* const* buffers) {
  Pool& pool = *pool_;
  const uint64_t groups = uint64_t{grid[0]} * grid[1] * grid[2];
  const bool alone = groups == 1 || workers_ == 1;
  if (!alone) pool.start_helpers(static_cast<size_t>(workers_) - 1);
  {
    const std::lock_guard lock(pool.mutex);
    pool.job = {&kernel, params, buffers, {grid[0], grid[1], grid[2]}, threads, order_};
    pool.groups = groups;
    pool.next.store(0);
    pool.fault.clear();
    if (!alone) {
      pool.round++;
      pool.busy = pool.helpers.size();
    }
  }
  if (!alone) pool.wake.notify_all();
  pool.work(*pool.workers[0]);
  std::unique_lock lock(pool.mutex);
  pool.idle.wait(lock, [&] { return pool.busy == 0; });
  if (!pool.fault.empty()) return Error{ErrorCode::kInternal, pool.fault};
  return {};
}

}  // namespace quire::emulator
