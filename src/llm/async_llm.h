// SPDX-License-Identifier: Apache-2.0
// AsyncLlm: an Llm on threads of its own, to which any thread may submit requests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "llm/llm.h"
#include "llm/request_trace.h"
#include "metrics/recent_times.h"
#include "metrics/server_metrics.h"

namespace quire::llm {

struct AsyncOptions {
  std::optional<int64_t> max_num_queued_reqs;      // more waiting sequences than this are refused
  std::optional<int64_t> max_num_queued_tokens;    // the same for the prompt tokens that wait
  int64_t max_request_bytes = int64_t{128} << 20;  // memory for all requests under way; more are refused
  metrics::ServerMetrics* metrics = nullptr;       // counts steps and requests; must outlive the AsyncLlm
  size_t engine = 0;                               // which of the Llm's
  // The memory that the requests of several engines hold together; null: this one's alone.
  std::shared_ptr<std::atomic<int64_t>> held_bytes = {};
  double log_stats_every_s = 10;  // interval of the line of statistics; 0: none
  std::string name = {};          // in front of that line, if there are several models
  TraceSink on_trace = {};        // receives the times of each request at its end; may be empty
  // Receives what entered and left the prefix cache, after each step in which something did, on the engine thread. It
  // must not block. May be empty.
  std::function<void(std::vector<kv::CacheEvent>)> on_cache_events = {};
};

// Receives the deltas of a request, in order, on the output thread; it must not block. The last delta of each of the n
// sequences has a finish reason. After abort() it is not called again; if abort() was called on another thread than the
// output thread, a call may still be under way.
using DeltaSink = std::function<void(Delta)>;

struct SubmitOptions {
  std::string caller;                     // the name of the API key; the scheduler is fair between callers
  std::string label = {};                 // the id that the client sees, for the live view
  bool keeps_answer = false;              // the sink keeps the whole answer, so its memory is counted from the start
  SharedList<int32_t> kept_special = {};  // special tokens that are shown all the same; see text::Detokenizer
  TraceContext trace = {};                // from the client, for AsyncOptions::on_trace
  std::optional<int64_t> engine = {};     // for a ParallelLlm: the engine that takes it; none: the best one
};

// Owns the Llm, or shares it with the AsyncLlms of its other engines, and two threads. The engine thread applies new
// requests and aborts before each step and runs the steps. The output thread turns tokens into text and calls the
// sinks, so that the engine never waits for text. The destructor aborts requests that still run; no sink is called
// after it. All public methods may be called on any thread.
class AsyncLlm {
 public:
  AsyncLlm(std::shared_ptr<Llm> llm, const AsyncOptions& options);
  ~AsyncLlm();
  AsyncLlm(const AsyncLlm&) = delete;
  AsyncLlm& operator=(const AsyncLlm&) = delete;

  // For its methods that any thread may call: tokens_of, prepare, tokenizer, default_params and so on.
  const Llm& llm() const { return *llm_; }
  const engine::Engine& engine() const { return engine_; }
  metrics::ServerMetrics* metrics() const { return options_.metrics; }
  // The engine stops after its current step; the destructor waits for it.
  void begin_stop();

  // Submits the prompts of one API request, as made by prepare(): all or none. Fails with kExhausted if the queue or
  // the memory for requests is full, and with kInvalidArgument if they would not fit even into empty ones. The sink
  // receives the deltas of all of them, with the returned ids, which ascend. It may be called before this returns.
  Result<std::vector<engine::RequestId>> submit(std::vector<engine::Request> requests, DeltaSink sink,
                                                const SubmitOptions& options = {});
  // Whether submit() would take them now.
  bool has_room(const std::vector<engine::Request>& requests, const SubmitOptions& options) const;
  // The sequences under way.
  int64_t load() const { return load_.load(std::memory_order_relaxed); }
  // Ends a request whose client has disconnected; its pages are freed before the next step.
  void abort(engine::RequestId id);
  // The result is false if a page is in use; then nothing is reset.
  std::future<bool> reset_prefix_cache();
  // Calls `look` on the engine thread between two steps, at once if the engine is idle; it must be quick. The result is
  // false if the engine stopped before.
  using LookFn = std::function<void(const engine::Engine& engine)>;
  std::future<bool> look(LookFn look);
  // The times and counts of the answers since the start, for the live view.
  metrics::RecentTimes recent() const;
  // As of the last step.
  engine::EngineStats stats() const;
  // How long the engine thread has been in its current step, or the output thread in its current delivery; nothing if
  // both are idle. Takes no lock, so that a health check always gets an answer.
  std::optional<double> stalled_seconds() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Child {
    int64_t num_tokens = 0;
    Clock::time_point scheduled, first, last;
    bool finished = false;
    engine::FinishReason reason = engine::FinishReason::kNone;
  };
  // What a submission adds to the queue and to the memory of requests.
  struct Cost {
    int64_t sequences = 0;
    int64_t tokens = 0;        // prompts times n
    int64_t bytes = 0;         // held from the start
    int64_t answer_bytes = 0;  // held at the end, at most
  };
  // A request under way, from submit() to its last finish.
  struct Tracked {
    std::shared_ptr<const DeltaSink> sink;
    Clock::time_point arrival;
    engine::RequestPtr request;
    std::unordered_map<int32_t, Child> children;  // those that have begun
    int64_t open = 0;                             // sequences that have not ended
    int64_t longest = 0;                          // tokens of the longest answer that ended
    int64_t bytes = 0;                            // of memory, for this request
    std::string label = {};                       // this and the next only if traces are wanted
    TraceContext trace = {};

    int64_t prompt_tokens() const { return static_cast<int64_t>(request->prompt.size()); }
  };
  struct Add {
    engine::RequestId id;
    engine::RequestPtr request;
    std::shared_ptr<engine::Submission> submission;
  };
  struct Abort {
    engine::RequestId id;
    std::optional<int32_t> child;
  };
  using Reset = std::promise<bool>;
  struct Look {
    LookFn look;
    std::promise<bool> done;
  };
  using Command = std::variant<Add, Abort, Reset, Look>;
  struct Batch {
    std::vector<engine::Output> outputs;
    bool stepped = false;
    bool reset = false;  // the prefix cache was emptied before the step
    engine::EngineStats stats;
    Clock::time_point at;
  };

  void run_engine();
  void run_outputs();
  void apply(Command& command);
  void post(Command command);
  void deliver(Batch& batch, std::vector<Delta>& deltas);
  static Cost cost_of(const std::vector<engine::Request>& requests, const SubmitOptions& options);
  Status check_ever(const Cost& cost) const;
  // What is full, and for the metrics the name of the limit; nothing if there is room.
  struct Full {
    std::string state;
    const char* limit;
  };
  std::optional<Full> find_full(const Cost& cost) const;
  Status check_queue(const Cost& cost) const;
  void note_tokens(Tracked& tracked, const engine::Output& output, Clock::time_point at, metrics::StepStats& step);
  void note_finish(const Tracked& tracked, const Child& child, const engine::Output& output,
                   engine::FinishReason reason, Clock::time_point at);
  void note_trace(const Tracked& tracked, Clock::time_point at) const;
  void forget(std::unordered_map<engine::RequestId, Tracked>::iterator it);
  void trim_memory(Clock::time_point now, bool idle);
  void report(metrics::StepStats step, const Batch& batch);

  const std::shared_ptr<Llm> llm_;
  const AsyncOptions options_;
  engine::Engine& engine_;
  metrics::StatLogger stat_logger_;

  std::mutex inbox_mutex_;  // guards inbox_ and stopping_
  std::condition_variable inbox_filled_;
  std::vector<Command> inbox_;
  bool stopping_ = false;

  std::mutex outbox_mutex_;  // guards outbox_ and engine_done_
  std::condition_variable outbox_filled_;
  std::deque<Batch> outbox_;
  bool engine_done_ = false;

  mutable std::mutex tracked_mutex_;  // guards what follows
  std::unordered_map<engine::RequestId, Tracked> tracked_;
  Streams streams_;
  int64_t submitted_ = 0;  // sequences since the start; those that stats_ does not count yet are in the inbox
  int64_t submitted_tokens_ = 0;
  const std::shared_ptr<std::atomic<int64_t>> held_bytes_;  // by all tracked requests
  std::atomic<int64_t> load_ = 0;
  engine::EngineStats stats_;
  metrics::RecentTimes recent_;
  engine::EngineStats reported_;  // output thread: the stats at the last report to the metrics
  Clock::time_point trimmed_{};   // output thread: when free memory was last returned to the system
  bool untrimmed_ = false;        // output thread: there was work since
  bool pending_reset_ = false;    // output thread: a reset of the prefix cache, to be reported with the next step
  bool reset_ = false;            // engine thread: the same, for the next batch

  // When each thread began its current step or delivery, in ticks of the clock; 0: idle.
  std::atomic<Clock::rep> engine_busy_since_{0};
  std::atomic<Clock::rep> output_busy_since_{0};

  std::thread engine_thread_;
  std::thread output_thread_;
};

}  // namespace quire::llm
