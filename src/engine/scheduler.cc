// SPDX-License-Identifier: Apache-2.0
// Schedules running sequences, then admits waiting ones; preempts when pages run out; keeps shares and seats fair.
#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace quire::engine {

bool Scheduler::runs_before(const Sequence& a, const Sequence& b) const {
  if (options_.policy == Policy::kPriority && a.priority != b.priority) return a.priority < b.priority;
  return a.arrival < b.arrival;
}

// Queues.

Caller* Scheduler::acquire_caller(const Submission& submission) {
  Caller& caller = callers_[submission.caller];
  ++caller.references;
  return &caller;
}

void Scheduler::release_caller(const Submission& submission) {
  const auto it = callers_.find(submission.caller);
  if (--it->second.references == 0) callers_.erase(it);
}

uint64_t Scheduler::next_tag(bool heavy, Submission& submission, Caller& caller) {
  uint64_t tag = queue(heavy).virtual_time;
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
  queue(sequence->heavy).entries.emplace(key_of(*sequence), Entry{.sequence = sequence});
}

void Scheduler::enqueue(PendingRequest* request) {
  request->tag = next_tag(request->heavy, *request->submission, *request->caller);
  queue(request->heavy).entries.emplace(key_of(*request), Entry{.request = request});
}

void Scheduler::add(Sequence* sequence) {
  sequence->caller = acquire_caller(*sequence->submission);
  sequence->heavy = is_heavy(*sequence);
  sequence->tag = next_tag(sequence->heavy, *sequence->submission, *sequence->caller);
  enqueue(sequence);
}

void Scheduler::add(PendingRequest* request) {
  const int64_t prompt = static_cast<int64_t>(request->request->prompt.size());
  request->caller = acquire_caller(*request->submission);
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
    queue(sequence->heavy).entries.erase(key_of(*sequence));
    std::erase(restoring_, sequence);
    sequence->waiting = false;
  } else if (const auto it = std::find(running_.begin(), running_.end(), sequence); it != running_.end()) {
    running_.erase(it);
    note_running(*sequence, -1);
  }
  if (std::exchange(sequence->caller, nullptr) != nullptr) release_caller(*sequence->submission);
  kv_.free(sequence->table);
}

void Scheduler::remove(PendingRequest* request) {
  if (!request->waiting) return;
  num_waiting_ -= request->left();
  waiting_tokens_ -= request->left() * static_cast<int64_t>(request->request->prompt.size());
  queue(request->heavy).entries.erase(key_of(*request));
  request->waiting = false;
  release_caller(*request->submission);
}

// Adapters.

void Scheduler::note_running(const Sequence& sequence, int change) {
  sequence.submission->running += change;
  sequence.caller->running += change;
  if (sequence.adapter == nullptr) return;
  const auto it = running_adapters_.emplace(sequence.adapter->id, 0).first;
  it->second += change;
  if (it->second == 0) running_adapters_.erase(it);
}

bool Scheduler::has_room_for_adapter(const Entry& entry) const {
  const model::Adapter* adapter = entry.adapter();
  return adapter == nullptr || running_adapters_.contains(adapter->id) ||
         static_cast<int64_t>(running_adapters_.size()) < options_.max_adapters;
}

bool Scheduler::is_held_back(const Entry& entry) const {
  return !has_room_for_adapter(entry) ||
         (adapters_held_ && entry.adapter() != nullptr && running_adapters_.contains(entry.adapter()->id));
}

const std::pair<const Scheduler::Key, Scheduler::Entry>* Scheduler::first_open(const Queue& queue) const {
  for (const auto& entry : queue.entries) {
    if (!is_held_back(entry.second)) return &entry;
  }
  return nullptr;
}

// Decides whether sequences with running adapters must wait because another one was passed too often.
void Scheduler::hold_adapters() {
  adapters_held_ = false;
  if (running_adapters_.empty() || adapter_overtakes_ < kMaxOvertakes) return;
  for (const Queue* queue : {&light_, &heavy_}) {
    for (const auto& [key, entry] : queue->entries) adapters_held_ |= !has_room_for_adapter(entry);
  }
  if (!adapters_held_) adapter_overtakes_ = 0;
}

std::vector<uint64_t> Scheduler::running_adapters() const {
  std::vector<uint64_t> out;
  for (const auto& [id, count] : running_adapters_) out.push_back(id);
  return out;
}

std::vector<uint64_t> Scheduler::waiting_adapters() const {
  std::vector<uint64_t> out;
  if (options_.max_adapters == 0) return out;
  for (const Queue* queue : {&light_, &heavy_}) {
    for (const auto& [key, entry] : queue->entries) {
      if (entry.adapter() != nullptr) out.push_back(entry.adapter()->id);
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Running sequences.

int64_t Scheduler::wanted_tokens(const Sequence& sequence, int64_t computed, int64_t budget) const {
  int64_t count = sequence.num_to_compute() - computed;
  if (options_.long_prefill_token_threshold > 0) count = std::min(count, options_.long_prefill_token_threshold);
  return std::min(count, budget);
}

// Which running sequence to preempt when pages run out: the worst priority first, then one of a submission with several
// sequences, then the newest.
size_t Scheduler::memory_victim() const {
  size_t worst = 0;
  for (size_t i = 1; i < running_.size(); ++i) {
    const Sequence& a = *running_[worst];
    const Sequence& b = *running_[i];
    const bool by_priority = options_.policy == Policy::kPriority;
    if (by_priority && a.priority != b.priority) {
      if (a.priority < b.priority) worst = i;
    } else if (a.submission->bulk() != b.submission->bulk()) {
      if (b.submission->bulk()) worst = i;
    } else if (!by_priority || runs_before(a, b)) {
      worst = i;
    }
  }
  return worst;
}

void Scheduler::preempt(size_t running_index, int64_t& budget) {
  Sequence* sequence = running_[running_index];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(running_index));
  note_running(*sequence, -1);
  const auto share =
      std::find_if(shares_.begin(), shares_.end(), [&](const Share& s) { return s.sequence == sequence; });
  if (share != shares_.end()) {
    budget += share->count;
    shares_.erase(share);
  }
  kv_.free(sequence->table, true);
  sequence->num_computed = 0;
  ++num_preemptions_;
  ++sequence->num_preemptions;
  sequence->preempted_in = step_;
  enqueue(sequence);  // with its old tag, so before later ones
}

// Allocates pages for the first num_tokens positions and preempts running sequences until they fit; false if `sequence`
// itself was preempted.
bool Scheduler::make_room(Sequence* sequence, int64_t num_tokens, int64_t& budget) {
  while (!kv_.allocate_slots(sequence->table, num_tokens)) {
    if (cancel_restore()) continue;
    const size_t index = memory_victim();
    const bool self = running_[index] == sequence;
    preempt(index, budget);
    if (self) return false;
  }
  return true;
}

// Schedules the running sequences; true if one of them has to wait for its last token, which is in flight.
bool Scheduler::schedule_running(int64_t& budget) {
  bool under_way = false;
  for (size_t i = 0; i < running_.size() && budget > 0;) {
    Sequence* sequence = running_[i];
    const int64_t begin = sequence->num_computed;
    const int64_t count = std::min(sequence->allowance, budget);
    if (count == 0) {  // its last token is in flight, or others come first
      QUIRE_CHECK(sequence->in_flight() || sequence->num_to_compute() > begin, "a running sequence has work");
      under_way |= sequence->in_flight();
      ++i;
      continue;
    }
    const bool stays = make_room(sequence, begin + count, budget);
    // Preemption may have removed sequences before this one: find it again.
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
  collect_restored();
  set_allowances();
  hold_adapters();
  bool under_way = schedule_running(budget);
  if (num_preemptions_ == preempted_before_) admit(budget);
  if (shares_.empty() && !under_way && !running_.empty()) {
    // All sequences with an allowance were preempted. Those without one have the pages, so they continue instead.
    for (Sequence* sequence : running_) {
      sequence->allowance = wanted_tokens(*sequence, sequence->num_computed, options_.max_num_batched_tokens);
    }
    under_way = schedule_running(budget);
  }
  QUIRE_CHECK(!shares_.empty() || under_way || restoring() || (running_.empty() && num_waiting_ == 0),
              "a step with work makes progress");
  if (draft_) add_drafts(budget);
  return shares_;
}

// Gives drafts to the shares that sample a token, as far as tokens and pages are left.
void Scheduler::add_drafts(int64_t budget) {
  for (Share& share : shares_) {
    Sequence& sequence = *share.sequence;
    const int64_t end = sequence.num_computed + share.count;
    if (end != sequence.num_tokens() || sequence.num_output() == 0 || sequence.in_flight()) continue;
    const bool heavy = is_heavy(sequence);
    const int64_t most = heavy ? std::min(budget, heavy_budget_ / kSampledCost) : budget;
    if (most <= 0) continue;
    draft_(sequence, most);
    auto count = static_cast<int64_t>(sequence.drafts.size());
    QUIRE_CHECK(count <= most);
    while (count > 0 && !kv_.allocate_drafts(sequence.table, end, count)) --count;
    sequence.drafts.resize(static_cast<size_t>(count));
    share.drafts = count;
    share.count += count;
    budget -= count;
    if (!heavy) continue;
    heavy_budget_ -= count * kSampledCost;
    sequence.submission->served += count * kSampledCost;
  }
  if (fill_drafts_) fill_drafts();
}

void Scheduler::fill_drafts() {
  fill_drafts_(shares_);
  for (Share& share : shares_) {
    Sequence& sequence = *share.sequence;
    if (share.drafts == 0) continue;
    const auto filled = static_cast<int64_t>(sequence.drafts.size());
    QUIRE_CHECK(filled <= share.drafts);
    share.count -= share.drafts - filled;
    share.drafts = filled;
    kv_.trim(sequence.table, sequence.num_computed + share.count);
  }
}

// Fairness within a step.

bool Scheduler::is_heavy(const Sequence& sequence) const {
  return sequence.submission->bulk() || sequence.num_to_compute() - sequence.num_computed > options_.max_light_prompt;
}

// The cost of a share in prompt tokens. A row whose logits are sampled costs about as much as kSampledCost of them.
int64_t Scheduler::cost(const Sequence& sequence) {
  return sequence.allowance == 1 ? kSampledCost : sequence.allowance;
}

// Decides how many tokens each running sequence may have in this step.
void Scheduler::set_allowances() {
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
  const bool alone = light == 0 && light_.entries.empty();
  if (!alone) last_light_step_ = step_;
  if (alone && step_ - last_light_step_ > kLightSteps) {
    set_heavy_allowances(std::numeric_limits<int64_t>::max());
    return;
  }
  // After a light sequence has ended, another may arrive soon, and it has to wait for the end of this step.
  const int64_t least = options_.min_heavy_tokens * (alone ? kAloneFactor : 1);
  const int64_t share = std::max(least, 2 * light);
  set_heavy_allowances(std::max<int64_t>(1, std::min(share, options_.max_num_batched_tokens - light_tokens)));
}

// If a caller's light sequences cost more than twice those of all other callers, the excess counts as heavy in this
// step. Returns the cost of those that stay light, without the largest caller's if there are several.
int64_t Scheduler::demote_crowding_callers(int64_t light) {
  int64_t stay = 0;
  int64_t widest = 0;
  for (Sequence* sequence : running_) {
    if (is_heavy(*sequence) || sequence->allowance == 0) continue;
    Caller& caller = *sequence->caller;
    const int64_t other_callers = light - caller.light_cost;
    const int64_t most = std::max(options_.min_heavy_tokens, 2 * other_callers);
    if (other_callers > 0 && caller.light_cost_given + cost(*sequence) > most) {
      heavy_running_.push_back(sequence);
    } else {
      caller.light_cost_given += cost(*sequence);
      stay += cost(*sequence);
      widest = std::max(widest, caller.light_cost_given);
    }
  }
  return stay > widest ? stay - widest : stay;
}

// Distributes a cost of `tokens` among the heavy sequences, each time to the submission that was served least so far.
void Scheduler::set_heavy_allowances(int64_t tokens) {
  int64_t wanted = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Sequence* sequence : heavy_running_) {
    wanted += cost(*sequence);
    least = std::min(least, sequence->submission->served);
  }
  if (!heavy_running_.empty()) heavy_clock_ = std::max(heavy_clock_, least);
  if (wanted <= tokens) {
    for (Sequence* sequence : heavy_running_) sequence->submission->served += cost(*sequence);
    heavy_budget_ = tokens == std::numeric_limits<int64_t>::max() ? tokens : tokens - wanted;
    return;
  }
  heavy_budget_ = 0;
  while (!heavy_running_.empty()) {
    const auto next = std::min_element(
        heavy_running_.begin(), heavy_running_.end(),
        [](const Sequence* a, const Sequence* b) { return a->submission->served < b->submission->served; });
    Sequence* sequence = *next;
    heavy_running_.erase(next);
    // Without chunked prefill, a prompt is computed as a whole or not at all.
    if (options_.chunked_prefill || tokens <= 0) sequence->allowance = std::min(sequence->allowance, tokens);
    sequence->submission->served += cost(*sequence);
    tokens = std::max<int64_t>(0, tokens - cost(*sequence));
  }
}

// Admission.

// The queue from which to admit next; null if nothing may be admitted. A sequence that was preempted in this step is
// not admitted again in it: its last token may still be in flight.
Scheduler::Queue* Scheduler::next_queue() {
  const auto* first_light = first_open(light_);
  const auto* first_heavy = first_open(heavy_);
  const bool light = first_light != nullptr && !first_light->second.preempted_in(step_);
  const bool heavy = first_heavy != nullptr && heavy_budget_ > 0 && num_preemptions_ == preempted_before_;
  if (!heavy) return light ? &light_ : nullptr;
  if (!light) return &heavy_;
  const int64_t a = std::get<0>(first_light->first);
  const int64_t b = std::get<0>(first_heavy->first);
  if (a != b) return a < b ? &light_ : &heavy_;
  const bool starves = overtakes_ >= kMaxOvertakes && first_heavy->second.submission().running == 0;
  return starves ? &heavy_ : &light_;
}

// The entry to admit next: the first one or, in the heavy queue, that of the submission with the fewest seats, so that
// seats move between submissions only as sequences end.
Scheduler::Key Scheduler::next_entry(const Queue& queue) const {
  const auto& [first, entry] = *first_open(queue);
  if (&queue == &light_ || std::get<1>(first) == kFrontTag) return first;
  Key best = first;
  int64_t fewest = entry.submission().running;
  int scanned = 0;
  for (const auto& [key, other] : queue.entries) {
    if (std::get<0>(key) != std::get<0>(first) || fewest == 0 || ++scanned > kMaxScanned) break;
    if (other.submission().running >= fewest || is_held_back(other)) continue;
    fewest = other.submission().running;
    best = key;
  }
  return best;
}

// The sequence of an entry, made now if the entry is a request.
Sequence* Scheduler::sequence_at(Queue& queue, const Key& key) {
  const auto at = queue.entries.find(key);
  if (at->second.sequence != nullptr) return at->second.sequence;
  PendingRequest* request = at->second.request;
  queue.entries.erase(at);
  Sequence* sequence = make_(*request);
  sequence->caller = acquire_caller(*sequence->submission);
  sequence->heavy = request->heavy;
  sequence->tag = request->tag;
  --num_waiting_;
  waiting_tokens_ -= sequence->num_tokens();
  enqueue(sequence);
  if (request->left() > 0) {
    enqueue(request);
  } else {
    request->waiting = false;
    release_caller(*request->submission);
  }
  return sequence;
}

Scheduler::SeatHolders Scheduler::seat_holders() const {
  SeatHolders holders;
  for (const Sequence* sequence : running_) {
    const Submission& submission = *sequence->submission;
    if (holders.caller == nullptr || sequence->caller->running > holders.caller->running)
      holders.caller = sequence->caller;
    if (!submission.bulk()) continue;
    ++holders.bulk;
    if (holders.submission == nullptr || submission.running > holders.submission->running)
      holders.submission = &submission;
  }
  return holders;
}

// The running sequence to preempt for `to`, if a submission or caller has far more than its share of the seats.
std::optional<size_t> Scheduler::fairness_victim(const SeatHolders& holders, const Entry& to, bool heavy) const {
  const Submission& own = to.submission();
  const bool by_submission = holders.submission != nullptr && holders.submission != &own &&
                             (heavy ? holders.submission->running > 4 * own.running + 2
                                    : holders.bulk > std::max<int64_t>(1, options_.max_num_seqs / 8));
  const int64_t fair = options_.max_num_seqs / static_cast<int64_t>(callers_.size());
  const bool by_caller = holders.caller != nullptr && holders.caller != &to.caller() &&
                         holders.caller->running > std::max<int64_t>(1, fair) && to.caller().running < fair;
  if (!by_submission && !by_caller) return std::nullopt;
  const int64_t priority = to.sequence != nullptr ? to.sequence->priority : to.request->request->priority;
  for (size_t i = running_.size(); i-- > 0;) {
    const Sequence& sequence = *running_[i];
    if (options_.policy == Policy::kPriority && sequence.priority < priority) continue;
    if (by_submission ? sequence.submission.get() == holders.submission : sequence.caller == holders.caller) return i;
  }
  return std::nullopt;
}

// Preempts a sequence of whoever has far more than its share, for the first waiting entry that is entitled to the seat,
// and returns the key of that entry; nothing if there is no such pair.
std::optional<Scheduler::Key> Scheduler::preempt_for_waiting(const Queue& queue, int64_t& budget) {
  const SeatHolders holders = this->seat_holders();
  if (holders.bulk == 0 && callers_.size() == 1) return std::nullopt;
  int scanned = 0;
  for (const auto& [key, entry] : queue.entries) {
    std::optional<size_t> index;
    if (!entry.preempted_in(step_) && !is_held_back(entry)) index = fairness_victim(holders, entry, &queue == &heavy_);
    if (!index) {
      if (++scanned == kMaxScanned) return std::nullopt;
      continue;
    }
    // It goes to the end of its queue: at the front it would get the seat back at once.
    const Key claimant = key;
    Sequence& sequence = *running_[*index];
    sequence.tag = next_tag(sequence.heavy, *sequence.submission, *sequence.caller);
    preempt(*index, budget);
    return claimant;
  }
  return std::nullopt;
}

// Puts the sequences whose pages have been read back into their queues.
void Scheduler::collect_restored() {
  kv_.reap_cancelled();
  std::erase_if(restoring_, [&](Sequence* sequence) {
    if (!kv_.restored(sequence->table)) return false;
    kv_.finish_restore(sequence->table, sequence->tokens);
    queue(sequence->heavy).entries.emplace(key_of(*sequence), Entry{.sequence = sequence});
    return true;
  });
}

// Gives up the pages that are read for the sequence that came last; it will compute them. False if there is none.
bool Scheduler::cancel_restore() {
  if (restoring_.empty()) return false;
  Sequence* sequence = restoring_.back();
  restoring_.pop_back();
  kv_.cancel_restore(sequence->table);
  queue(sequence->heavy).entries.emplace(key_of(*sequence), Entry{.sequence = sequence});
  return true;
}

// Admits a waiting sequence if there are pages for it, or lets it wait for pages from a tier.
bool Scheduler::try_admit(Sequence* sequence, Queue& queue, int64_t& budget) {
  QUIRE_CHECK(!sequence->in_flight(), "no token of a waiting sequence is in flight");
  // Cached pages hold K and V, but prompt logprobs need the hidden states of the last layer, at every position.
  kv::PrefixHit hit = kv_.find_prefix(sequence->table, sequence->tokens, sequence->may_read_prefix());
  hit.counted = !sequence->admitted_before;
  const bool limited = sequence->heavy && options_.chunked_prefill;
  const int64_t count = wanted_tokens(*sequence, hit.num_tokens, limited ? std::min(budget, heavy_budget_) : budget);
  const bool whole = hit.num_tokens + count == sequence->num_tokens();
  if (!options_.chunked_prefill && !whole && !shares_.empty()) return false;
  if (!kv_.can_admit(sequence->num_tokens(), hit)) return false;
  if (!std::exchange(sequence->restore_tried, true) && !sequence->owes_prompt_logprobs() &&
      kv_.start_restore(sequence->table, sequence->tokens, hit)) {
    if (kv_.restored(sequence->table)) {  // copies within the memory
      kv_.finish_restore(sequence->table, sequence->tokens);
      return try_admit(sequence, queue, budget);
    }
    queue.entries.erase(key_of(*sequence));
    restoring_.push_back(sequence);
    return true;
  }
  QUIRE_CHECK(kv_.allocate_slots(sequence->table, hit.num_tokens + count, hit));

  if (sequence->adapter != nullptr) {
    const bool passes = std::ranges::any_of(queue.entries, [&](const auto& other) {
      return other.first < key_of(*sequence) && !has_room_for_adapter(other.second);
    });
    adapter_overtakes_ = passes ? adapter_overtakes_ + 1 : 0;
  }
  sequence->restore_tried = false;
  queue.entries.erase(key_of(*sequence));
  queue.virtual_time = std::max(queue.virtual_time, sequence->tag);
  sequence->waiting = false;
  --num_waiting_;
  waiting_tokens_ -= sequence->num_tokens();
  running_.push_back(sequence);
  note_running(*sequence, 1);
  sequence->num_computed = sequence->num_drafted = hit.num_tokens;
  if (!sequence->admitted_before) {
    sequence->cached_tokens = std::min(hit.num_tokens, sequence->prompt_size);
    sequence->restored_tokens = std::min(hit.restored_tokens, sequence->cached_tokens);
    sequence->restored_from_disk = hit.from_disk;
    sequence->scheduled = std::chrono::steady_clock::now();
    sequence->admitted_before = true;
  }
  if (sequence->heavy) {
    sequence->submission->served = std::max(sequence->submission->served, heavy_clock_) + count;
    heavy_budget_ -= std::min(heavy_budget_, count);
    overtakes_ = 0;
  } else if (!heavy_.entries.empty()) {
    ++overtakes_;
  }
  shares_.push_back({sequence, count});
  budget -= count;
  return true;
}

void Scheduler::admit(int64_t& budget) {
  while (budget > 0) {
    Queue* queue = next_queue();
    if (queue == nullptr) return;
    if (num_running() < options_.max_num_seqs) {
      Sequence* sequence = sequence_at(*queue, next_entry(*queue));
      if (try_admit(sequence, *queue, budget)) continue;
      // Without chunked prefill, the prompt may lack a step of its own rather than pages.
      if (!options_.chunked_prefill && !shares_.empty()) return;
    }
    const std::optional<Key> claimant = preempt_for_waiting(*queue, budget);
    if (!claimant) return;
    Sequence* sequence = sequence_at(*queue, *claimant);
    if (try_admit(sequence, *queue, budget)) continue;
    // It needs more pages. It moves to the front, so that the next free ones are for it.
    queue->entries.erase(key_of(*sequence));
    sequence->tag = kFrontTag;
    queue->entries.emplace(key_of(*sequence), Entry{.sequence = sequence});
    if (queue == &heavy_) return;
  }
}

}  // namespace quire::engine
