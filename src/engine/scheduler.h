// SPDX-License-Identifier: Apache-2.0
// Scheduler: decides which sequences get how many tokens in the next step, by vLLM's rules and with fair shares.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/sequence.h"
#include "engine/submission.h"
#include "kv/kv_manager.h"

namespace quire::engine {

enum class Policy { kFcfs, kPriority };

struct SchedulerOptions {
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  int64_t max_model_len = 0;
  int64_t long_prefill_token_threshold = 0;  // 0: off
  bool chunked_prefill = true;
  Policy policy = Policy::kFcfs;
  int64_t max_adapters = 0;  // different ones among the running sequences; 0: requests have none
  // Fairness: see Scheduler. The defaults suit a CPU, where a step's time grows with its tokens.
  int64_t min_heavy_tokens = 16;   // tokens per step that all heavy sequences together get at least
  int64_t max_light_prompt = 512;  // a prompt with more tokens to compute than this is heavy
};

// A sequence's share of a step: `count` tokens from num_computed on. Its pages have room for them. The last `drafts` of
// them are Sequence::drafts.
struct Share {
  Sequence* sequence = nullptr;
  int64_t count = 0;
  int64_t drafts = 0;
  int64_t begin = 0;    // num_computed before the step, once it is launched
  int64_t dropped = 0;  // of the drafts: what they are was known later, and that they cannot be accepted
};

// Owns the queues; the sequences belong to the engine. Engine thread. A running sequence holds one of max_num_seqs
// seats. Running sequences are scheduled first, in order of admission. When pages run out, the newest one (or the one
// of the worst priority) is preempted: it loses its pages, keeps its tokens and waits at the front of its queue. A
// preempted sequence is not admitted again in the same step, and a prompt is admitted only if all of it fits now, in
// every cache group.
//
// Fairness. A sequence is light if it is the only one of its submission and at most max_light_prompt tokens of its
// prompt are left to compute; otherwise it is heavy. Of several callers (API keys), the light sequences of one count as
// light only up to twice the cost of all the others. The cost of a share is its tokens; a sampled token costs
// kSampledCost.
// - While there are light sequences, heavy ones get at most twice the cost of the light ones per step (and at least
//   min_heavy_tokens), so that a step takes at most about three times as long as it would without them. For kLightSteps
//   after the last light sequence has ended they get kAloneFactor times that minimum, then the whole step.
// - Among the heavy sequences, those whose submissions were served least so far come first.
// - The queues use start-time fair queueing (Goyal et al., 1996): the tag of an entry is one more than the last tag of
//   its caller and, if it is heavy, of its submission, and at least the queue's virtual time. With one caller and one
//   sequence per submission that is first come, first served.
// - Light sequences are admitted before heavy ones, but a submission without a running sequence is overtaken at most
//   kMaxOvertakes times.
// - Of several heavy submissions, the one with the fewest seats is next.
// - If a waiting sequence lacks a seat or pages, the newest sequence of the submission (or caller) with the most seats
// is
//   preempted, provided that it has far more than its share.
//
// If a tier below the KV cache has more of a prompt than the cache, its sequence leaves the queue when it could be
// admitted, and comes back to its old place when the pages have been read; meanwhile others are admitted and run. Such
// pages are given up before anything is preempted.
//
// Adapters. A waiting sequence whose adapter would be one too many is passed over until one that runs has no sequence
// left. After kMaxOvertakes sequences with adapters have passed it, no more of them are admitted before it.
//
// Drafts come last: they get what is left of the step's tokens and of the free pages, after running and waiting
// sequences, and those of heavy sequences also only what is left of the share of heavy ones. They preempt nobody.
class Scheduler {
 public:
  // `make` makes the next sequence of a pending request. The sequence belongs to the engine, which calls remove().
  using MakeFn = std::function<Sequence*(PendingRequest&)>;
  Scheduler(const SchedulerOptions& options, kv::KvManager& kv, MakeFn make = {})
      : options_(options), kv_(kv), make_(std::move(make)) {}

  // `draft` sets Sequence::drafts, at most so many. It is asked only about sequences that sample a token in this step
  // and have sampled one before.
  using DraftFn = std::function<void(Sequence&, int64_t most)>;
  void set_drafter(DraftFn draft) { draft_ = std::move(draft); }
  // If the drafts of all sequences are made together, `draft` only says how many a sequence may have, and `fill`
  // replaces them by as many tokens or fewer, once the pages for them are there.
  using FillDraftsFn = std::function<void(std::span<const Share>)>;
  void set_draft_filler(FillDraftsFn fill) { fill_drafts_ = std::move(fill); }

  void add(Sequence* sequence);
  // Queues a request.
  // REQUIRES: the request lives until its last sequence is made or it is removed.
  void add(PendingRequest* request);
  // Removes a waiting or running sequence and frees its pages.
  void remove(Sequence* sequence);
  // Removes a request from its queue, but not the sequences that were made from it. No effect after the last one.
  void remove(PendingRequest* request);
  // Must be called when a token is appended to a sequence.
  void note_token(const Sequence& sequence) { waiting_tokens_ += sequence.waiting ? 1 : 0; }
  // The shares of the next step, valid until the next call. Empty only if there are no sequences, if all that run
  // wait for the last token of the step in flight, or while restoring().
  const std::vector<Share>& schedule();

  // The ids of the adapters of running sequences, and of those that wait, for metrics.
  std::vector<uint64_t> running_adapters() const;
  std::vector<uint64_t> waiting_adapters() const;
  // Whether a sequence waits for pages that are read from a tier; schedule() may then have nothing to do.
  bool restoring() const { return !restoring_.empty(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return num_waiting_; }  // including sequences that are not made yet
  int64_t num_waiting_tokens() const { return waiting_tokens_; }
  int64_t num_preemptions() const { return num_preemptions_; }

  static constexpr int64_t kMaxOvertakes = 16;
  static constexpr int64_t kSampledCost = 4;

 private:
  static constexpr uint64_t kLightSteps = 64;  // steps for which a light sequence is remembered
  static constexpr int64_t kAloneFactor = 8;   // what heavy sequences get meanwhile, times min_heavy_tokens
  static constexpr uint64_t kFrontTag = 0;     // of an entry that comes before all others
  static constexpr int kMaxScanned = 64;       // entries of a queue that are read for one decision

  // An entry of a queue: a sequence, or a request whose next sequence waits.
  struct Entry {
    Sequence* sequence = nullptr;
    PendingRequest* request = nullptr;
    bool preempted_in(uint64_t step) const { return sequence != nullptr && sequence->preempted_in == step; }
    Submission& submission() const { return sequence != nullptr ? *sequence->submission : *request->submission; }
    const Caller& caller() const { return sequence != nullptr ? *sequence->caller : *request->caller; }
    const model::Adapter* adapter() const {
      return sequence != nullptr ? sequence->adapter.get() : request->request->adapter.get();
    }
  };
  // Priority (0 under kFcfs), tag, arrival.
  using Key = std::tuple<int64_t, uint64_t, uint64_t>;
  struct Queue {
    std::map<Key, Entry> entries;
    uint64_t virtual_time = 0;  // the highest tag that was admitted
  };

  int64_t wanted_tokens(const Sequence& sequence, int64_t computed, int64_t budget) const;
  bool make_room(Sequence* sequence, int64_t num_tokens, int64_t& budget);
  bool schedule_running(int64_t& budget);
  void add_drafts(int64_t budget);
  void fill_drafts();
  size_t memory_victim() const;
  void preempt(size_t running_index, int64_t& budget);
  bool runs_before(const Sequence& a, const Sequence& b) const;

  // Adapters.
  bool has_room_for_adapter(const Entry& entry) const;
  // The first entry that may be admitted as far as adapters go; null if there is none.
  const std::pair<const Key, Entry>* first_open(const Queue& queue) const;
  bool is_held_back(const Entry& entry) const;
  void hold_adapters();
  void note_running(const Sequence& sequence, int change);

  // Admission.
  void admit(int64_t& budget);
  Queue* next_queue();
  Key next_entry(const Queue& queue) const;
  Sequence* sequence_at(Queue& queue, const Key& key);
  // Who holds the most seats.
  struct SeatHolders {
    const Submission* submission = nullptr;  // with several sequences
    const Caller* caller = nullptr;
    int64_t bulk = 0;  // seats of all submissions with several sequences
  };
  SeatHolders seat_holders() const;
  std::optional<Key> preempt_for_waiting(const Queue& queue, int64_t& budget);
  std::optional<size_t> fairness_victim(const SeatHolders& holders, const Entry& to, bool heavy) const;
  bool try_admit(Sequence* sequence, Queue& queue, int64_t& budget);
  void collect_restored();
  bool cancel_restore();

  // Queues.
  Caller* acquire_caller(const Submission& submission);
  void release_caller(const Submission& submission);
  uint64_t next_tag(bool heavy, Submission& submission, Caller& caller);
  Key key_of(const Sequence& sequence) const;
  Key key_of(const PendingRequest& request) const;
  void enqueue(Sequence* sequence);
  void enqueue(PendingRequest* request);
  Queue& queue(bool heavy) { return heavy ? heavy_ : light_; }

  // Fairness within a step.
  bool is_heavy(const Sequence& sequence) const;
  static int64_t cost(const Sequence& sequence);
  void set_allowances();
  int64_t demote_crowding_callers(int64_t light);
  void set_heavy_allowances(int64_t tokens);

  SchedulerOptions options_;
  kv::KvManager& kv_;
  MakeFn make_;
  DraftFn draft_;                                 // none: no speculation
  FillDraftsFn fill_drafts_;                      // none: draft_ sets the drafts
  std::vector<Share> shares_;                     // of the step that is being scheduled
  std::vector<Sequence*> running_;                // in order of admission
  std::vector<Sequence*> restoring_;              // waiting ones that are in no queue, because a tier reads their pages
  std::map<uint64_t, int64_t> running_adapters_;  // how many running sequences have each, by its id
  bool adapters_held_ = false;     // a sequence waits for a place for its adapter and was passed too often
  int64_t adapter_overtakes_ = 0;  // sequences with adapters admitted while another one waited for a place
  Queue light_, heavy_;
  std::unordered_map<std::string, Caller> callers_;
  std::vector<Sequence*> heavy_running_;  // scratch of set_allowances()
  int64_t heavy_budget_ = 0;              // tokens of the step that waiting heavy sequences may have
  int64_t heavy_clock_ = 0;               // Submission::served of the submission that was served last
  int64_t overtakes_ = 0;                 // light sequences admitted since the last heavy one, while heavy ones waited
  uint64_t step_ = kLightSteps + 1;       // the number of this call of schedule()
  uint64_t last_light_step_ = 0;          // the last step with a light sequence
  int64_t preempted_before_ = 0;          // num_preemptions_ at the start of the step
  int64_t num_waiting_ = 0;
  int64_t waiting_tokens_ = 0;  // in the sequences that wait
  int64_t num_preemptions_ = 0;
};

}  // namespace quire::engine
