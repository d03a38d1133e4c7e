// SPDX-License-Identifier: Apache-2.0
// Running first, then waiting; preemption when pages run out.
#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace quire::engine {

bool Scheduler::before(const Sequence& a, const Sequence& b) const {
  if (options_.policy == Policy::kPriority && a.priority != b.priority) return a.priority < b.priority;
  return a.arrival < b.arrival;
}

void Scheduler::enqueue(Sequence* sequence, bool front) {
  sequence->waiting = true;
  waiting_tokens_ += sequence->num_tokens();
  if (options_.policy == Policy::kPriority) {
    const auto place = std::upper_bound(waiting_.begin(), waiting_.end(), sequence,
                                        [&](const Sequence* a, const Sequence* b) { return before(*a, *b); });
    waiting_.insert(place, sequence);
  } else if (front) {
    waiting_.push_front(sequence);
  } else {
    waiting_.push_back(sequence);
  }
}

void Scheduler::add(Sequence* sequence) {
  enqueue(sequence, false);
}

void Scheduler::remove(Sequence* sequence) {
  if (const auto it = std::find(running_.begin(), running_.end(), sequence); it != running_.end()) {
    running_.erase(it);
  } else if (const auto at = std::find(waiting_.begin(), waiting_.end(), sequence); at != waiting_.end()) {
    waiting_tokens_ -= sequence->num_tokens();
    waiting_.erase(at);
  }
  kv_.free(sequence->table);
}

int64_t Scheduler::wanted_tokens(const Sequence& sequence, int64_t computed, int64_t budget) const {
  int64_t count = sequence.num_to_compute() - computed;
  if (options_.long_prefill_token_threshold > 0) count = std::min(count, options_.long_prefill_token_threshold);
  return std::min(count, budget);
}

// The same, cut where the sequence's states are to be kept.
int64_t Scheduler::cut(const Sequence& sequence, int64_t computed, int64_t count) const {
  return kv_.step_end(sequence.table, computed, computed + count) - computed;
}

size_t Scheduler::victim() const {
  if (options_.policy == Policy::kFcfs) return running_.size() - 1;
  size_t worst = 0;
  for (size_t i = 1; i < running_.size(); ++i) {
    if (before(*running_[worst], *running_[i])) worst = i;
  }
  return worst;
}

void Scheduler::preempt(size_t running_index, int64_t& budget) {
  Sequence* sequence = running_[running_index];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(running_index));
  const auto share =
      std::find_if(shares_.begin(), shares_.end(), [&](const Share& s) { return s.sequence == sequence; });
  if (share != shares_.end()) {
    budget += share->count;
    shares_.erase(share);
  }
  kv_.free(sequence->table);
  sequence->num_computed = 0;
  ++num_preemptions_;
  ++sequence->num_preemptions;
  enqueue(sequence, true);
}

// Pages for the first num_tokens positions, preempting others as long as it takes; false when `sequence` itself had to
// go.
bool Scheduler::make_room(Sequence* sequence, int64_t num_tokens, int64_t& budget) {
  while (!kv_.allocate_slots(sequence->table, num_tokens)) {
    const size_t index = victim();
    const bool self = running_[index] == sequence;
    preempt(index, budget);
    if (self) return false;
  }
  return true;
}

const std::vector<Share>& Scheduler::schedule() {
  shares_.clear();
  int64_t budget = options_.max_num_batched_tokens;
  const int64_t preempted_before = num_preemptions_;
  bool under_way = false;
  for (size_t i = 0; i < running_.size() && budget > 0;) {
    Sequence* sequence = running_[i];
    const int64_t begin = sequence->num_computed;
    const int64_t count = cut(*sequence, begin, wanted_tokens(*sequence, begin, budget));
    if (count == 0 && sequence->in_flight()) {  // its last token is under way
      under_way = true;
      ++i;
      continue;
    }
    QUIRE_CHECK(count > 0, "a running sequence always has a token to compute");
    const bool stays = make_room(sequence, begin + count, budget);
    // A preempted one may have stood before this place in the list: find it again.
    const auto at = std::find(running_.begin(), running_.end(), sequence);
    if (!stays) {
      i = std::min(i, running_.size());
      continue;
    }
    shares_.push_back({sequence, count});
    budget -= count;
    i = static_cast<size_t>(at - running_.begin()) + 1;
  }
  if (num_preemptions_ == preempted_before) admit(budget);
  QUIRE_CHECK(!shares_.empty() || under_way || (running_.empty() && waiting_.empty()),
              "a step with work makes progress");
  return shares_;
}

void Scheduler::admit(int64_t budget) {
  while (!waiting_.empty() && budget > 0 && num_running() < options_.max_num_seqs) {
    Sequence* sequence = waiting_.front();
    QUIRE_CHECK(!sequence->in_flight(), "all tokens of a sequence that is admitted are known");
    // Prompt logprobs need every row of the prompt computed.
    kv::PrefixHit hit = kv_.find_prefix(sequence->table, sequence->tokens, !sequence->params.prompt_logprobs);
    hit.counted = !sequence->admitted_before;
    const int64_t wanted = wanted_tokens(*sequence, hit.num_tokens, budget);
    const bool whole = hit.num_tokens + wanted == sequence->num_tokens();
    if (!options_.chunked_prefill && !whole && !shares_.empty()) break;
    if (!kv_.can_admit(sequence->num_tokens(), hit)) break;
    const int64_t count = cut(*sequence, hit.num_tokens, wanted);
    QUIRE_CHECK(kv_.allocate_slots(sequence->table, hit.num_tokens + count, hit));
    waiting_.pop_front();
    sequence->waiting = false;
    waiting_tokens_ -= sequence->num_tokens();
    running_.push_back(sequence);
    sequence->num_computed = hit.num_tokens;
    if (!sequence->admitted_before) {
      sequence->cached_tokens = std::min(hit.num_tokens, sequence->prompt_size);
      sequence->scheduled = std::chrono::steady_clock::now();
      sequence->admitted_before = true;
    }
    shares_.push_back({sequence, count});
    budget -= count;
  }
}

}  // namespace quire::engine
