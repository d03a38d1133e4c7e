// SPDX-License-Identifier: Apache-2.0
// Engine: requests in, one step at a time, tokens out. The owner of everything that runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/in_flight.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "kv/kv_manager.h"
#include "model/model.h"
#include "sampling/device_rows.h"

namespace quire::engine {

struct EngineOptions {
  SchedulerOptions scheduler;
  int32_t num_blocks = 0;  // with the null page
  int32_t block_size = 16;
  DType kv_dtype = DType::kF16;
  kv::CacheLayout cache;  // of kv::group_layers; without groups it is made of the two above
  bool prefix_caching = true;
  int64_t max_logit_rows = 64;
  int64_t max_logprobs = 20;
  bool async_scheduling = true;  // where the backend samples: a step is made and queued while the one before runs
};

struct EngineStats {
  int64_t steps = 0;
  int64_t tokens_computed = 0;  // rows that went through the model
  int64_t preemptions = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t waiting_tokens = 0;  // of the sequences that wait
  int64_t added = 0;           // sequences, since the start
  int64_t added_tokens = 0;    // their prompts'
  double kv_usage = 0;
  kv::PrefixStats prefix;
};

// One model, one backend, one thread: whoever calls step() owns the engine (but for what says "any thread"). Any number
// of requests may be inside. A request that fails takes nobody with it. Outputs of a request are a function of the
// request, the weights and the seed alone.
class Engine {
 public:
  static Result<std::unique_ptr<Engine>> make(std::unique_ptr<Backend> backend, std::unique_ptr<model::Model> model,
                                              const EngineOptions& options);
  ~Engine();

  // Brings settings to their normal form and checks them against the model. Any thread.
  Status check(sampling::SamplingParams& params) const;
  // Checks the prompt and its lengths, of a request whose settings were checked; one that can never fit is refused with
  // the numbers. Any thread.
  Status check(const Request& request) const;
  // A number for a request that is to be added. Any thread.
  RequestId reserve_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // Queues a request that both checks passed; its outputs carry this id. Its sequences are made when they are admitted.
  // Requests that one client sent together share a submission; without one the request is a submission of its own.
  void add(RequestId id, RequestPtr request, std::shared_ptr<Submission> submission = nullptr);
  // Checks, numbers and queues.
  Result<RequestId> add(Request request);
  // Drops a request, or one of its n sequences, and frees its pages; no output follows. Unknown ids are ignored.
  void abort(RequestId id);
  void abort(RequestId id, int32_t child);
  bool has_work() const { return !sequences_.empty() || !pending_.empty(); }
  // Runs one step and returns what it brought, at most one Output a sequence. Where the backend samples, the next step
  // may be on its way when this returns (EngineOptions::async_scheduling).
  std::vector<Output> step();

  const model::Model& model() const { return *model_; }
  const Backend& backend() const { return *backend_; }
  const EngineOptions& options() const { return options_; }
  const kv::CacheLayout& cache_layout() const { return pages_->layout(); }
  EngineStats stats() const;
  bool reset_prefix_cache() { return kv_.reset_prefix_cache(); }
  // Called with each row of logits as it is sampled (id, child, position of the row's token, logits): for tests and
  // tools.
  using LogitsTap = std::function<void(RequestId, int32_t, int64_t, std::span<const float>)>;
  void set_logits_tap(LogitsTap tap) { tap_ = std::move(tap); }

 private:
  Engine(std::unique_ptr<Backend> backend, std::unique_ptr<model::Model> model, std::unique_ptr<model::KvCache> pages,
         const EngineOptions& options);
  void build(const std::vector<Share>& shares, std::vector<Row>& rows);
  void build_groups(const std::vector<Share>& shares);
  void read_rows(std::vector<Output>& outputs);
  void read_row(const Row& row, std::span<const float> logits, Output& output);
  bool read_prompt_logprob(const Row& row, std::span<const float> logits, Output& output);
  std::vector<Output> step_on_host();
  void hand_out(const std::vector<Share>& shares, const std::vector<Row>& rows, std::vector<Output>& outputs);

  // Steps on a backend that samples: engine_device.cc.
  std::vector<Output> step_on_device();
  bool begin(InFlight& step);
  void commit(const std::vector<Share>& shares);
  void sample(InFlight& step);
  void keep_rows(InFlight& step, int64_t begin, const Tensor& logits);
  std::vector<Output> read(InFlight& step);
  void read_sampled(InFlight& step, size_t row, const SampledRow& sampled, std::span<const SampledTop> top);
  static bool wants_logits(const sampling::SamplingParams& params);
  void accept(Sequence& sequence, int32_t token, Output& output) const;
  Sequence* make_sequence(PendingRequest& pending);
  const std::vector<Share>& schedule();
  void drop(Sequence* sequence);
  void fail(Sequence& sequence, const Error& error, Output& output) const;

  EngineOptions options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::KvCache> pages_;
  kv::KvManager kv_;
  Scheduler scheduler_;
  std::map<std::pair<RequestId, int32_t>, std::unique_ptr<Sequence>> sequences_;  // those that are made
  std::map<RequestId, PendingRequest> pending_;                                   // requests with sequences to be made
  std::vector<RequestId> all_made_;  // of pending_: to be forgotten when the step is scheduled
  std::atomic<RequestId> next_id_ = 1;
  uint64_t next_arrival_ = 0;  // as many sequences were added
  int64_t added_tokens_ = 0;
  model::StepBatch batch_;
  std::vector<Row> rows_;  // parallel to batch_.wanted
  InFlight current_, next_;
  uint64_t last_number_ = 0;        // of steps on a backend that samples
  int64_t num_wanting_logits_ = 0;  // sequences that the host reads logits for, made or not
  sampling::DeviceRows device_rows_;
  sampling::Scratch scratch_;
  int64_t steps_ = 0;
  int64_t tokens_computed_ = 0;
  LogitsTap tap_;
};

}  // namespace quire::engine
