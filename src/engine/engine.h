// SPDX-License-Identifier: Apache-2.0
// Engine: takes requests, runs them step by step on one model, and returns their tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/draft_cost.h"
#include "engine/live.h"
#include "engine/mask_workers.h"
#include "engine/model_drafter.h"
#include "engine/proposer.h"
#include "engine/request.h"
#include "engine/row_sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step.h"
#include "engine/step_builder.h"
#include "kv/kv_manager.h"
#include "model/model.h"

namespace quire::engine {

struct EngineOptions {
  SchedulerOptions scheduler;
  int32_t num_blocks = 0;  // pages of the KV cache, including the null page
  int32_t block_size = 16;
  DType kv_dtype = DType::kF16;
  kv::CacheLayout cache;  // made by kv::group_layers; if it has no groups, the engine makes it
  bool prefix_caching = true;
  int64_t checkpoint_interval = kv::KvManagerOptions::kAutoInterval;  // as in kv::KvManagerOptions
  int64_t max_logit_rows = 64;
  int64_t max_logprobs = 20;
  bool pools = false;              // takes requests that pool
  std::optional<int64_t> seed;     // from which the seeds of requests without one are drawn; none: at random
  bool async_scheduling = true;    // if the backend samples: build and queue the next step while one runs
  SpeculationOptions speculation;  // if on, no step is queued while one runs whose sequences may have drafts next
  kv::OffloadOptions offload;      // tiers below the KV cache, other engines; none without prefix_caching
};

// For vLLM's counters spec_decode_*.
struct SpeculationStats {
  int64_t drafts = 0;  // how often a sequence had drafts in a step
  int64_t draft_tokens = 0;
  int64_t accepted_tokens = 0;
  std::vector<int64_t> accepted_per_position;  // by the place among the drafts; empty without speculation
};

struct EngineStats {
  int64_t steps = 0;
  int64_t tokens_computed = 0;  // by the model, prompts and answers
  int64_t preemptions = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t waiting_tokens = 0;  // in the sequences that wait
  int64_t added = 0;           // sequences since the start
  int64_t added_tokens = 0;    // in their prompts
  double kv_usage = 0;
  kv::PrefixStats prefix;
  SpeculationStats speculation;
  std::vector<uint64_t> running_adapters, waiting_adapters;  // ids of those with sequences that run or wait
};

// Owns one model, one backend and all sequences. The thread that calls step() owns the engine; other threads may call
// only the methods marked "any thread". Any number of requests may be under way. A request that fails does not affect
// the others. The outputs of a request depend only on the request, the weights and the seed.
class Engine {
 public:
  // `draft` is the model of SpeculationOptions::with_model(); its layers come after the model's in the cache.
  static Result<std::unique_ptr<Engine>> make(std::unique_ptr<Backend> backend, std::unique_ptr<model::Model> model,
                                              const EngineOptions& options,
                                              std::unique_ptr<model::Model> draft = nullptr);
  ~Engine();

  // Normalises sampling settings and checks them against the model. Any thread.
  Status check(sampling::SamplingParams& params) const;
  // Checks the prompt and the lengths of a request; one that can never fit into the KV cache is refused. Any thread.
  // REQUIRES: request.params passed the check above.
  Status check(const Request& request) const;
  // An id for a request to be added. Any thread.
  RequestId reserve_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // Queues a request; its outputs carry this id. Its sequences are made when they are admitted. Requests that a client
  // sent together share a submission; without one, the request is a submission of its own.
  // REQUIRES: the request passed both checks.
  void add(RequestId id, RequestPtr request, std::shared_ptr<Submission> submission = nullptr);
  // Checks a request, gives it an id and queues it.
  Result<RequestId> add(Request request);
  // Drops a request, or one of its n sequences, and frees its pages; no output follows. Unknown ids are ignored.
  void abort(RequestId id);
  void abort(RequestId id, int32_t child);
  bool has_work() const { return !sequences_.empty() || !pending_.empty(); }
  // Runs one step and returns its outputs, at most one per sequence. If the backend samples, the next step may already
  // run when this returns (EngineOptions::async_scheduling).
  std::vector<Output> step();

  const model::Model& model() const { return *model_; }
  const Backend& backend() const { return *backend_; }
  const EngineOptions& options() const { return options_; }
  const kv::CacheLayout& cache_layout() const { return pages_->layout(); }
  EngineStats stats() const;
  // The sequences and the pages as they are now, for the server's live view. The cost grows with the number of pages.
  LiveView live(int32_t max_cells = LiveView::kMaxCells) const;
  // What one page holds, and for whom; nothing if there is no such page.
  std::optional<LivePage> live_page(kv::BlockId page) const;
  bool reset_prefix_cache() { return kv_.reset_prefix_cache(); }
  // See KvManager.
  void record_cache_events() { kv_.record_events(); }
  std::vector<kv::CacheEvent> take_cache_events() { return kv_.take_events(); }
  // The tiers below the KV cache; null without any.
  kv::Offload* offload() { return options_.offload.has_tiers() ? offload_.get() : nullptr; }
  const kv::Offload* offload() const { return options_.offload.has_tiers() ? offload_.get() : nullptr; }
  // For tests and tools.
  void set_logits_tap(RowSampler::LogitsTap tap) { sampler_->set_tap(std::move(tap)); }
  // Sees the logits of drafts. REQUIRES: SpeculationOptions::with_model().
  void set_draft_tap(RowSampler::LogitsTap tap) { model_drafter_->set_tap(std::move(tap)); }
  // Replaces the clock, in seconds, by which the engine decides how many drafts are worth their time.
  void set_clock(std::function<double()> clock) { clock_ = std::move(clock); }
  // Changes what a model has drafted for a sequence; -1 is a draft that is not known yet, and may stay.
  // REQUIRES: SpeculationOptions::with_model().
  using DraftEdit = std::function<void(const Sequence&, std::vector<int32_t>& drafts)>;
  void set_draft_edit(DraftEdit edit) { draft_edit_ = std::move(edit); }
  // Turns drafts off and on again. REQUIRES: speculation is on.
  void set_drafting(bool on) { drafting_ = on; }
  // Replaces the proposer of sequences without drafts so far. REQUIRES: speculation is on.
  using ProposerMaker = std::function<std::unique_ptr<Proposer>(const Sequence&)>;
  void set_proposer(ProposerMaker maker) { make_proposer_ = std::move(maker); }

 private:
  Engine(std::unique_ptr<Backend> backend, std::unique_ptr<model::Model> model, std::unique_ptr<model::KvCache> pages,
         const EngineOptions& options, std::unique_ptr<model::Model> draft);
  bool begin(Step& step);
  bool launch(Step& step, bool ahead);
  void enqueue(Step& step);
  void read_drafts(Step& step);
  void note_drafting();
  void start_masks(Step& step);
  void join_masks(Step& step);
  void commit(const Step& step);
  std::vector<Output> finish(Step& step);
  void read_pooled(Step& step);
  std::vector<Output> collect_outputs(Step& step);
  void draft(Sequence& sequence, int64_t most);
  bool draft_forced(Sequence& sequence, int64_t most);
  void cut_drafts(Sequence& sequence) const;
  bool queues_drafts() const;
  bool commits_early() const;
  bool runs_ahead() const;
  bool may_run_ahead() const;
  void settle_drafts(const Share& share, const Output& output);
  bool reaches_end(const Sequence& sequence, int64_t num_tokens) const;
  void accept(Sequence& sequence, int32_t token, Output& output) const;
  Sequence* make_sequence(PendingRequest& pending);
  const std::vector<Share>& schedule();
  void drop(Sequence* sequence);

  EngineOptions options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::Model> draft_model_;  // null: none
  std::unique_ptr<model::KvCache> pages_;
  std::unique_ptr<kv::Offload> offload_;  // uses the memory of pages_
  kv::KvManager kv_;
  Scheduler scheduler_;
  std::map<std::pair<RequestId, int32_t>, std::unique_ptr<Sequence>> sequences_;  // all that were made
  std::map<RequestId, PendingRequest> pending_;  // requests with sequences still to be made
  std::vector<RequestId> all_made_;              // requests to be erased from pending_ once the step is scheduled
  std::atomic<RequestId> next_id_ = 1;
  uint64_t next_arrival_ = 0;  // the number of sequences added so far
  int64_t added_tokens_ = 0;
  sampling::SeedGenerator seeds_;
  StepBuilder builder_;
  std::unique_ptr<RowSampler> sampler_;
  ProposerMaker make_proposer_;
  std::unique_ptr<ModelDrafter> model_drafter_;  // proposes instead, if there is a draft model
  DraftEdit draft_edit_;                         // none: its drafts are used as they are
  AnswerStore answers_;                          // for SuffixProposer; outlives the sequences
  bool drafting_ = false;
  std::function<double()> clock_;
  DraftCost draft_cost_;
  double least_probability_ = 0;        // of a draft in the step being scheduled, to be worth its row
  double least_model_probability_ = 0;  // the same, to be worth its row and the work of model_drafter_
  double drafting_seconds_ = 0, model_draft_seconds_ = 0;  // of model_drafter_: in this step, and per draft
  double drafting_began_ = 0;                              // when it began to make the drafts of this step
  int64_t most_drafts_ = 0;                                // of a sequence in this step
  double right_ = DraftPace::kFirstRight;                  // how often the first draft of a round was right of late
  SpeculationStats speculation_;
  Step current_, next_;
  MaskWorkers mask_workers_;
  int64_t steps_ = 0;
  int64_t tokens_computed_ = 0;
  int64_t num_needing_logits_ = 0;  // sequences with needs_host_logits(), pending ones too
};

}  // namespace quire::engine
