// SPDX-License-Identifier: Apache-2.0
// Running first, then waiting; preemption when pages run out; everybody's share of a step and of the seats.
#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace quire::engine {

bool Scheduler::before(const Sequence& a, const Sequence& b) const {
  if (options_.policy == Policy::kPriority && a.priority != b.priority) return a.priority < b.priority;
  return a.arrival < b.arrival;
}

// Queues.

Caller* Scheduler::enter(const Submission& submission) {
  Caller& caller = callers_[submission.caller];
  ++caller.live;
  return &caller;
}

void Scheduler::leave(const Submission& submission) {
  const auto it = callers_.find(submission.caller);
  if (--it->second.live == 0) callers_.erase(it);
}

uint64_t Scheduler::next_tag(bool heavy, Submission& submission, Caller& caller) {
  uint64_t tag = queue(heavy).now;
  if (!submission.caller.empty()) tag = std::max(tag, caller.last_tag[heavy ? 1 : 0] + 1);
  if (heavy) tag = std::max(tag, submission.last_tag + 1);
  caller.last_tag[heavy ? 1 : 0] = tag;
  if (heavy) submission.last_tag = tag;
  return tag;
}

Scheduler::Key Scheduler::key_of(const Sequence& sequence) const {
  return {options_.policy == Policy::kPriority ? sequence.priority : 0, sequence.tag, sequence.arrival};
}

Scheduler::Key Scheduler::key_of(const PendingRequest& request) const {
  return {options_.policy == Policy::kPriority ? request.request->priority : 0, request.tag,
          request.arrival + static_cast<uint64_t>(request.next_child)};
}

void Scheduler::enqueue(Sequence* sequence) {
  sequence->waiting = true;
  ++num_waiting_;
  waiting_tokens_ += sequence->num_tokens();
  queue(sequence->heavy).places.emplace(key_of(*sequence), Place{.sequence = sequence});
}

void Scheduler::enqueue(PendingRequest* request) {
  request->tag = next_tag(request->heavy, *request->submission, *request->caller);
  queue(request->heavy).places.emplace(key_of(*request), Place{.request = request});
}

void Scheduler::add(Sequence* sequence) {
  sequence->caller = enter(*sequence->submission);
  sequence->heavy = is_heavy(*sequence);
  sequence->tag = next_tag(sequence->heavy, *sequence->submission, *sequence->caller);
  enqueue(sequence);
}

void Scheduler::add(PendingRequest* request) {
  const int64_t prompt = static_cast<int64_t>(request->request->prompt.size());
  request->caller = enter(*request->submission);
  request->heavy = request->submission->bulk() || prompt > options_.max_light_prompt;
  request->waiting = true;
  num_waiting_ += request->left();
  waiting_tokens_ += request->left() * prompt;
  enqueue(request);
}

void Scheduler::remove(Sequence* sequence) {
  if (sequence->waiting) {
    --num_waiting_;
    waiting_tokens_ -= sequence->num_tokens();
    queue(sequence->heavy).places.erase(key_of(*sequence));
    sequence->waiting = false;
  } else if (const auto it = std::find(running_.begin(), running_.end(), sequence); it != running_.end()) {
    running_.erase(it);
    --sequence->submission->running;
    --sequence->caller->running;
  }
  if (std::exchange(sequence->caller, nullptr) != nullptr) leave(*sequence->submission);
  kv_.free(sequence->table);
}

void Scheduler::remove(PendingRequest* request) {
  if (!request->waiting) return;
  num_waiting_ -= request->left();
  waiting_tokens_ -= request->left() * static_cast<int64_t>(request->request->prompt.size());
  queue(request->heavy).places.erase(key_of(*request));
  request->waiting = false;
  leave(*request->submission);
}

// What runs.

int64_t Scheduler::wanted_tokens(const Sequence& sequence, int64_t computed, int64_t budget) const {
  int64_t count = sequence.num_to_compute() - computed;
  if (options_.long_prefill_token_threshold > 0) count = std::min(count, options_.long_prefill_token_threshold);
  return std::min(count, budget);
}

// The same, cut where the sequence's states are to be kept.
int64_t Scheduler::cut(const Sequence& sequence, int64_t computed, int64_t count) const {
  return kv_.step_end(sequence.table, computed, computed + count) - computed;
}

// The one that goes when pages run out: the worst priority, then one of several of a submission, then the newest.
size_t Scheduler::victim() const {
  size_t worst = 0;
  for (size_t i = 1; i < running_.size(); ++i) {
    const Sequence& a = *running_[worst];
    const Sequence& b = *running_[i];
    const bool by_priority = options_.policy == Policy::kPriority;
    if (by_priority && a.priority != b.priority) {
      if (a.priority < b.priority) worst = i;
    } else if (a.submission->bulk() != b.submission->bulk()) {
      if (b.submission->bulk()) worst = i;
    } else if (!by_priority || before(a, b)) {
      worst = i;
    }
  }
  return worst;
}

void Scheduler::preempt(size_t running_index, int64_t& budget) {
  Sequence* sequence = running_[running_index];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(running_index));
  --sequence->submission->running;
  --sequence->caller->running;
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
  sequence->preempted_in = step_;
  enqueue(sequence);  // with its old tag, so before those that came later
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

// Shares for what runs already; true when a sequence got none because its last token is under way.
bool Scheduler::continue_running(int64_t& budget) {
  bool under_way = false;
  for (size_t i = 0; i < running_.size() && budget > 0;) {
    Sequence* sequence = running_[i];
    const int64_t begin = sequence->num_computed;
    const int64_t wanted = std::min(sequence->allowance, budget);
    if (wanted == 0) {  // its last token is under way, or it is the turn of others
      QUIRE_CHECK(sequence->in_flight() || sequence->num_to_compute() > begin, "a running sequence has work");
      under_way |= sequence->in_flight();
      ++i;
      continue;
    }
    const int64_t count = cut(*sequence, begin, wanted);
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
  return under_way;
}

const std::vector<Share>& Scheduler::schedule() {
  shares_.clear();
  int64_t budget = options_.max_num_batched_tokens;
  preempted_before_ = num_preemptions_;
  ++step_;
  share_out();
  bool under_way = continue_running(budget);
  if (num_preemptions_ == preempted_before_) admit(budget);
  if (shares_.empty() && !under_way && !running_.empty()) {
    // All whose turn it was were preempted; those who were held back have the pages, so now they go on.
    for (Sequence* sequence : running_) {
      sequence->allowance = wanted_tokens(*sequence, sequence->num_computed, options_.max_num_batched_tokens);
    }
    under_way = continue_running(budget);
  }
  QUIRE_CHECK(!shares_.empty() || under_way || (running_.empty() && num_waiting_ == 0),
              "a step with work makes progress");
  return shares_;
}

// Fairness within a step.

bool Scheduler::is_heavy(const Sequence& sequence) const {
  return sequence.submission->bulk() || sequence.num_to_compute() - sequence.num_computed > options_.max_light_prompt;
}

// What a share costs, in tokens of a prompt: a row whose logits are sampled costs about as much as kSampledCost of
// them.
int64_t Scheduler::cost(const Sequence& sequence) {
  return sequence.allowance == 1 ? kSampledCost : sequence.allowance;
}

// Decides how many tokens each running sequence may have.
void Scheduler::share_out() {
  heavy_running_.clear();
  for (auto& [name, caller] : callers_) caller.light_cost = caller.light_cost_given = 0;
  int64_t light = 0, light_tokens = 0;
  for (Sequence* sequence : running_) {
    sequence->allowance = wanted_tokens(*sequence, sequence->num_computed, options_.max_num_batched_tokens);
    if (is_heavy(*sequence)) {
      heavy_running_.push_back(sequence);
    } else {
      light_tokens += sequence->allowance;
      light += cost(*sequence);
      sequence->caller->light_cost += cost(*sequence);
    }
  }
  if (callers_.size() > 1) light = demote_crowding_callers(light);
  const bool alone = light == 0 && light_.places.empty();
  if (!alone) light_seen_ = step_;
  if (alone && step_ - light_seen_ > kLightSteps) {
    share_out_heavy(std::numeric_limits<int64_t>::max());
    return;
  }
  // Where there was a light sequence a moment ago the next one may come soon, and it must wait for this step to end.
  const int64_t least = options_.min_heavy_tokens * (alone ? kAloneFactor : 1);
  const int64_t share = std::max(least, 2 * light);
  share_out_heavy(std::max<int64_t>(1, std::min(share, options_.max_num_batched_tokens - light_tokens)));
}

// Light sequences of a caller that wants more than twice what the others want count as heavy in this step. Returns the
// cost of those that stay light, without the widest caller's if there are others.
int64_t Scheduler::demote_crowding_callers(int64_t light) {
  int64_t stay = 0;
  int64_t widest = 0;
  for (Sequence* sequence : running_) {
    if (is_heavy(*sequence) || sequence->allowance == 0) continue;
    Caller& caller = *sequence->caller;
    const int64_t others = light - caller.light_cost;
    const int64_t most = std::max(options_.min_heavy_tokens, 2 * others);
    if (others > 0 && caller.light_cost_given + cost(*sequence) > most) {
      heavy_running_.push_back(sequence);
    } else {
      caller.light_cost_given += cost(*sequence);
      stay += cost(*sequence);
      widest = std::max(widest, caller.light_cost_given);
    }
  }
  return stay > widest ? stay - widest : stay;
}

// Gives shares that cost `tokens` to the heavy sequences, one at a time to the submission that had least so far.
void Scheduler::share_out_heavy(int64_t tokens) {
  int64_t wanted = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Sequence* sequence : heavy_running_) {
    wanted += cost(*sequence);
    least = std::min(least, sequence->submission->served);
  }
  if (!heavy_running_.empty()) heavy_clock_ = std::max(heavy_clock_, least);
  if (wanted <= tokens) {
    for (Sequence* sequence : heavy_running_) sequence->submission->served += cost(*sequence);
    heavy_left_ = tokens == std::numeric_limits<int64_t>::max() ? tokens : tokens - wanted;
    return;
  }
  heavy_left_ = 0;
  while (!heavy_running_.empty()) {
    const auto next = std::min_element(
        heavy_running_.begin(), heavy_running_.end(),
        [](const Sequence* a, const Sequence* b) { return a->submission->served < b->submission->served; });
    Sequence* sequence = *next;
    heavy_running_.erase(next);
    // Without chunked prefill a prompt goes whole or not at all.
    if (options_.chunked_prefill || tokens <= 0) sequence->allowance = std::min(sequence->allowance, tokens);
    sequence->submission->served += cost(*sequence);
    tokens = std::max<int64_t>(0, tokens - cost(*sequence));
  }
}

// Admission.

// The queue whose first place is next; null when nothing may be admitted. What was preempted in this step must not come
// back in it: its last token may still be under way.
Scheduler::Queue* Scheduler::next_queue() {
  const bool light = !light_.places.empty() && !light_.places.begin()->second.preempted_in(step_);
  const bool heavy = !heavy_.places.empty() && heavy_left_ > 0 && num_preemptions_ == preempted_before_;
  if (!heavy) return light ? &light_ : nullptr;
  if (!light) return &heavy_;
  const int64_t a = std::get<0>(light_.places.begin()->first);
  const int64_t b = std::get<0>(heavy_.places.begin()->first);
  if (a != b) return a < b ? &light_ : &heavy_;
  const bool starves = overtakes_ >= kMaxOvertakes && heavy_.places.begin()->second.submission().running == 0;
  return starves ? &heavy_ : &light_;
}

// The place that is next: the first one, or of several submissions that are heavy that of the one with fewest seats, so
// that a seat goes from one to another only as sequences end.
Scheduler::Key Scheduler::next_place(const Queue& queue) const {
  const auto& [first, place] = *queue.places.begin();
  if (&queue == &light_ || std::get<1>(first) == kNextTag) return first;
  Key best = first;
  int64_t fewest = place.submission().running;
  int looked = 0;
  for (const auto& [key, other] : queue.places) {
    if (std::get<0>(key) != std::get<0>(first) || fewest == 0 || ++looked > kMaxLooked) break;
    if (other.submission().running >= fewest) continue;
    fewest = other.submission().running;
    best = key;
  }
  return best;
}

// The sequence at a place of the queue, made now if it is a request's next one.
Sequence* Scheduler::made(Queue& queue, const Key& key) {
  const auto at = queue.places.find(key);
  if (at->second.sequence != nullptr) return at->second.sequence;
  PendingRequest* request = at->second.request;
  queue.places.erase(at);
  Sequence* sequence = make_(*request);
  sequence->caller = enter(*sequence->submission);
  sequence->heavy = request->heavy;
  sequence->tag = request->tag;
  --num_waiting_;
  waiting_tokens_ -= sequence->num_tokens();
  enqueue(sequence);
  if (request->left() > 0) {
    enqueue(request);
  } else {
    request->waiting = false;
    leave(*request->submission);
  }
  return sequence;
}

Scheduler::Crowd Scheduler::crowd() const {
  Crowd crowd;
  for (const Sequence* sequence : running_) {
    const Submission& submission = *sequence->submission;
    if (crowd.caller == nullptr || sequence->caller->running > crowd.caller->running) crowd.caller = sequence->caller;
    if (!submission.bulk()) continue;
    ++crowd.bulk;
    if (crowd.submission == nullptr || submission.running > crowd.submission->running) crowd.submission = &submission;
  }
  return crowd;
}

// The running sequence that should give up its seat and pages for `to`, if somebody has more than their share.
std::optional<size_t> Scheduler::crowding(const Crowd& crowd, const Place& to, bool heavy) const {
  const Submission& own = to.submission();
  const bool by_submission = crowd.submission != nullptr && crowd.submission != &own &&
                             (heavy ? crowd.submission->running > 4 * own.running + 2
                                    : crowd.bulk > std::max<int64_t>(1, options_.max_num_seqs / 8));
  const int64_t fair = options_.max_num_seqs / static_cast<int64_t>(callers_.size());
  const bool by_caller = crowd.caller != nullptr && crowd.caller != &to.caller() &&
                         crowd.caller->running > std::max<int64_t>(1, fair) && to.caller().running < fair;
  if (!by_submission && !by_caller) return std::nullopt;
  const int64_t priority = to.sequence != nullptr ? to.sequence->priority : to.request->request->priority;
  for (size_t i = running_.size(); i-- > 0;) {
    const Sequence& sequence = *running_[i];
    if (options_.policy == Policy::kPriority && sequence.priority < priority) continue;
    if (by_submission ? sequence.submission.get() == crowd.submission : sequence.caller == crowd.caller) return i;
  }
  return std::nullopt;
}

// Takes a seat and pages from whoever has more than their share, for the first of the queue that has less, and says
// which place that is; what stands before it belongs to somebody who has enough. Nothing when nobody need give way.
std::optional<Scheduler::Key> Scheduler::give_way(const Queue& queue, int64_t& budget) {
  const Crowd crowd = this->crowd();
  if (crowd.bulk == 0 && callers_.size() == 1) return std::nullopt;
  int looked = 0;
  for (const auto& [key, place] : queue.places) {
    std::optional<size_t> index;
    if (!place.preempted_in(step_)) index = crowding(crowd, place, &queue == &heavy_);
    if (!index) {
      if (++looked == kMaxLooked) return std::nullopt;
      continue;
    }
    // It goes to the end of its submission's turn, not to the front: there it would take the seat back at once.
    const Key claimant = key;
    Sequence& sequence = *running_[*index];
    sequence.tag = next_tag(sequence.heavy, *sequence.submission, *sequence.caller);
    preempt(*index, budget);
    return claimant;
  }
  return std::nullopt;
}

// Admits a sequence of a queue if there are pages for it.
bool Scheduler::try_start(Sequence* sequence, Queue& queue, int64_t& budget) {
  QUIRE_CHECK(!sequence->in_flight(), "all tokens of a sequence that is admitted are known");
  // Pages hold K and V, but a prompt's logprobs need what comes out of the last layer at every position of it.
  kv::PrefixHit hit = kv_.find_prefix(sequence->table, sequence->tokens, !sequence->owes_prompt_logprobs());
  hit.counted = !sequence->admitted_before;
  const bool limited = sequence->heavy && options_.chunked_prefill;
  const int64_t wanted = wanted_tokens(*sequence, hit.num_tokens, limited ? std::min(budget, heavy_left_) : budget);
  const bool whole = hit.num_tokens + wanted == sequence->num_tokens();
  if (!options_.chunked_prefill && !whole && !shares_.empty()) return false;
  if (!kv_.can_admit(sequence->num_tokens(), hit)) return false;
  const int64_t count = cut(*sequence, hit.num_tokens, wanted);
  QUIRE_CHECK(kv_.allocate_slots(sequence->table, hit.num_tokens + count, hit));

  queue.places.erase(key_of(*sequence));
  queue.now = std::max(queue.now, sequence->tag);
  sequence->waiting = false;
  --num_waiting_;
  waiting_tokens_ -= sequence->num_tokens();
  running_.push_back(sequence);
  ++sequence->submission->running;
  ++sequence->caller->running;
  sequence->num_computed = hit.num_tokens;
  if (!sequence->admitted_before) {
    sequence->cached_tokens = std::min(hit.num_tokens, sequence->prompt_size);
    sequence->scheduled = std::chrono::steady_clock::now();
    sequence->admitted_before = true;
  }
  if (sequence->heavy) {
    sequence->submission->served = std::max(sequence->submission->served, heavy_clock_) + count;
    heavy_left_ -= std::min(heavy_left_, count);
    overtakes_ = 0;
  } else if (!heavy_.places.empty()) {
    ++overtakes_;
  }
  shares_.push_back({sequence, count});
  budget -= count;
  return true;
}

void Scheduler::admit(int64_t budget) {
  while (budget > 0) {
    Queue* queue = next_queue();
    if (queue == nullptr) return;
    if (num_running() < options_.max_num_seqs) {
      Sequence* sequence = made(*queue, next_place(*queue));
      if (try_start(sequence, *queue, budget)) continue;
      // Without chunked prefill a prompt may have to wait for a step of its own, not for pages.
      if (!options_.chunked_prefill && !shares_.empty()) return;
    }
    const std::optional<Key> claimant = give_way(*queue, budget);
    if (!claimant) return;
    Sequence* sequence = made(*queue, *claimant);
    if (try_start(sequence, *queue, budget)) continue;
    // It needs more pages than that: what is freed from now on is for it.
    queue->places.erase(key_of(*sequence));
    sequence->tag = kNextTag;
    queue->places.emplace(key_of(*sequence), Place{.sequence = sequence});
    if (queue == &heavy_) return;
  }
}

}  // namespace quire::engine
