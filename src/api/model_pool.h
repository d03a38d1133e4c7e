// SPDX-License-Identifier: Apache-2.0
// ModelPool: which of a server's models are loaded. Loads on demand, unloads what is idle, and makes room for others.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/error.h"
#include "base/result.h"

namespace quire::api {

// What the pool holds for a loaded model. Destroying it unloads the model.
class Resident {
 public:
  virtual ~Resident() = default;
};

enum class ModelState { kUnloaded, kLoading, kReady, kUnloading, kFailed };
const char* name(ModelState state);  // "unloaded", "loading", "ready", "unloading", "failed"

struct PoolOptions {
  size_t max_loaded = 3;      // models at once, at least 1
  double keep_alive_s = 300;  // an idle model is unloaded after this time; negative: never
  size_t max_waiting = 512;   // requests that wait for one model; more are refused
  double max_wait_s = 300;    // a request that has waited this long is refused; 0: it waits as long as its client
  double retry_s = 5;         // a model that failed to load is not tried again before
  // For all loaded models together; 0: not counted. A model gets memory_bytes / max_loaded, or what it needs at least
  // if that is more.
  int64_t memory_bytes = 0;
};

// How models are loaded. The pool calls these on its thread, one at a time; models are numbered from 0.
struct PoolLoader {
  struct Loaded {
    std::unique_ptr<Resident> resident;
    int64_t memory_bytes = 0;  // what it takes
  };
  // The least memory with which the model can work. Called before anything is unloaded in favour of the model, so that
  // a damaged file costs the others nothing.
  std::function<Result<int64_t>(size_t model, const std::atomic<bool>& cancelled)> least_memory;
  // Loads within `memory_bytes` (0: no limit). Both should return soon with an Error once `cancelled` is true.
  std::function<Result<Loaded>(size_t model, int64_t memory_bytes, const std::atomic<bool>& cancelled)> load;
};

// Owns the loaded models and two threads: one loads and unloads them one after another, the other refuses requests that
// have waited too long. A request holds a Lease for as long as it uses its model: a model with leases is never
// unloaded. If a model must be loaded and there is no room, the idle model that was used least recently is unloaded. If
// none is idle, the least recently used one drains: it takes no new requests until it has finished those that it has
// and was unloaded, so that a model that is always busy cannot keep the others out. Models that wait for room get it in
// the order of their oldest requests. Any thread may call; callbacks are called without a lock. The destructor stops,
// waits for the last leases, and unloads all models.
class ModelPool {
 public:
  ModelPool(std::vector<std::string> names, PoolOptions options, PoolLoader loader);
  ~ModelPool();
  ModelPool(const ModelPool&) = delete;
  ModelPool& operator=(const ModelPool&) = delete;

  // Refuses waiting and later requests and cancels a load. Returns when both threads have ended.
  void stop();

  // Keeps a model loaded. Movable; empty after a move.
  class Lease {
   public:
    Lease(Lease&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), model_(other.model_), use_(other.use_) {}
    Lease& operator=(Lease&& other) = delete;
    ~Lease() {
      if (pool_ != nullptr) pool_->release(model_, use_);
    }
    Resident& resident() const { return *pool_->entries_[model_].resident; }  // constant while there are leases

   private:
    friend class ModelPool;
    Lease(ModelPool& pool, size_t model, bool use) : pool_(&pool), model_(model), use_(use) {}
    ModelPool* pool_;
    size_t model_;
    bool use_;  // counts as use for the keep-alive time
  };

  // The number of a request that will ask for a model. With it the request can be cancelled at any time, even before.
  using Ticket = uint64_t;
  Ticket reserve();
  // Calls `done` once with a lease, or with the error to answer with: at once on this thread if the model is loaded or
  // the request is refused, else later on a thread of the pool, where it must be quick.
  using Done = std::function<void(ApiResult<Lease>)>;
  void acquire(Ticket ticket, size_t model, Done done);
  // Drops the request: its `done` is not called if that has not begun.
  void cancel(Ticket ticket);

  // A lease for looking at a model, which does not count as use; nothing if it is not loaded.
  std::optional<Lease> look(size_t model);
  // Holds a model that is loaded already. REQUIRES: it is unloaded.
  void adopt(size_t model, PoolLoader::Loaded loaded);

  struct Info {
    ModelState state = ModelState::kUnloaded;
    bool draining = false;  // it takes no new requests, to make room for another model
    size_t leases = 0;      // requests that use the model
    size_t waiting = 0;     // requests that wait for it
    int64_t memory_bytes = 0;
    double idle_s = 0;     // since the last use of a loaded model without leases; else 0
    std::string error;     // why it failed to load; "": it did not
    int64_t loads = 0;     // since the start
    int64_t failures = 0;  // loads that failed
    double load_s = 0;     // how long the last load took
  };
  Info info(size_t model) const;
  size_t size() const { return entries_.size(); }
  const PoolOptions& options() const { return options_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiter {
    Ticket ticket = 0;
    Done done;
    Clock::time_point since;
  };
  struct Entry {
    std::string name;
    ModelState state = ModelState::kUnloaded;
    std::unique_ptr<Resident> resident;
    int64_t memory = 0;
    int64_t least = 0;  // memory that it needs at least; 0: not known yet
    size_t leases = 0;
    bool draining = false;  // takes no new requests: it is unloaded as soon as it has no leases
    Clock::time_point used{};
    std::list<Waiter> waiting;
    std::optional<Error> failure;
    Clock::time_point failed{};
    int64_t loads = 0, failures = 0;
    double load_s = 0;
  };
  using Calls = std::vector<std::function<void()>>;  // made while locked, called afterwards

  void run();
  void run_clock();
  void wait(std::unique_lock<std::mutex>& lock, std::optional<Clock::time_point> until);  // for a change or the time
  void release(size_t model, bool use);
  void grant(size_t model, Calls& calls);
  void stop_draining(Calls& calls);
  void refuse_waiting(Entry& entry, const ApiError& error, Calls& calls);
  void refuse_overdue(Clock::time_point now, Calls& calls);
  // The parts of run(). They are called with the lock held; those that load or unload let go of it meanwhile.
  std::optional<size_t> most_wanted() const;  // the unloaded model whose oldest request has waited longest
  std::optional<size_t> expired(Clock::time_point now) const;
  std::optional<size_t> victim() const;  // idle and least recently used, or else busy and least recently used
  bool has_room(const Entry& entry) const;
  int64_t offer(const Entry& entry) const;  // the memory that a load of this model may use
  bool measure(size_t model, std::unique_lock<std::mutex>& lock, Calls& calls);
  void load(size_t model, std::unique_lock<std::mutex>& lock, Calls& calls);
  void unload(size_t model, std::unique_lock<std::mutex>& lock);
  void fail(Entry& entry, const Error& error, Calls& calls);
  bool act(std::unique_lock<std::mutex>& lock, Calls& calls);  // one load or unload; false: nothing to do
  std::optional<Clock::time_point> next_expiry() const;
  std::optional<Clock::time_point> next_overdue() const;
  ApiFailure load_error(const Entry& entry) const;

  const PoolOptions options_;
  const PoolLoader loader_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Entry> entries_;
  Ticket last_ticket_ = 0;
  std::set<Ticket> reserved_;  // tickets that were neither used nor cancelled
  bool stopping_ = false;
  std::atomic<bool> cancelled_ = false;
  std::thread thread_, clock_thread_;
};

}  // namespace quire::api
