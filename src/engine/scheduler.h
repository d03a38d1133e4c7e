// SPDX-License-Identifier: Apache-2.0
// Scheduler: which sequences get how many tokens in the next step, by vLLM's rules.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/sequence.h"
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
};

// A sequence's share of a step: `count` tokens from num_computed on, with room for them in its pages.
struct Share {
  Sequence* sequence = nullptr;
  int64_t count = 0;
};

// Owns the queues; the sequences belong to the engine. Engine thread. Running sequences come first, in order of
// admission; when pages run out the last one (or the one of the worst priority) is preempted: its pages go back, its
// tokens stay, and it waits at the front. Nothing is admitted in a step that preempted, and a prompt is admitted only
// if all of it fits now, in every cache group. Where a model keeps states, a share ends where one is to be kept.
class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, kv::KvManager& kv) : options_(options), kv_(kv) {}

  void add(Sequence* sequence);
  // Takes the sequence out of the queues and gives its pages back.
  void remove(Sequence* sequence);
  // Says that a sequence got a token.
  void note_token(const Sequence& sequence) { waiting_tokens_ += sequence.waiting ? 1 : 0; }
  // The next step's shares, valid until the next call; empty only when nothing is waiting or running, or when what runs
  // must first be told the tokens of the step under way.
  const std::vector<Share>& schedule();

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_waiting_tokens() const { return waiting_tokens_; }
  int64_t num_preemptions() const { return num_preemptions_; }

 private:
  int64_t wanted_tokens(const Sequence& sequence, int64_t computed, int64_t budget) const;
  int64_t cut(const Sequence& sequence, int64_t computed, int64_t count) const;
  bool make_room(Sequence* sequence, int64_t num_tokens, int64_t& budget);
  size_t victim() const;
  void preempt(size_t running_index, int64_t& budget);
  void admit(int64_t budget);
  bool before(const Sequence& a, const Sequence& b) const;
  void enqueue(Sequence* sequence, bool front);

  SchedulerOptions options_;
  kv::KvManager& kv_;
  std::vector<Share> shares_;       // of the step that is being made, kept for its memory
  std::vector<Sequence*> running_;  // in order of admission
  std::deque<Sequence*> waiting_;   // in the order in which they will be admitted
  int64_t waiting_tokens_ = 0;      // of the sequences in waiting_
  int64_t num_preemptions_ = 0;
};

}  // namespace quire::engine
