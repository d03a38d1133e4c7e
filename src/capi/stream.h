// SPDX-License-Identifier: Apache-2.0
// Model and Stream: a model on its own threads, and one request whose deltas wait to be fetched.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "capi/request.h"
#include "llm/async_llm.h"

namespace quire::capi {

// A pipe by which the output thread wakes an event loop. Made with the first call of descriptor(). Any thread.
class Signal {
 public:
  Signal() = default;
  ~Signal();
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  int descriptor();  // -1: the system has none left
  void raise();      // does nothing before the first call of descriptor()

 private:
  std::mutex mutex_;  // guards the making
  int read_ = -1;
  std::atomic<int> write_{-1};
};

// A loaded model. Shared by the caller and the streams, so that it outlives each request. After a fork() the child has
// its memory and none of its threads: there, nothing may wait for them, and so nothing may be freed.
struct Model {
  explicit Model(std::unique_ptr<llm::Llm> llm);
  const llm::Llm& llm() const { return async.llm(); }
  bool is_forked() const { return ::getpid() != loaded_by; }
  Status check_process() const;  // an Error in a child

  std::shared_ptr<Signal> signal = std::make_shared<Signal>();
  llm::AsyncLlm async;
  const pid_t loaded_by = ::getpid();
};

// One request. Its deltas are collected, one for each answer, until next() takes them. abort() on any thread, the rest
// on one at a time. The destructor aborts what still runs.
class Stream {
 public:
  using Clock = std::chrono::steady_clock;
  static Result<std::unique_ptr<Stream>> start(const std::shared_ptr<Model>& model, ReadRequest request);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  enum class Event { kFailed, kEnd, kDelta, kTimeout };
  // kDelta: `delta` has what was added to one answer; kFailed: its error is set. No deadline: waits without end.
  Event next(std::optional<Clock::time_point> deadline, llm::Delta& delta);
  // kEnd when all answers are complete, or the request has failed; else kTimeout.
  Event wait(std::optional<Clock::time_point> deadline);
  void abort();
  const Model& model() const { return *model_; }
  const std::vector<int32_t>& prompt() const { return prompt_; }
  // Of a request that pools: what becomes of the vectors of its last delta. One row that is not per token: rows is 0.
  struct Pooled {
    size_t rows = 0, columns = 0;
    std::vector<float> values;
  };
  Pooled pooled(const llm::Delta& delta) const;
  bool pools() const { return pool_.has_value(); }

 private:
  // What the sink and the stream share: the sink may be called while the stream is closed.
  struct Inbox {
    std::mutex mutex;  // guards what follows
    std::condition_variable filled;
    std::map<int32_t, llm::Delta> waiting;  // by the number of the answer
    std::vector<bool> finished;             // for each answer
    int64_t open = 0;                       // answers that have not finished
    std::optional<Error> error;
    void add(llm::Delta delta);
  };
  Stream(std::shared_ptr<Model> model, const ReadRequest& request);

  const std::shared_ptr<Model> model_;
  const std::vector<int32_t> prompt_;
  const std::optional<PoolUse> pool_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::optional<engine::RequestId> id_;  // none: it was refused
};

}  // namespace quire::capi
