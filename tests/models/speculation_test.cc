// SPDX-License-Identifier: Apache-2.0
// Speculation changes no bit: under random traffic each request gets the tokens, logprobs and end that it gets without
// drafts, whatever the drafts are: the truth, nonsense, both in turn, or prompt lookup. Compared by memcmp.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "models/fake_constraint.h"
#include "models/harness.h"
#include "models/visits.h"

namespace quire::testing {
namespace {

enum class Kind { kLookup, kSuffix, kTruth, kNonsense, kWavering };

std::string config_of(int64_t drafts, Kind kind = Kind::kLookup) {
  if (kind == Kind::kSuffix) {
    return R"({"method": "suffix", "suffix_decoding_max_spec_factor": 2, "num_speculative_tokens": )" +
           std::to_string(drafts) + "}";
  }
  return R"({"method": "ngram", "num_speculative_tokens": )" + std::to_string(drafts) +
         R"(, "prompt_lookup_min": 1, "prompt_lookup_max": 3})";
}

// Proposes what the sequence will become, nonsense, or the truth with some errors.
class Scripted final : public engine::Proposer {
 public:
  Scripted(Kind kind, int64_t prompt_size, std::vector<int32_t> truth)
      : kind_(kind), prompt_size_(static_cast<size_t>(prompt_size)), truth_(std::move(truth)) {}
  void propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>& drafts) override {
    for (size_t i = tokens.size() - prompt_size_; std::ssize(drafts) < most; ++i) {
      const bool lies = kind_ == Kind::kNonsense || (kind_ == Kind::kWavering && rng_() % 4 == 0);
      if (!lies && i >= truth_.size()) return;
      drafts.push_back(lies ? static_cast<int32_t>(rng_() % 500) : truth_[i]);
    }
  }

 private:
  const Kind kind_;
  const size_t prompt_size_;
  const std::vector<int32_t> truth_;
  std::mt19937 rng_{3};
};

// Runs the visits with scripted drafts; `truth` is what the requests get without them.
AllSeen run_scripted(engine::Engine& engine, const std::vector<Visit>& visits, const AllSeen& truth, Kind kind) {
  std::map<engine::RequestId, size_t> who;
  if (kind != Kind::kLookup && kind != Kind::kSuffix) {
    engine.set_proposer([&who, &truth, kind](const engine::Sequence& sequence) {
      return std::make_unique<Scripted>(kind, sequence.prompt_size,
                                        truth.at({who.at(sequence.id), sequence.child}).tokens);
    });
  }
  return run_visits(engine, visits, [&who](engine::RequestId id, size_t visit) { who[id] = visit; });
}

std::vector<Visit> staying_visits(std::mt19937& rng, int count, bool long_answers) {
  std::vector<Visit> visits = random_stays(rng, count);
  for (Visit& visit : visits) {
    if (long_answers && rng() % 5 == 0) visit.request.params.max_tokens.reset();  // up to the longest length
  }
  return visits;
}

class Speculation : public ::testing::TestWithParam<std::string> {
 protected:
  // Several rounds with other numbers of drafts, page sizes, chunks and numbers of pages.
  void expect_same_answers(llm::Options options, int visits_count, int64_t first, int64_t last) {
    std::mt19937 rng(17);
    options.max_model_len = "112";
    options.seed = 4;  // of the requests without one
    const std::vector<Visit> visits = staying_visits(rng, visits_count, options.device != "emulator");
    AllSeen truth;
    {
      const auto engine = make_engine(options);
      ASSERT_NE(engine, nullptr);
      truth = run_visits(*engine, visits);
    }
    preemptions_ = 0;
    for (int64_t drafts = first; drafts <= last; ++drafts) {
      const bool crowded = drafts % 2 == 0;
      options.speculative_config = config_of(drafts);
      options.block_size = drafts % 3 == 0 ? 8 : 16;
      options.max_num_batched_tokens = crowded ? 40 : 512;
      options.max_num_seqs = crowded ? 8 : 16;
      options.enable_prefix_caching = drafts % 4 != 3;
      options.scheduling_policy = drafts % 3 == 1 ? "priority" : "fcfs";
      options.num_gpu_blocks_override = crowded ? 8 : 2000;
      while (!fits(options)) options.num_gpu_blocks_override = *options.num_gpu_blocks_override + 2;
      for (const Kind kind : {Kind::kLookup, Kind::kSuffix, Kind::kTruth, Kind::kNonsense, Kind::kWavering}) {
        options.speculative_config = config_of(drafts, kind);
        const auto engine = make_engine(options);
        ASSERT_NE(engine, nullptr);
        const std::string what =
            std::to_string(drafts) + " drafts, proposer " + std::to_string(static_cast<int>(kind));
        expect_equal(truth, run_scripted(*engine, visits, truth, kind), what);
        check_counts(engine->stats().speculation, kind, crowded, what);
        preemptions_ += engine->stats().preemptions;
      }
    }
  }

  int64_t preemptions_ = 0;

  static void check_counts(const engine::SpeculationStats& stats, Kind kind, bool crowded, const std::string& what) {
    if (kind != Kind::kLookup && kind != Kind::kSuffix && !crowded) {
      EXPECT_GT(stats.draft_tokens, 0) << what;
    }
    if (kind == Kind::kTruth) {
      EXPECT_EQ(stats.accepted_tokens, stats.draft_tokens) << what;
    } else if (kind == Kind::kNonsense) {
      EXPECT_LE(stats.accepted_tokens * 10, stats.draft_tokens) << what;
    }
  }
};

TEST_P(Speculation, AnswersAreThoseWithoutDrafts) {
  if (test_device() != "cpu") GTEST_SKIP() << "the test below runs on devices that sample";
  expect_same_answers(dummy_options(GetParam()), 12, 1, 8);
  if (GetParam() == "llama") {
    EXPECT_GT(preemptions_, 0) << "there were pages for all";
  }
}

TEST_P(Speculation, AnswersAreThoseWithoutDraftsOnADeviceThatSamples) {
  llm::Options options = dummy_options(GetParam());
  if (options.device == "cpu") options.device = "emulator";
  const std::string& family = GetParam();
  if (test_device() == "cpu" && family != "llama" && family != "gemma3" && family != "deepseek-v3" &&
      family != "qwen3.5" && family != "lfm2") {
    GTEST_SKIP() << "the emulator is slow";
  }
  if (family == "llama") options.dtype = "bfloat16";  // uses the matrix tile
  // With 4 drafts pages are few, so that there would hardly be any for states.
  const int64_t drafts = family == "qwen3.5" || family == "lfm2" ? 5 : 4;
  expect_same_answers(options, family == "llama" ? 6 : 4, drafts, drafts);
}

INSTANTIATE_TEST_SUITE_P(Families, Speculation,
                         ::testing::Values("llama", "gemma3", "mistral-window", "deepseek-v3", "qwen3-moe", "gpt-oss",
                                           "qwen3-next", "qwen3.5", "granite-hybrid", "lfm2"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

llm::Options speculating(int64_t drafts) {
  llm::Options options = dummy_options("llama");
  options.speculative_config = config_of(drafts);
  return options;
}

// The logits of accepted rows have the bits of single steps, and no other row is seen.
TEST(SpeculationLogits, HaveTheBitsOfSingleSteps) {
  for (const char* device : {"cpu", "emulator"}) {
    llm::Options options = dummy_options("llama");
    options.device = device;
    std::vector<engine::Request> requests;
    for (int32_t i = 0; i < 4; ++i) requests.push_back(greedy_request({7, 8, 9, 7, 8, 9, i}, 30));
    requests[1].params.temperature = 1;
    requests[1].params.seed = 5;
    const auto plain = make_engine(options);
    ASSERT_NE(plain, nullptr);
    const std::vector<Trace> truth = run(*plain, requests);
    options.speculative_config = config_of(6);
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    size_t next = 0;
    engine->set_proposer([&](const engine::Sequence& sequence) {
      const size_t i = static_cast<size_t>(sequence.tokens[6]);
      return std::make_unique<Scripted>(next++ % 2 == 0 ? Kind::kWavering : Kind::kTruth, sequence.prompt_size,
                                        truth[i].tokens);
    });
    const std::vector<Trace> traces = run(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(difference(truth[i], traces[i]), "") << device << " " << i;
      EXPECT_EQ(truth[i].logits.size(), traces[i].logits.size()) << device << " " << i;
    }
    EXPECT_GT(engine->stats().speculation.accepted_tokens, 0);
  }
}

// The counts of a proposer that is always right: 21 tokens are the prefill's and four times 1 + 4.
TEST(SpeculationCounts, AreExact) {
  const engine::Request request = greedy_request({1, 2, 3, 4, 5}, 21);
  const auto plain = make_engine(dummy_options("llama"));
  ASSERT_NE(plain, nullptr);
  const std::vector<int32_t> truth = run(*plain, {request})[0].tokens;
  const auto engine = make_engine(speculating(4));
  ASSERT_NE(engine, nullptr);
  engine->set_proposer([&](const engine::Sequence& sequence) {
    return std::make_unique<Scripted>(Kind::kTruth, sequence.prompt_size, truth);
  });
  EXPECT_EQ(run(*engine, {request})[0].tokens, truth);
  const engine::EngineStats stats = engine->stats();
  EXPECT_EQ(stats.steps, 5);
  EXPECT_EQ(stats.speculation.drafts, 4);
  EXPECT_EQ(stats.speculation.draft_tokens, 16);
  EXPECT_EQ(stats.speculation.accepted_tokens, 16);
  EXPECT_EQ(stats.speculation.accepted_per_position, (std::vector<int64_t>{4, 4, 4, 4}));
}

// Drafts take only what running and waiting sequences leave of a step.
TEST(SpeculationBudget, DraftsGoFirst) {
  llm::Options options = speculating(8);
  options.max_num_batched_tokens = 8;
  options.max_num_seqs = 8;
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  engine->set_proposer(
      [](const engine::Sequence& s) { return std::make_unique<Scripted>(Kind::kNonsense, s.prompt_size, std::vector<int32_t>()); });
  std::vector<engine::Request> requests;
  for (int32_t i = 0; i < 8; ++i) requests.push_back(greedy_request({i}, 12));
  run(*engine, requests);
  EXPECT_EQ(engine->stats().speculation.draft_tokens, 0) << "eight sequences fill steps of eight tokens";
  EXPECT_EQ(engine->stats().steps, 12);
  run(*engine, {requests[0], requests[1]});
  EXPECT_GT(engine->stats().speculation.draft_tokens, 0);
}

// Drafts that are often right are worth it where a step's time hardly depends on its rows, and not in a batch whose time
// is that of its rows.
TEST(SpeculationBudget, FollowsTheCostOfRows) {
  std::vector<engine::Request> requests;
  for (int32_t i = 0; i < 4; ++i) requests.push_back(greedy_request({i, 5, 6}, 250));
  const auto plain = make_engine(dummy_options("llama"));
  ASSERT_NE(plain, nullptr);
  const std::vector<Trace> truth = run(*plain, requests);
  const auto drafts_at = [&](double step_seconds, double row_seconds) {
    const auto engine = make_engine(speculating(4));
    engine->set_clock([&engine, step_seconds, row_seconds] {
      const engine::EngineStats stats = engine->stats();
      return step_seconds * static_cast<double>(stats.steps) + row_seconds * static_cast<double>(stats.tokens_computed);
    });
    engine->set_proposer([&](const engine::Sequence& sequence) {
      return std::make_unique<Scripted>(Kind::kWavering, sequence.prompt_size,
                                        truth[static_cast<size_t>(sequence.tokens[0])].tokens);
    });
    const std::vector<Trace> traces = run(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(difference(truth[i], traces[i]), "") << i;
    return engine->stats().speculation.draft_tokens;
  };
  const int64_t cheap = drafts_at(1, 0.01), dear = drafts_at(0.01, 1);
  EXPECT_GT(cheap, 500);
  EXPECT_LT(2 * dear, cheap);
}

// A constraint that fails after an accepted draft ends the sequence as it does without drafts; after a rejected one it
// does nothing.
TEST(SpeculationConstraint, FailsWhereItFailsWithoutDrafts) {
  class Failing final : public engine::Constraint {
   public:
    Result<bool> fill_mask(std::span<uint32_t>) override {
      if (seen_ == 5) return exhausted("the mask took too long");
      return false;
    }
    Status accept(int32_t) override {
      ++seen_;
      return {};
    }
    void rollback(int64_t count) override { seen_ -= static_cast<int>(count); }

   private:
    int seen_ = 0;
  };
  class Source final : public engine::ConstraintSource {
   public:
    std::unique_ptr<engine::Constraint> make() const override { return std::make_unique<Failing>(); }
  };
  engine::Request request = greedy_request({1, 2, 3}, 12);
  const auto plain = make_engine(dummy_options("llama"));
  ASSERT_NE(plain, nullptr);
  const std::vector<int32_t> truth = run(*plain, {request})[0].tokens;
  request.constraint = std::make_shared<Source>();
  for (const char* device : {"cpu", "emulator"}) {
    for (const Kind kind : {Kind::kTruth, Kind::kNonsense}) {
      llm::Options options = speculating(3);
      options.device = device;
      const auto engine = make_engine(options);
      ASSERT_NE(engine, nullptr);
      engine->set_proposer([&](const engine::Sequence& sequence) {
        return std::make_unique<Scripted>(kind, sequence.prompt_size, truth);
      });
      ASSERT_TRUE(engine->add(request).ok());
      std::vector<int32_t> tokens;
      engine::FinishReason finish = engine::FinishReason::kNone;
      while (engine->has_work()) {
        for (const engine::Output& output : engine->step()) {
          tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
          finish = output.finish;
        }
      }
      EXPECT_EQ(finish, engine::FinishReason::kError);
      EXPECT_EQ(tokens, std::vector<int32_t>(truth.begin(), truth.begin() + 5)) << device;
    }
  }
}

// What a constraint forces becomes drafts, which are right, whatever the proposer says.
TEST(SpeculationConstraint, ForcedTokensAreDrafts) {
  static const std::vector<int32_t> kForced = {11, 12, 13, 14, 15, 16};
  class Forcing final : public engine::Constraint {
   public:
    Result<bool> fill_mask(std::span<uint32_t> mask) override {
      if (seen_ < 2 || seen_ >= 2 + kForced.size()) return false;
      const auto token = static_cast<uint32_t>(kForced[seen_ - 2]);
      std::ranges::fill(mask, 0u);
      mask[token / 32] = 1u << token % 32;
      return true;
    }
    Status accept(int32_t) override {
      ++seen_;
      return {};
    }
    void rollback(int64_t count) override { seen_ -= static_cast<size_t>(count); }
    void forced(int64_t most, std::vector<int32_t>& tokens) override {
      for (size_t i = seen_; i >= 2 && i < 2 + kForced.size() && std::ssize(tokens) < most; ++i) {
        tokens.push_back(kForced[i - 2]);
      }
    }

   private:
    size_t seen_ = 0;
  };
  class Source final : public engine::ConstraintSource {
   public:
    std::unique_ptr<engine::Constraint> make() const override { return std::make_unique<Forcing>(); }
  };
  engine::Request request = greedy_request({1, 2, 3}, 12);
  request.constraint = std::make_shared<Source>();
  for (const char* device : {"cpu", "emulator"}) {
    llm::Options options = dummy_options("llama");
    options.device = device;
    const auto plain = make_engine(options);
    ASSERT_NE(plain, nullptr);
    const std::vector<int32_t> truth = run(*plain, {request})[0].tokens;
    EXPECT_TRUE(std::equal(kForced.begin(), kForced.end(), truth.begin() + 2));
    options.speculative_config = config_of(3);
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    engine->set_proposer([](const engine::Sequence& s) {
      return std::make_unique<Scripted>(Kind::kNonsense, s.prompt_size, std::vector<int32_t>());
    });
    EXPECT_EQ(run(*engine, {request})[0].tokens, truth) << device;
    EXPECT_GE(engine->stats().speculation.accepted_tokens, 4) << device << ": three, one that is sampled, two";
  }
}

// While all sequences pause, steps run ahead on a device that samples; drafts come back, and nothing changes.
TEST(SpeculationAsync, StepsOverlapWhileNobodyHasDrafts) {
  llm::Options options = dummy_options("llama");
  if (options.device == "cpu") options.device = "emulator";
  const engine::Request request = greedy_request({1, 2, 3}, 60);
  const auto plain = make_engine(options);
  ASSERT_NE(plain, nullptr);
  const std::vector<int32_t> truth = run(*plain, {request})[0].tokens;
  options.speculative_config = config_of(2);
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  // Wrong at first, so that there are pauses, and then right.
  class Late final : public engine::Proposer {
   public:
    explicit Late(const std::vector<int32_t>& truth) : truth_(truth) {}
    void propose(std::span<const int32_t> tokens, int64_t, std::vector<int32_t>& drafts) override {
      const size_t at = tokens.size() - 3;
      if (at < truth_.size()) drafts.push_back(at < 30 ? (truth_[at] + 1) % 100 : truth_[at]);
    }

   private:
    const std::vector<int32_t>& truth_;
  };
  engine->set_proposer([&](const engine::Sequence&) { return std::make_unique<Late>(truth); });
  ASSERT_TRUE(engine->add(request).ok());
  std::vector<int32_t> tokens;
  const std::vector<SpanTimes> spans = spans_of([&] {
    while (engine->has_work()) {
      for (const engine::Output& output : engine->step()) {
        tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
      }
    }
  });
  EXPECT_EQ(tokens, truth);
  // In each call of step() after the first: the next step's forward pass began before the tokens were read, or after.
  int before = 0, after = 0;
  for (const SpanTimes& step : spans) {
    if (!step.name.starts_with("step ") || step.name == "step 0") continue;
    const auto begin_of = [&](std::string_view name) {
      const auto found = std::ranges::find_if(spans, [&](const SpanTimes& span) {
        return span.begin >= step.begin && span.end <= step.end && span.name.starts_with(name);
      });
      return found == spans.end() ? step.end : found->begin;
    };
    const double forward = begin_of("forward"), read = begin_of("read ");
    if (forward == step.end) continue;  // the last one
    ++(forward < read ? before : after);
  }
  EXPECT_GT(before, 0) << "steps overlap in a pause";
  EXPECT_GT(after, 0) << "a step follows at once where there may be drafts";
  EXPECT_GT(engine->stats().speculation.accepted_tokens, 0);
}

}  // namespace
}  // namespace quire::testing
