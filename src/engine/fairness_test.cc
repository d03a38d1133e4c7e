// SPDX-License-Identifier: Apache-2.0
// What one client may take of a step, of the seats and of the queue while others want them too.
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/scheduler.h"

namespace quire::engine {
namespace {

// Requests of one letter each, over a pool of pages that is large enough unless a test says otherwise.
class Office {
 public:
  explicit Office(SchedulerOptions options = {}, int32_t pages = 4000)
      : kv_({.num_blocks = pages, .groups = {{kv::CacheKind::kFull, 16, 0}}, .max_step_tokens = 2048}),
        scheduler_(options, kv_, [this](PendingRequest& pending) { return make(pending); }) {}
  ~Office() {
    for (PendingRequest& pending : pending_) scheduler_.remove(&pending);
    for (auto& sequence : sequences_) scheduler_.remove(sequence.get());
  }

  void submit(char name, int64_t n, int64_t prompt = 4, const std::string& caller = "", int64_t priority = 0) {
    Request request;
    request.prompt.assign(static_cast<size_t>(prompt), name);
    request.params.n = n;
    request.priority = priority;
    PendingRequest& pending = pending_.emplace_back();
    pending.submission = std::make_shared<Submission>(n, caller);
    pending.arrival = arrivals_;
    arrivals_ += static_cast<uint64_t>(n);
    pending.request = std::make_shared<const Request>(std::move(request));
    scheduler_.add(&pending);
  }

  // One step: the letters that had a share, with their tokens.
  std::map<char, int64_t> step() {
    std::map<char, int64_t> tokens;
    for (const Share& share : scheduler_.schedule()) {
      Sequence& sequence = *share.sequence;
      tokens[static_cast<char>(sequence.tokens[0])] += share.count;
      sequence.num_computed += share.count;
      kv_.commit(sequence.table, sequence.tokens, sequence.num_computed);
      if (sequence.num_computed == sequence.num_tokens()) sequence.tokens.push_back(1);
    }
    return tokens;
  }

  // Ends a sequence of that letter which runs.
  void finish(char name) {
    for (auto it = sequences_.begin(); it != sequences_.end(); ++it) {
      if ((*it)->tokens[0] != name || (*it)->waiting) continue;
      scheduler_.remove(it->get());
      sequences_.erase(it);
      return;
    }
    FAIL() << name << " does not run";
  }

  int64_t running(char name) const {
    int64_t count = 0;
    for (const auto& sequence : sequences_) count += sequence->tokens[0] == name && !sequence->waiting ? 1 : 0;
    return count;
  }
  size_t made() const { return sequences_.size(); }
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  Sequence* make(PendingRequest& pending) {
    const uint64_t arrival = pending.arrival + static_cast<uint64_t>(pending.next_child++);
    sequences_.push_back(std::make_unique<Sequence>(arrival, 0, *pending.request, 0, arrival, pending.submission));
    return sequences_.back().get();
  }

  kv::KvManager kv_;
  Scheduler scheduler_;
  std::list<PendingRequest> pending_;
  std::list<std::unique_ptr<Sequence>> sequences_;
  uint64_t arrivals_ = 0;
};

using Tokens = std::map<char, int64_t>;

TEST(Fairness, SequencesAreMadeWhenTheyAreAdmitted) {
  // 4 million sequences of one small request once were made at its arrival, and took 9 GB.
  Office office({.max_num_seqs = 8});
  office.submit('a', 16384);
  EXPECT_EQ(office.made(), 0u);
  EXPECT_EQ(office.scheduler().num_waiting(), 16384);
  EXPECT_EQ(office.scheduler().num_waiting_tokens(), 4 * 16384);
  office.step();
  EXPECT_EQ(office.made(), 8u);
  EXPECT_EQ(office.scheduler().num_waiting(), 16384 - 8);
  EXPECT_EQ(office.scheduler().num_waiting_tokens(), 4 * (16384 - 8));
}

TEST(Fairness, OneSequenceEachIsFirstComeFirstServed) {
  Office office({.max_num_seqs = 2});
  for (const char name : {'a', 'b', 'c', 'd', 'e'}) office.submit(name, 1);
  EXPECT_EQ(office.step(), (Tokens{{'a', 4}, {'b', 4}}));
  office.finish('b');
  EXPECT_EQ(office.step(), (Tokens{{'a', 1}, {'c', 4}}));
  office.finish('a');
  office.finish('c');
  EXPECT_EQ(office.step(), (Tokens{{'d', 4}, {'e', 4}}));
}

TEST(Fairness, ManySequencesGetABoundedShareOfAStepWhileOthersRun) {
  Office office({.max_num_seqs = 64, .min_heavy_tokens = 16});
  office.submit('a', 1000);
  office.step();
  EXPECT_EQ(office.step(), (Tokens{{'a', 64}})) << "alone it has the whole batch";
  office.submit('b', 1);
  office.step();
  EXPECT_EQ(office.step(), (Tokens{{'a', 16 / Scheduler::kSampledCost}, {'b', 1}}));
  for (char name = 'c'; name < 'm'; ++name) office.submit(name, 1);
  office.step();
  EXPECT_EQ(office.step()['a'], 2 * 11) << "twice what the others have";
  for (char name = 'b'; name < 'm'; ++name) office.finish(name);
  office.step();
  EXPECT_EQ(office.step(), (Tokens{{'a', 32}})) << "a small request may come again soon, and must wait for a step";
  for (int i = 0; i < 64; ++i) office.step();
  EXPECT_EQ(office.step(), (Tokens{{'a', 64}})) << "and the whole batch again";
}

TEST(Fairness, WhereTheFloorIsTheWholeStepALongPromptGetsAllThatIsLeft) {
  Office office({.max_num_seqs = 8, .max_num_batched_tokens = 500, .min_heavy_tokens = 500, .max_light_prompt = 100});
  for (const char name : {'b', 'c', 'd'}) office.submit(name, 1);
  office.step();
  office.submit('a', 1, 1000);
  EXPECT_EQ(office.step()['a'], 500 - 3);
  EXPECT_EQ(office.step()['a'], 500 - 3);
}

TEST(Fairness, ALongPromptGetsABoundedShareOfAStepWhileOthersRun) {
  Office office({.max_num_seqs = 8, .min_heavy_tokens = 32, .max_light_prompt = 100});
  office.submit('b', 1);
  office.step();
  office.submit('a', 1, 1000);
  EXPECT_EQ(office.step(), (Tokens{{'a', 32}, {'b', 1}}));
  office.finish('b');
  EXPECT_EQ(office.step(), (Tokens{{'a', 8 * 32}}));
}

TEST(Fairness, AWaitingRequestGetsTheSeatOfOneOfMany) {
  // One request with n 16,384 once held everyone for 29 s.
  Office office({.max_num_seqs = 16});
  office.submit('a', 500);
  office.step();
  EXPECT_EQ(office.running('a'), 16);
  office.submit('b', 1);
  office.submit('c', 1);
  const Tokens tokens = office.step();
  EXPECT_EQ(tokens.count('b') + tokens.count('c'), 2u);
  EXPECT_EQ(office.running('a'), 14);
  EXPECT_EQ(office.scheduler().num_preemptions(), 2);
  for (char name = 'd'; name < 'z'; ++name) office.submit(name, 1);
  office.step();
  EXPECT_EQ(office.running('a'), 2) << "an eighth of the seats stays with the many";
}

TEST(Fairness, AWaitingRequestGetsThePagesOfOneOfMany) {
  Office office({.max_num_seqs = 16, .max_light_prompt = 100}, 33);
  office.submit('a', 16, 17);  // two pages each: all of them
  for (int i = 0; i < 40; ++i) office.step();
  const int64_t before = office.running('a');
  office.submit('b', 1, 40);
  EXPECT_EQ(office.step().count('b'), 1u);
  EXPECT_LT(office.running('a'), before);
}

TEST(Fairness, TwoThatAreManyShareTheSeats) {
  Office office({.max_num_seqs = 16});
  office.submit('a', 500);
  office.step();
  office.submit('b', 500);
  for (int i = 0; i < 40; ++i) office.step();
  EXPECT_EQ(office.running('a') + office.running('b'), 16);
  EXPECT_LE(office.running('a'), 4 * office.running('b') + 2);
  const int64_t preemptions = office.scheduler().num_preemptions();
  EXPECT_LE(preemptions, 8);
  for (int i = 0; i < 40; ++i) office.step();
  EXPECT_EQ(office.scheduler().num_preemptions(), preemptions) << "then nobody is moved any more";
  for (int i = 0; i < 200; ++i) {
    office.finish(i % 3 == 0 ? 'b' : 'a');
    office.step();
  }
  EXPECT_EQ(office.running('a'), 8);
  EXPECT_EQ(office.running('b'), 8);
  EXPECT_EQ(office.scheduler().num_preemptions(), preemptions) << "seats that fall free are handed on in turn";
}

TEST(Fairness, ManySequencesTakeTurnsInTheQueue) {
  Office office({.max_num_seqs = 1});
  office.submit('a', 3);
  office.submit('b', 2);
  std::string order;
  for (int i = 0; i < 5; ++i) {
    const Tokens tokens = office.step();
    order += tokens.begin()->first;
    office.finish(order.back());
  }
  EXPECT_EQ(order, "ababa");
}

TEST(Fairness, AStreamOfSmallRequestsOvertakesALargeOneOnlySoOften) {
  Office office({.max_num_seqs = 1});
  office.submit('x', 1);
  office.step();
  office.submit('a', 4);
  int64_t overtakes = 0;
  while (office.running('a') == 0 && overtakes < 100) {
    office.submit('x', 1);
    office.finish('x');
    office.step();
    overtakes += office.running('x');
  }
  EXPECT_EQ(overtakes, Scheduler::kMaxOvertakes);
}

TEST(Fairness, CallersShareTheQueueTheSeatsAndTheStep) {
  Office office({.max_num_seqs = 32, .min_heavy_tokens = 16});
  for (int i = 0; i < 100; ++i) office.submit('a', 1, 4, "ada");
  office.step();
  EXPECT_EQ(office.running('a'), 32);
  office.submit('b', 1, 4, "bob");
  EXPECT_EQ(office.step().count('b'), 1u) << "before Ada's 68 that wait";
  const Tokens tokens = office.step();
  EXPECT_EQ(tokens.at('b'), 1);
  EXPECT_LE(tokens.at('a'), 2 * 16 / Scheduler::kSampledCost);
  for (int i = 0; i < 100; ++i) office.submit('b', 1, 4, "bob");
  for (int i = 0; i < 60; ++i) office.step();
  EXPECT_EQ(office.running('a'), 16);
  EXPECT_EQ(office.running('b'), 16);
}

TEST(Fairness, APriorityIsStrongerThanAShare) {
  Office office({.max_num_seqs = 4, .policy = Policy::kPriority});
  office.submit('a', 100, 4, "", 0);
  office.step();
  office.submit('b', 1, 4, "", 5);
  office.step();
  EXPECT_EQ(office.running('b'), 0);
  office.submit('c', 1, 4, "", -1);
  office.step();
  EXPECT_EQ(office.running('c'), 1);
}

}  // namespace
}  // namespace quire::engine
