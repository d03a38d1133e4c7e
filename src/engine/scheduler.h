// SPDX-License-Identifier: Apache-2.0
// Scheduler: which sequences get how many tokens in the next step, by vLLM's rules and a fair share for everybody.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
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
  // Fairness: see Scheduler. The defaults suit a CPU, where a step's time grows with its tokens.
  int64_t min_heavy_tokens = 16;   // what heavy sequences may have of a step at least, all of them together
  int64_t max_light_prompt = 512;  // a prompt with more tokens to compute than this is heavy
};

// A sequence's share of a step: `count` tokens from num_computed on, with room for them in its pages.
struct Share {
  Sequence* sequence = nullptr;
  int64_t count = 0;
};

// Owns the queues; the sequences belong to the engine. Engine thread. Running sequences come first, in order of
// admission; when pages run out the last one (or the one of the worst priority) is preempted: its pages go back, its
// tokens stay, and it waits at the front. Nothing that was preempted is admitted again in the same step, and a prompt
// is admitted only if all of it fits now, in every cache group. Where a model keeps states, a share ends where one is
// to be kept.
//
// Fairness. A sequence is light if it is the only one of its submission and has at most max_light_prompt tokens of its
// prompt left to compute; else it is heavy. Between callers (API keys), the light sequences of one count as light only
// up to twice what all the others have. Shares are weighed by their cost: a prompt's token is 1, a sampled one
// kSampledCost.
// - While there are light sequences, heavy ones get at most twice the light ones' cost of a step (and at least
//   min_heavy_tokens), so that a step takes at most about three times as long as it would without them.
//   For kLightSteps after the last light sequence has ended they get kAloneFactor times that minimum, then all.
// - Which heavy ones get them goes by what their submissions had so far, the least first.
// - The queues are start-time fair: each place has a tag, one more than the last of its caller and, if heavy, of its
//   submission, and at least the tag that was admitted last. With one caller and one sequence per submission that is
//   first come, first served.
// - Light sequences are admitted before heavy ones, but a submission that has nothing running is overtaken at most
//   kMaxOvertakes times.
// - Of several heavy submissions the one with fewest seats is next.
// - When a seat or pages are missing for one that waits, the newest sequence of the submission (or caller) that has the
//   most is preempted, if that has far more than its share.
class Scheduler {
 public:
  // `make` makes the next sequence of a pending request; it then belongs to the caller, who removes it with remove().
  using MakeFn = std::function<Sequence*(PendingRequest&)>;
  Scheduler(const SchedulerOptions& options, kv::KvManager& kv, MakeFn make = {})
      : options_(options), kv_(kv), make_(std::move(make)) {}

  void add(Sequence* sequence);
  // Queues a request; it must live until its last sequence is made or it is removed.
  void add(PendingRequest* request);
  // Takes the sequence out of the queues and gives its pages back.
  void remove(Sequence* sequence);
  // Takes a request out of the queue; sequences that were made of it stay. Does nothing when its last one was made.
  void remove(PendingRequest* request);
  // Says that a sequence got a token.
  void note_token(const Sequence& sequence) { waiting_tokens_ += sequence.waiting ? 1 : 0; }
  // The next step's shares, valid until the next call; empty only when nothing is waiting or running, or when what runs
  // must first be told the tokens of the step under way.
  const std::vector<Share>& schedule();

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return num_waiting_; }  // with those that are not made yet
  int64_t num_waiting_tokens() const { return waiting_tokens_; }
  int64_t num_preemptions() const { return num_preemptions_; }

  static constexpr int64_t kMaxOvertakes = 16;
  static constexpr int64_t kSampledCost = 4;

 private:
  static constexpr uint64_t kLightSteps = 64;  // how long a light sequence is remembered
  static constexpr int64_t kAloneFactor = 8;   // for heavy sequences meanwhile: times min_heavy_tokens
  static constexpr uint64_t kNextTag = 0;      // of a place that comes before all others
  static constexpr int kMaxLooked = 64;        // places of a queue that are looked at for one decision

  // A place in a queue: a sequence, or a request whose next one stands there.
  struct Place {
    Sequence* sequence = nullptr;
    PendingRequest* request = nullptr;
    bool preempted_in(uint64_t step) const { return sequence != nullptr && sequence->preempted_in == step; }
    Submission& submission() const { return sequence != nullptr ? *sequence->submission : *request->submission; }
    const Caller& caller() const { return sequence != nullptr ? *sequence->caller : *request->caller; }
  };
  // Priority (0 under kFcfs), tag, arrival.
  using Key = std::tuple<int64_t, uint64_t, uint64_t>;
  struct Queue {
    std::map<Key, Place> places;
    uint64_t now = 0;  // the tag that was admitted last
  };

  int64_t wanted_tokens(const Sequence& sequence, int64_t computed, int64_t budget) const;
  int64_t cut(const Sequence& sequence, int64_t computed, int64_t count) const;
  bool make_room(Sequence* sequence, int64_t num_tokens, int64_t& budget);
  bool continue_running(int64_t& budget);
  size_t victim() const;
  void preempt(size_t running_index, int64_t& budget);
  bool before(const Sequence& a, const Sequence& b) const;

  // Admission.
  void admit(int64_t budget);
  Queue* next_queue();
  Key next_place(const Queue& queue) const;
  Sequence* made(Queue& queue, const Key& key);
  // Who has most of the seats.
  struct Crowd {
    const Submission* submission = nullptr;  // of those with several sequences
    const Caller* caller = nullptr;
    int64_t bulk = 0;  // seats of all submissions with several sequences
  };
  Crowd crowd() const;
  std::optional<Key> give_way(const Queue& queue, int64_t& budget);
  std::optional<size_t> crowding(const Crowd& crowd, const Place& to, bool heavy) const;
  bool try_start(Sequence* sequence, Queue& queue, int64_t& budget);

  // Queues.
  Caller* enter(const Submission& submission);
  void leave(const Submission& submission);
  uint64_t next_tag(bool heavy, Submission& submission, Caller& caller);
  Key key_of(const Sequence& sequence) const;
  Key key_of(const PendingRequest& request) const;
  void enqueue(Sequence* sequence);
  void enqueue(PendingRequest* request);
  Queue& queue(bool heavy) { return heavy ? heavy_ : light_; }

  // Fairness within a step.
  bool is_heavy(const Sequence& sequence) const;
  static int64_t cost(const Sequence& sequence);
  void share_out();
  int64_t demote_crowding_callers(int64_t light);
  void share_out_heavy(int64_t tokens);

  SchedulerOptions options_;
  kv::KvManager& kv_;
  MakeFn make_;
  std::vector<Share> shares_;       // of the step that is being made, kept for its memory
  std::vector<Sequence*> running_;  // in order of admission
  Queue light_, heavy_;
  std::unordered_map<std::string, Caller> callers_;
  std::vector<Sequence*> heavy_running_;  // scratch of share_out()
  int64_t heavy_left_ = 0;                // tokens of the step that are left for heavy sequences that wait
  int64_t heavy_clock_ = 0;               // Submission::served of the one that was served last
  int64_t overtakes_ = 0;                 // light sequences that were admitted since a heavy one was, while one waited
  uint64_t step_ = kLightSteps + 1;       // counts the calls of schedule()
  uint64_t light_seen_ = 0;               // the last step with a light sequence
  int64_t preempted_before_ = 0;          // num_preemptions_ when the step began
  int64_t num_waiting_ = 0;
  int64_t waiting_tokens_ = 0;  // of the sequences that wait
  int64_t num_preemptions_ = 0;
};

}  // namespace quire::engine
