// SPDX-License-Identifier: Apache-2.0
// Scheduler and KV manager under random traffic, over a model that only remembers what was written where: every
// position and state that a step reads must be the sequence's own text, in every cache group.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "base/test_sanitized.h"

namespace quire::engine {
namespace {

using kv::BlockId;
using kv::CacheGroup;
using kv::CacheKind;

// What a text of n tokens is called: equal for equal salts and tokens alone (64 bits are enough for a test).
using TextId = uint64_t;

TextId extended(TextId text, int32_t token) {
  return (text ^ static_cast<TextId>(token + 1)) * 0x9E3779B97F4A7C15ull + (text >> 29);
}

struct Scenario {
  const char* name;
  std::vector<CacheGroup> groups;
};

std::ostream& operator<<(std::ostream& out, const Scenario& scenario) {
  return out << scenario.name;
}

std::vector<Scenario> scenarios() {
  const auto full = [](int64_t block) { return CacheGroup{CacheKind::kFull, block, 0}; };
  const auto window = [](int64_t block, int64_t size) { return CacheGroup{CacheKind::kWindow, block, size}; };
  const auto state = [](int64_t interval) { return CacheGroup{CacheKind::kState, interval, 0}; };
  return {{"full", {full(4)}},
          {"window", {window(4, 7)}},
          {"window of one", {window(3, 1)}},
          {"full and windows", {window(4, 9), full(4), window(4, 9), window(4, 2)}},
          {"two widths", {full(2), window(6, 11), full(4)}},
          {"hybrid", {state(6), state(6), full(6), state(6)}},
          {"hybrid of small pages", {full(2), state(2)}},
          {"hybrid with windows of another width", {full(8), window(4, 10), state(8)}},
          {"windows and states", {window(4, 6), state(4)}},
          {"states", {state(5), state(5)}},
          {"hybrid with hits inside pages", {full(12), state(2)}},
          {"hybrid with hits inside pages of two widths", {state(3), full(6), window(12, 9), state(3)}}};
}

struct Setting {
  Scenario scenario;
  uint32_t seed = 0;
  int32_t pages = 0;
  int64_t step_tokens = 0;
  bool caching = true;
  kv::PrefixHasher hasher = kv::PrefixHasher(3, 4);
  bool ahead = false;  // a step is made before the tokens of the one before it are known, as engine_device.cc does
};

class World {
 public:
  explicit World(const Setting& setting)
      : ahead_(setting.ahead),
        random_(setting.seed),
        kv_({.num_blocks = setting.pages,
             .enable_prefix_caching = setting.caching,
             .groups = setting.scenario.groups,
             .max_step_tokens = setting.step_tokens,
             .checkpoint_interval = setting.seed % 3 == 2 ? 6 : -static_cast<int64_t>(setting.seed % 3)},
            setting.hasher),
        scheduler_({.max_num_seqs = 6,
                    .max_num_batched_tokens = setting.step_tokens,
                    .max_model_len = kMaxLen,
                    .long_prefill_token_threshold = setting.seed % 3 == 0 ? 5 : 0,
                    .chunked_prefill = setting.seed % 5 != 0,
                    .policy = setting.seed % 4 == 0 ? Policy::kPriority : Policy::kFcfs,
                    .min_heavy_tokens = setting.seed % 2 == 0 ? 1 : 6,
                    .max_light_prompt = setting.seed % 7 == 0 ? 0 : 12},
                   kv_, [this](PendingRequest& pending) { return make(pending); }) {
    for (const CacheGroup& group : setting.scenario.groups) block_sizes_.push_back(group.block_size);
    pages_.resize(static_cast<size_t>(setting.pages));
    kv_.set_copy([this](BlockId from, BlockId to, size_t group) {
      ASSERT_EQ(pages_[static_cast<size_t>(from)].group, group);
      pages_[static_cast<size_t>(to)] = pages_[static_cast<size_t>(from)];
      ++copies_;
    });
  }
  ~World() {
    for (PendingRequest& pending : pending_) scheduler_.remove(&pending);
    while (!sequences_.empty()) finish(sequences_.begin()->second.get());
  }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      if (draw(3) == 0 && sequences_.size() < 12) arrive();
      if (draw(40) == 0 && !sequences_.empty()) finish(any());  // the client went away
      if (draw(60) == 0 && !pending_.empty()) drop_pending();
      if (draw(50) == 0) (void)kv_.reset_prefix_cache();
      ahead_ ? step_ahead() : step();
      check_pages();
    }
    // The rest comes to its end: nobody starves.
    for (int i = 0; scheduler_.num_waiting() + scheduler_.num_running() > 0; ++i) {
      if (::testing::Test::HasFatalFailure()) return;
      ASSERT_LT(i, 20000) << "no progress";
      ahead_ ? step_ahead() : step();
      check_pages();
    }
    ASSERT_EQ(kv_.pool().num_free(), kv_.pool().num_usable()) << "pages leaked";
    ASSERT_TRUE(kv_.reset_prefix_cache());
    ASSERT_EQ(kv_.pool().tree().num_nodes(), 0) << "nodes leaked";
  }

  static constexpr int64_t kMaxLen = 60;
  int64_t hit_tokens() const { return kv_.prefix_stats().hit_tokens; }
  int64_t evictions() const { return kv_.pool().num_evictions(); }
  int64_t preemptions() const { return scheduler_.num_preemptions(); }
  int64_t left_behind() const { return left_behind_; }
  int64_t checkpoints_read() const { return checkpoints_read_; }
  int64_t copies() const { return copies_; }

 private:
  struct Page {
    size_t group = 0;
    std::vector<TextId> texts;  // of attention: the text that ends with each position
    TextId state = 0;           // of states: the text it has seen
  };

  int draw(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  Sequence* any() { return std::next(sequences_.begin(), draw(static_cast<int>(sequences_.size())))->second.get(); }

  void arrive() {
    Request request;
    if (draw(5) == 0) request.cache_salt = "salt";
    const int length = 1 + draw(draw(3) == 0 ? 45 : 15);
    const int branch = draw(length + 1);  // a common beginning, then one of two continuations
    const int kind = draw(2);
    for (int i = 0; i < length; ++i) request.prompt.push_back(i < branch ? i % 7 : 10 + kind);
    request.params.max_tokens = 1 + draw(14);
    if (draw(8) == 0) request.params.prompt_logprobs = 0;
    request.priority = draw(3);
    const int64_t longest = std::min<int64_t>(kMaxLen, length + *request.params.max_tokens);
    if (kv_.pages_for(longest) > kv_.pool().num_usable()) return;  // as Engine::check refuses it
    const char* const callers[] = {"", "ada", "bob"};
    request.params.n = draw(3) == 0 ? 1 + draw(6) : 1;
    PendingRequest& pending = pending_.emplace_back();
    pending.submission = std::make_shared<Submission>(request.params.n, callers[draw(3)]);
    pending.arrival = next_id_;
    next_id_ += static_cast<RequestId>(request.params.n);
    pending.request = std::make_shared<const Request>(std::move(request));
    scheduler_.add(&pending);
  }

  Sequence* make(PendingRequest& pending) {
    const RequestId id = pending.arrival + static_cast<RequestId>(pending.next_child++);
    auto sequence = std::make_unique<Sequence>(id, 0, *pending.request, 0, id, pending.submission);
    return sequences_.emplace(id, std::move(sequence)).first->second.get();
  }

  // The client of a request went away before all of its sequences were made.
  void drop_pending() {
    const auto it = std::next(pending_.begin(), draw(static_cast<int>(pending_.size())));
    scheduler_.remove(&*it);
    pending_.erase(it);
  }

  void finish(Sequence* sequence) {
    for (Share& share : under_way_) {
      if (share.sequence == sequence) share.sequence = nullptr;
    }
    futures_.erase(sequence->id);
    scheduler_.remove(sequence);
    sequences_.erase(sequence->id);
  }

  // The texts of the sequence's beginnings: texts[n] has n tokens.
  std::vector<TextId> texts_of(const Sequence& sequence) {
    std::vector<TextId> texts = {sequence.table.salt().empty() ? 17u : 99u};
    for (const int32_t token : sequence.tokens) texts.push_back(extended(texts.back(), token));
    for (const int32_t token : futures_[sequence.id]) texts.push_back(extended(texts.back(), token));
    return texts;
  }

  int32_t any_token() { return draw(4) == 0 ? 11 : 10; }

  // What a device does with the step, and in which order.
  void run_groups(const std::vector<Share>& shares) {
    for (const Share& share : shares) {
      ASSERT_LE(held(*share.sequence, true), kv_.pages_for(share.sequence->num_to_compute())) << "in a step";
    }
    for (size_t g = 0; g < block_sizes_.size(); ++g) {
      if (kv_.groups()[g].kind == CacheKind::kState) {
        run_states(shares, g);
      } else {
        write(shares, g);
        for (const Share& share : shares) read(share, g);
      }
    }
  }

  void step() {
    const std::vector<Share> shares = scheduler_.schedule();
    run_groups(shares);
    for (const Share& share : shares) {
      Sequence& sequence = *share.sequence;
      sequence.num_computed += share.count;
      kv_.commit(sequence.table, sequence.tokens, sequence.num_computed);
      if (sequence.num_computed < sequence.num_tokens()) continue;
      take_token(sequence, any_token());
    }
  }

  void take_token(Sequence& sequence, int32_t token) {
    sequence.tokens.push_back(token);
    scheduler_.note_token(sequence);
    const bool stops = draw(20) == 0 || sequence.num_output() >= *sequence.params.max_tokens;
    if (stops || sequence.num_tokens() >= kMaxLen) finish(&sequence);
  }

  // The next step is queued; then the one before it is read; then the next one is committed.
  void step_ahead() {
    std::vector<Share> next = scheduler_.schedule();
    ++number_;
    run_groups(next);
    std::vector<RequestId> sampled;
    for (const Share& share : next) {
      Sequence& sequence = *share.sequence;
      sequence.num_computed += share.count;
      if (sequence.num_computed < sequence.num_to_compute()) continue;
      sampled.push_back(sequence.id);
      futures_[sequence.id].push_back(any_token());
      sequence.row_in_flight = static_cast<int32_t>(sampled.size());
      sequence.step_in_flight = number_;
      const int64_t length = sequence.num_computed + 1;
      sequence.ends_in_flight = length >= kMaxLen || length - sequence.prompt_size >= *sequence.params.max_tokens;
    }
    std::swap(under_way_, next);  // so that finish() finds it
    for (const RequestId id : std::exchange(sampled_, sampled)) {
      if (!sequences_.contains(id)) continue;
      Sequence& sequence = *sequences_.at(id);
      if (sequence.step_in_flight != number_) {
        sequence.row_in_flight = -1;
        sequence.ends_in_flight = false;
      }
      const int32_t token = futures_[id].front();
      futures_[id].erase(futures_[id].begin());
      take_token(sequence, token);
    }
    for (const Share& share : under_way_) {
      if (share.sequence == nullptr) continue;
      kv_.commit(share.sequence->table, share.sequence->tokens, share.sequence->num_computed);
    }
  }

  void write(const std::vector<Share>& shares, size_t g) {
    std::set<int64_t> written;
    for (const Share& share : shares) {
      const Sequence& sequence = *share.sequence;
      const std::vector<TextId> texts = texts_of(sequence);
      std::vector<int64_t> slots(static_cast<size_t>(share.count));
      kv_.slot_mapping(sequence.table, g, sequence.num_computed, slots);
      for (size_t i = 0; i < slots.size(); ++i) {
        ASSERT_TRUE(written.insert(slots[i]).second) << "two tokens in one slot";
        const auto block = static_cast<BlockId>(slots[i] / block_sizes_[g]);
        ASSERT_NE(block, kv::kNullBlock);
        ASSERT_FALSE(kv_.pool().is_published(block)) << "a published page is written";
        Page& page = pages_[static_cast<size_t>(block)];
        if (page.group != g || page.texts.empty()) page = {g, {}, 0};
        page.texts.resize(static_cast<size_t>(block_sizes_[g]));
        page.texts[static_cast<size_t>(slots[i] % block_sizes_[g])] =
            texts[static_cast<size_t>(sequence.num_computed) + i + 1];
      }
    }
  }

  void read(const Share& share, size_t g) {
    const Sequence& sequence = *share.sequence;
    const std::vector<TextId> texts = texts_of(sequence);
    const CacheGroup& group = kv_.groups()[g];
    const int64_t begin = sequence.num_computed;
    const int64_t first = group.kind == CacheKind::kWindow ? std::max<int64_t>(0, begin - group.window + 1) : 0;
    const auto blocks = sequence.table.blocks(g);
    for (int64_t p = first; p < begin + share.count; ++p) {
      ASSERT_LT(p / group.block_size, static_cast<int64_t>(blocks.size()));
      const BlockId block = blocks[static_cast<size_t>(p / group.block_size)];
      ASSERT_NE(block, kv::kNullBlock) << "position " << p << " of group " << g << " has no page";
      const Page& page = pages_[static_cast<size_t>(block)];
      ASSERT_EQ(page.group, g);
      ASSERT_EQ(page.texts[static_cast<size_t>(p % group.block_size)], texts[static_cast<size_t>(p + 1)])
          << "position " << p << " of group " << g << " is of another text";
    }
    for (int64_t page = 0; page < first / group.block_size; ++page) {
      ASSERT_EQ(blocks[static_cast<size_t>(page)], kv::kNullBlock) << "a window kept page " << page;
      ++left_behind_;
    }
  }

  void run_states(const std::vector<Share>& shares, size_t g) {
    std::map<BlockId, const Sequence*> destinations;
    std::map<BlockId, TextId> written;
    for (const Share& share : shares) {
      const Sequence& sequence = *share.sequence;
      const std::span<const int64_t> ends = sequence.table.state_ends();
      ASSERT_EQ(ends.back(), sequence.num_computed + share.count);
      const std::vector<TextId> texts = texts_of(sequence);
      for (size_t i = 0; i < ends.size(); ++i) {
        const BlockId block = sequence.table.state_after(g, i);
        ASSERT_GT(block, kv::kNullBlock);
        ASSERT_GT(ends[i], i == 0 ? sequence.num_computed : ends[i - 1]);
        ASSERT_TRUE(i == 0 || block != sequence.table.state_source(g)) << "a state is overwritten before it is read";
        ASSERT_FALSE(kv_.pool().is_published(block)) << "a checkpoint is written";
        ASSERT_TRUE(destinations.emplace(block, &sequence).second) << "two states in one page";
        written[block] = texts[static_cast<size_t>(ends[i])];
      }
    }
    for (const Share& share : shares) {  // reads: sequences run in any order
      const Sequence& sequence = *share.sequence;
      const BlockId source = sequence.table.state_source(g);
      ASSERT_EQ(source == -1, sequence.num_computed == 0);
      if (source == -1) continue;
      const Page& page = pages_[static_cast<size_t>(source)];
      ASSERT_EQ(page.group, g);
      ASSERT_EQ(page.state, texts_of(sequence)[static_cast<size_t>(sequence.num_computed)]) << "another text's state";
      const auto writer = destinations.find(source);
      ASSERT_TRUE(writer == destinations.end() || writer->second == &sequence) << "a state is read and overwritten";
      checkpoints_read_ += source != sequence.table.state_destination(g);
    }
    for (const auto& [block, text] : written) pages_[static_cast<size_t>(block)] = {g, {}, text};
  }

  // The pages that a sequence holds, in the middle of a step or between two; `owners` counts for whom.
  int64_t held(const Sequence& sequence, bool in_step, std::map<BlockId, int>* owners = nullptr) {
    std::set<BlockId> pages;
    for (size_t g = 0; g < block_sizes_.size(); ++g) {
      const auto blocks = sequence.table.blocks(g);
      pages.insert(blocks.begin(), blocks.end());
      if (kv_.groups()[g].kind != CacheKind::kState) continue;
      if (sequence.num_computed > 0) pages.insert(sequence.table.state_source(g));
      if (in_step) pages.insert(sequence.table.state_destination(g));
    }
    pages.erase(kv::kNullBlock);
    for (const BlockId page : pages) {
      if (owners != nullptr) ++(*owners)[page];
    }
    return static_cast<int64_t>(pages.size());
  }

  // Counts are the tables' references, and shared pages are published ones.
  void check_pages() {
    std::map<BlockId, int> owners;
    for (const auto& [id, sequence] : sequences_) {
      ASSERT_LE(held(*sequence, false, &owners), kv_.pages_for(sequence->num_to_compute()));
    }
    for (BlockId id = 1; id < kv_.pool().num_blocks(); ++id) {
      const int owned = owners.contains(id) ? owners[id] : 0;
      ASSERT_EQ(kv_.pool().ref_count(id), owned) << "page " << id;
      ASSERT_TRUE(owned <= 1 || kv_.pool().is_published(id)) << "page " << id << " is shared, but not published";
    }
    ASSERT_EQ(kv_.pool().num_free() + static_cast<int>(owners.size()), kv_.pool().num_usable());
  }

  bool ahead_;
  std::mt19937 random_;
  kv::KvManager kv_;
  Scheduler scheduler_;
  std::vector<int64_t> block_sizes_;
  std::vector<Page> pages_;
  std::map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::list<PendingRequest> pending_;  // those whose sequences are all made stay until the end
  RequestId next_id_ = 1;
  // Of steps ahead: the step that is queued, the sequences that it samples, and tokens that the host does not know yet.
  std::vector<Share> under_way_;
  std::vector<RequestId> sampled_;
  std::map<RequestId, std::vector<int32_t>> futures_;
  uint64_t number_ = 0;
  int64_t left_behind_ = 0;
  int64_t checkpoints_read_ = 0;
  int64_t copies_ = 0;
};

class SchedulerTraffic : public ::testing::TestWithParam<Scenario> {};

void run_traffic(const Scenario& scenario, bool ahead) {
  int64_t hits = 0, evictions = 0, preemptions = 0, left_behind = 0, checkpoints = 0, copies = 0;
  // The first 12 seeds have every kind of setting below.
  for (uint32_t seed = 0; seed < (kSanitized ? 12u : 25u); ++seed) {
    Setting setting{.scenario = scenario, .seed = seed, .ahead = ahead};
    setting.step_tokens = seed % 7 == 0 ? 1 + seed % 3 : 4 + seed * 5 % 37;
    setting.caching = seed % 6 != 5;
    // From so few that one sequence runs at a time, or is refused, to plenty.
    const int64_t one = kv::max_pages(scenario.groups, World::kMaxLen, {setting.step_tokens, setting.caching});
    setting.pages = static_cast<int32_t>(1 + one / 2 + one * (seed % 10) / 2);
    if (seed % 4 == 1) setting.hasher = kv::PrefixHasher::colliding(static_cast<int>(seed % 3));
    World world(setting);
    world.run(250);
    if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed;
    hits += world.hit_tokens();
    evictions += world.evictions();
    preemptions += world.preemptions();
    left_behind += world.left_behind();
    checkpoints += world.checkpoints_read();
    copies += world.copies();
  }
  // The traffic does reach the interesting places.
  const auto has = [&](CacheKind kind) {
    return std::ranges::any_of(scenario.groups, [&](const CacheGroup& g) { return g.kind == kind; });
  };
  EXPECT_GT(hits, 500);
  EXPECT_GT(evictions, 300);
  EXPECT_GT(preemptions, has(CacheKind::kFull) ? 10 : -1);
  EXPECT_GT(left_behind, has(CacheKind::kWindow) ? 1000 : -1);
  EXPECT_GT(checkpoints, has(CacheKind::kState) ? 300 : -1);
  EXPECT_GT(copies, std::string_view(scenario.name).find("inside") != std::string_view::npos ? 50 : -1);
}

TEST_P(SchedulerTraffic, EveryStepReadsItsOwnText) {
  run_traffic(GetParam(), false);
}

TEST_P(SchedulerTraffic, EveryStepReadsItsOwnTextWhenItIsMadeAhead) {
  run_traffic(GetParam(), true);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SchedulerTraffic, ::testing::ValuesIn(scenarios()), [](const auto& test) {
  std::string name = test.param.name;
  std::ranges::replace(name, ' ', '_');
  return name;
});

// Steps until the sequence's prompt is computed; the tokens of each.
std::vector<int64_t> prompt_steps(Scheduler& scheduler, kv::KvManager& kv, Sequence& sequence) {
  std::vector<int64_t> counts;
  scheduler.add(&sequence);
  while (sequence.num_computed < sequence.num_tokens()) {
    const std::vector<Share>& shares = scheduler.schedule();
    EXPECT_EQ(shares.size(), 1u);
    counts.push_back(shares.front().count);
    sequence.num_computed += shares.front().count;
    kv.commit(sequence.table, sequence.tokens, sequence.num_computed);
  }
  scheduler.remove(&sequence);
  return counts;
}

TEST(Scheduler, APromptIsNotCutWhereItsStateIsKept) {
  const auto steps = [](const std::vector<CacheGroup>& groups, int64_t budget, bool chunked, bool logprobs) {
    kv::KvManager kv({.num_blocks = 40, .groups = groups, .max_step_tokens = budget});
    Scheduler scheduler({.max_num_batched_tokens = budget, .chunked_prefill = chunked}, kv);
    Request request;
    request.prompt.assign(23, 5);
    if (logprobs) request.params.prompt_logprobs = 0;
    Sequence sequence(1, 0, request, 0, 0), twin(2, 0, request, 0, 1);
    std::vector<int64_t> counts = prompt_steps(scheduler, kv, sequence);
    const std::vector<int64_t> second = prompt_steps(scheduler, kv, twin);
    counts.insert(counts.end(), second.begin(), second.end());
    return counts;
  };
  const CacheGroup full{CacheKind::kFull, 6, 0}, state{CacheKind::kState, 6, 0};
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(steps({full}, 100, true, false), (Counts{23, 5}));
  EXPECT_EQ(steps({full, state}, 100, true, false), (Counts{23, 5}));
  EXPECT_EQ(steps({full, state}, 100, false, false), (Counts{23, 5}));
  EXPECT_EQ(steps({full, state}, 11, true, false), (Counts{11, 11, 1, 5}));
  EXPECT_EQ(steps({full, state}, 100, true, true), (Counts{23, 23}));  // every row of the prompt is wanted
}

// A preempted sequence whose prompt's logprobs were all sent, and the siblings of the one that sends them, computed the
// whole prompt again.
TEST(Scheduler, PagesAreReusedWhereNoLogprobsOfThePromptAreOwed) {
  kv::KvManager kv({.num_blocks = 40, .groups = {{CacheKind::kFull, 6, 0}}, .max_step_tokens = 100});
  Scheduler scheduler({.max_num_batched_tokens = 100}, kv);
  Request request;
  request.prompt.assign(23, 5);
  request.params.prompt_logprobs = 0;
  Sequence first(1, 0, request, 0, 0), owing(2, 0, request, 0, 1), sent(3, 0, request, 0, 2),
      sibling(2, 1, request, 0, 3);
  owing.prompt_logprobs_sent = 12;
  sent.prompt_logprobs_sent = 22;
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(prompt_steps(scheduler, kv, first), (Counts{23}));
  EXPECT_EQ(prompt_steps(scheduler, kv, owing), (Counts{23}));
  EXPECT_EQ(prompt_steps(scheduler, kv, sent), (Counts{5}));
  EXPECT_EQ(prompt_steps(scheduler, kv, sibling), (Counts{5}));
}

TEST(Scheduler, APromptWaitsUntilAllOfItFitsInEveryGroup) {
  // A prompt needs 4 + 4 pages of attention, or 4 and two for its state; after its first chunk the first one holds 2 +
  // 2, or 2 and one, and what is left is one too few for the second.
  for (const auto& [kind, pages] : {std::pair(CacheKind::kFull, 11), {CacheKind::kState, 8}}) {
    kv::KvManager kv(
        {.num_blocks = pages + 1, .groups = {{CacheKind::kFull, 4, 0}, {kind, 4, 0}}, .max_step_tokens = 20});
    Scheduler scheduler({.max_num_batched_tokens = 20, .long_prefill_token_threshold = 8}, kv);
    Request request;
    request.prompt.assign(16, 3);
    Sequence first(1, 0, request, 0, 0);
    request.prompt.assign(16, 4);
    Sequence second(2, 0, request, 0, 1);
    scheduler.add(&first);
    scheduler.add(&second);
    while (first.num_computed < 16) {
      for (const Share& share : scheduler.schedule()) {
        ASSERT_EQ(share.sequence, &first) << "admitted with room for a part";
        first.num_computed += share.count;
        kv.commit(first.table, first.tokens, first.num_computed);
      }
    }
    scheduler.remove(&first);
    ASSERT_EQ(scheduler.schedule().front().sequence, &second);
    scheduler.remove(&second);
  }
}

}  // namespace
}  // namespace quire::engine
