// SPDX-License-Identifier: Apache-2.0
// Draft models and layers ahead change no bit: under random traffic each request gets what it gets without one, whether the draft model
// is the target, whose drafts are all right, or another one, whose drafts are nearly all wrong. Compared by memcmp.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "models/golden.h"
#include "models/harness.h"
#include "models/visits.h"

namespace quire::testing {
namespace {

// Room for all requests at once, or for so few that they preempt each other.
void set_room(llm::Options& options, bool crowded) {
  options.max_num_batched_tokens = crowded ? 40 : 512;
  options.max_num_seqs = crowded ? 8 : 16;
  options.num_gpu_blocks_override = crowded ? 8 : 2000;
  while (!fits(options)) options.num_gpu_blocks_override = *options.num_gpu_blocks_override + 2;
}

std::string config_with(const std::string& draft, int64_t tokens) {
  return R"({"model": ")" + (goldens_folder() / draft / "config.json").string() + R"(", "num_speculative_tokens": )" +
         std::to_string(tokens) + "}";
}

std::vector<Visit> visits_for_drafts(int count, bool constraints) {
  std::mt19937 rng(24);
  std::vector<Visit> visits = random_stays(rng, count);
  for (Visit& visit : visits) {
    if (!constraints) visit.request.constraint = nullptr;
  }
  return visits;
}

struct Pair {
  const char* target;
  const char* draft;
};

class DraftModel : public ::testing::TestWithParam<Pair> {
 protected:
  // Several rounds with other numbers of drafts, page sizes, chunks and numbers of pages.
  void expect_same_answers(llm::Options options, int visits_count, int64_t first, int64_t last, int64_t step) {
    const auto [target, draft] = GetParam();
    const bool same = std::string_view(target) == draft;
    options.max_model_len = "112";
    options.seed = 4;  // of the requests without one
    const std::vector<Visit> visits = visits_for_drafts(visits_count, !same);
    const auto plain = make_engine(options);
    ASSERT_NE(plain, nullptr);
    const AllSeen truth = run_visits(*plain, visits);
    int64_t drafted = 0, preemptions = 0;
    for (int64_t tokens = first; tokens <= last; tokens += step) {
      const bool crowded = tokens % 2 == 0;
      options.speculative_config = config_with(draft, tokens);
      options.block_size = tokens % 3 == 0 ? 8 : 16;
      options.enable_prefix_caching = tokens % 4 != 3;
      options.scheduling_policy = tokens % 3 == 1 ? "priority" : "fcfs";
      set_room(options, crowded);
      const auto engine = make_engine(options);
      ASSERT_NE(engine, nullptr);
      const std::string what = std::to_string(tokens) + " drafts";
      expect_equal(truth, run_visits(*engine, visits), what);
      const engine::SpeculationStats stats = engine->stats().speculation;
      drafted += stats.draft_tokens;
      preemptions += engine->stats().preemptions;
      if (same) {
        EXPECT_EQ(stats.accepted_tokens, stats.draft_tokens) << what;
      }
      EXPECT_EQ(engine->stats().kv_usage, 0) << what << ": pages were not given back";
    }
    EXPECT_GT(drafted, 0);
    if (last > first) {
      EXPECT_GT(preemptions, 0) << "there were pages for all";
    }
  }
};

TEST_P(DraftModel, AnswersAreThoseWithoutIt) {
  if (test_device() != "cpu") GTEST_SKIP() << "the test below runs on devices that sample";
  expect_same_answers(dummy_options(GetParam().target), 12, 1, 8, 1);
}

TEST_P(DraftModel, AnswersAreThoseWithoutItOnADeviceThatSamples) {
  llm::Options options = dummy_options(GetParam().target);
  if (options.device == "cpu") options.device = "emulator";
  if (test_device() == "cpu" && std::string_view(GetParam().target) != "llama") GTEST_SKIP() << "the emulator is slow";
  expect_same_answers(options, 5, 4, 4, 1);
}

INSTANTIATE_TEST_SUITE_P(Pairs, DraftModel,
                         ::testing::Values(Pair{"llama", "llama"}, Pair{"llama", "mistral"}, Pair{"llama", "gemma3"},
                                           Pair{"gemma3", "gemma3"}, Pair{"gemma3", "llama"},
                                           Pair{"deepseek-v3", "deepseek-v3"}, Pair{"gpt-oss", "llama"},
                                           Pair{"qwen3-moe", "qwen3-moe"}),
                         [](const auto& test) {
                           std::string name = std::string(test.param.target) + "_with_" + test.param.draft;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(EagleLayerSupport, SaysWhatDoesNotFit) {
  const auto error_of = [](const std::string& target, const std::string& config) -> std::string {
    llm::Options options = dummy_options(target);
    options.speculative_config = config;
    const auto files = llm::open_files(options);
    auto backend = llm::make_backend(options);
    EXPECT_TRUE(files.ok() && backend.ok());
    const auto loaded = llm::load_engine(options, *files, std::move(*backend), {});
    return loaded.ok() ? "" : loaded.error().message;
  };
  const std::string layer = (goldens_folder() / "llama" / "eagle3" / "config.json").string();
  const std::string eagle = R"({"method": "eagle3", "num_speculative_tokens": 2, "model": ")" + layer + "\"}";
  EXPECT_NE(error_of("mistral", eagle).find("was made for another model"), std::string::npos);
  EXPECT_NE(error_of("llama-rope-dynamic", eagle).find("does not have"), std::string::npos);
  const std::string whole = R"({"method": "eagle3", "num_speculative_tokens": 2, "model": ")" +
                            (goldens_folder() / "llama" / "config.json").string() + "\"}";
  EXPECT_NE(error_of("llama", whole).find("is no EAGLE-3 layer"), std::string::npos);
  const std::string draft = R"({"num_speculative_tokens": 2, "model": ")" + layer + "\"}";
  EXPECT_NE(error_of("llama", draft).find("the method is \"eagle3\""), std::string::npos);
  EXPECT_NE(error_of("llama/eagle3", "").find("drafts for another model"), std::string::npos);
}

// A random draft model is wrong. (At a high temperature it is often right all the same, because it draws with the noise
// of its target.)
TEST(DraftModelCounts, AreNearZeroForAnotherModel) {
  llm::Options options = dummy_options("llama");
  options.speculative_config = config_with("mistral", 4);
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  std::vector<engine::Request> requests;
  for (int32_t i = 0; i < 6; ++i) requests.push_back(greedy_request({i, 8, 9}, 40));
  run(*engine, requests);
  const engine::SpeculationStats stats = engine->stats().speculation;
  EXPECT_GT(stats.draft_tokens, 0);
  EXPECT_LE(stats.accepted_tokens * 10, stats.draft_tokens + 10);
}

// Layers for multi-token prediction.
TEST(AheadLayerGoldens, DraftsAreTheReferences) {
  for (const char* name : {"deepseek-v3", "glm4-moe", "qwen3-next", "qwen3.5", "qwen3.5-moe"}) expect_golden_drafts(name);
}

TEST(EagleLayerGoldens, DraftsAreTheReferences) {
  expect_golden_eagle("llama", "eagle3");
}

// A family, with its EAGLE-3 layer ("llama") or its MTP layer.
class AheadLayer : public ::testing::TestWithParam<std::string> {
 protected:
  static std::string config(int64_t tokens) {
    const std::string eagle = (goldens_folder() / "llama" / "eagle3" / "config.json").string();
    return (GetParam() == "llama" ? R"({"method": "eagle3", "model": ")" + eagle + "\"" : R"({"method": "mtp")") +
           R"(, "num_speculative_tokens": )" + std::to_string(tokens) + "}";
  }
};

TEST_P(AheadLayer, AnswersAreThoseWithoutIt) {
  llm::Options options = dummy_options(GetParam());
  options.max_model_len = "112";
  options.seed = 4;  // of the requests without one
  const std::vector<Visit> visits = visits_for_drafts(10, true);
  const auto plain = make_engine(options);
  ASSERT_NE(plain, nullptr);
  const AllSeen truth = run_visits(*plain, visits);
  for (const int64_t tokens : {1, 2, 3, 8}) {
    const bool crowded = tokens % 2 == 0;
    options.speculative_config = config(tokens);
    options.block_size = tokens == 3 ? 8 : 16;
    set_room(options, crowded);
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    const std::string what = std::to_string(tokens) + " drafts";
    expect_equal(truth, run_visits(*engine, visits), what);
    const engine::SpeculationStats stats = engine->stats().speculation;
    if (!crowded) {  // states of drafts take pages, too
      EXPECT_GT(stats.draft_tokens, 0) << what;
      EXPECT_GT(engine->stats().prefix.hit_tokens, 0) << what;
    }
    EXPECT_EQ(engine->stats().kv_usage, 0) << what << ": pages were not given back";
  }
}

TEST_P(AheadLayer, AnswersAreThoseWithoutItOnADeviceThatSamples) {
  llm::Options options = dummy_options(GetParam());
  if (options.device == "cpu") options.device = "emulator";
  if (test_device() == "cpu" && GetParam() != "glm4-moe" && GetParam() != "llama") GTEST_SKIP() << "the emulator is slow";
  std::vector<engine::Request> requests = {greedy_request({1, 2, 3}, 8), greedy_request({4, 5}, 8)};
  requests[1].params.temperature = 1;
  requests[1].params.seed = 3;
  const auto plain = make_engine(options);
  options.speculative_config = config(2);
  const auto engine = make_engine(options);
  ASSERT_TRUE(plain != nullptr && engine != nullptr);
  const std::vector<Trace> truth = run(*plain, requests);
  const std::vector<Trace> traces = run(*engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(difference(truth[i], traces[i]), "") << i;
  EXPECT_GT(engine->stats().speculation.draft_tokens, 0);
}

// The logits of a draft depend on the tokens before it alone: chunks, other sequences and rejected drafts do not change
// a bit of them.
TEST_P(AheadLayer, DraftsDependOnTheSequenceAlone) {
  llm::Options options = dummy_options(GetParam());
  options.speculative_config = config(1);
  options.enable_prefix_caching = false;
  using Taps = std::map<std::pair<engine::RequestId, int64_t>, std::vector<float>>;
  const auto tap_into = [](engine::Engine& engine, Taps& taps) {
    engine.set_draft_tap([&taps](engine::RequestId id, int32_t, int64_t position, std::span<const float> row) {
      taps[{id, position}].assign(row.begin(), row.end());
    });
  };
  options.max_num_batched_tokens = 20;
  const auto busy = make_engine(options);
  ASSERT_NE(busy, nullptr);
  Taps taps;
  tap_into(*busy, taps);
  std::map<engine::RequestId, std::vector<int32_t>> texts;
  for (const size_t length : {3, 40, 17}) {
    std::vector<int32_t> prompt;
    for (size_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>((i * i * 7 + length) % 500));
    const auto id = busy->add(greedy_request(prompt, 24));
    ASSERT_TRUE(id.ok());
    texts[*id] = prompt;
  }
  while (busy->has_work()) {
    for (const engine::Output& output : busy->step()) {
      texts[output.id].insert(texts[output.id].end(), output.tokens.begin(), output.tokens.end());
    }
  }
  options.max_num_batched_tokens = 512;
  size_t compared = 0;
  for (const auto& [key, row] : taps) {
    const auto& [id, position] = key;
    const std::vector<int32_t>& text = texts.at(id);
    if (compared++ % 3 != 0) continue;
    const auto alone = make_engine(options);  // a new one has drafts in its first steps, whatever they cost
    ASSERT_NE(alone, nullptr);
    Taps again;
    tap_into(*alone, again);
    const auto other = alone->add(greedy_request({text.begin(), text.begin() + position}, 4));
    ASSERT_TRUE(other.ok());
    while (alone->has_work()) alone->step();
    const bool equal = again[std::pair(*other, position)] == row;
    EXPECT_TRUE(equal) << "position " << position << " of request " << id;
  }
  EXPECT_GT(compared, 0u);
}

INSTANTIATE_TEST_SUITE_P(Families, AheadLayer,
                         ::testing::Values("deepseek-v3", "glm4-moe", "qwen3.5", "qwen3-next", "llama"),
                         [](const auto& test) { return test_name(test.param); });

TEST(AheadLayerSupport, SaysWhatDoesNotFit) {
  llm::Options options = dummy_options("llama");
  options.speculative_config = R"({"method": "mtp", "num_speculative_tokens": 2})";
  const auto files = llm::open_files(options);
  auto backend = llm::make_backend(options);
  ASSERT_TRUE(files.ok() && backend.ok());
  const auto loaded = llm::load_engine(options, *files, std::move(*backend), {});
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.error().message.find("has no layer for multi-token prediction"), std::string::npos)
      << loaded.error().message;
}

// The draft model computes each token once: what it has computed for drafts that were accepted is kept, a cached prefix
// brings its K and V, too, and the logits of the target's rows have the bits of single steps.
TEST(DraftModelLogits, HaveTheBitsOfSingleSteps) {
  for (const char* device : {"cpu", "emulator"}) {
    llm::Options options = dummy_options("llama");
    options.device = device;
    std::vector<engine::Request> requests;
    for (int32_t i = 0; i < 3; ++i) requests.push_back(greedy_request(std::vector<int32_t>(40, 7), 20 + i));
    requests[1].params.temperature = 1;
    requests[1].params.seed = 5;
    const auto plain = make_engine(options);
    ASSERT_NE(plain, nullptr);
    const std::vector<Trace> truth = run(*plain, requests);
    options.speculative_config = config_with("llama", 4);
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    for (int round = 0; round < 2; ++round) {  // the second one begins with cached pages
      const std::vector<Trace> traces = run(*engine, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        if (round == 0) {
          EXPECT_EQ(difference(truth[i], traces[i]), "") << device << " " << i;
        }
        EXPECT_EQ(truth[i].tokens, traces[i].tokens) << device << " " << i;
      }
    }
    const engine::SpeculationStats stats = engine->stats().speculation;
    EXPECT_EQ(stats.accepted_tokens, stats.draft_tokens) << device;
    EXPECT_GT(engine->stats().prefix.hit_tokens, 0);
  }
}

// A draft model may have a shorter context than its target; longer sequences go on without drafts.
TEST(DraftModelLength, EndsTheDrafts) {
  llm::Options options = dummy_options("llama");
  const std::vector<engine::Request> requests = {greedy_request({1, 2, 3}, 60)};
  const auto plain = make_engine(options);
  ASSERT_NE(plain, nullptr);
  const std::vector<Trace> truth = run(*plain, requests);
  options.speculative_config = config_with("llama", 3);
  options.speculative_config.insert(options.speculative_config.size() - 1, R"(, "max_model_len": 24)");
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(run(*engine, requests)[0].tokens, truth[0].tokens);
  const int64_t drafted = engine->stats().speculation.draft_tokens;
  EXPECT_GT(drafted, 0);
  EXPECT_LE(drafted, 21);
}

TEST(DraftModelSupport, SaysWhatDoesNotFit) {
  const auto error_of = [](const std::string& draft) -> std::string {
    llm::Options options = dummy_options("llama");
    options.speculative_config = config_with(draft, 3);
    const auto files = llm::open_files(options);
    auto backend = llm::make_backend(options);
    EXPECT_TRUE(files.ok() && backend.ok());
    const auto loaded = llm::load_engine(options, *files, std::move(*backend), {});
    return loaded.ok() ? "" : loaded.error().message;
  };
  EXPECT_NE(error_of("qwen3").find("must have the vocabulary"), std::string::npos) << error_of("qwen3");
  EXPECT_NE(error_of("qwen3.5").find("recurrent states"), std::string::npos) << error_of("qwen3.5");
  EXPECT_NE(error_of("absent").find("the draft model:"), std::string::npos) << error_of("absent");
}

// The plan counts the weights and the pages of both.
TEST(DraftModelMemory, IsPlannedTogether) {
  llm::Options options = dummy_options("llama");
  options.speculative_config = config_with("llama", 3);
  const auto files = llm::open_files(options);
  auto backend = llm::make_backend(options);
  ASSERT_TRUE(files.ok() && backend.ok());
  const auto loaded = llm::load_engine(options, *files, std::move(*backend), {});
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->plan.draft_weights_bytes * 2, loaded->plan.weights_bytes);
  EXPECT_NE(loaded->plan.line().find("50% of K and V for drafting"), std::string::npos) << loaded->plan.line();
}

}  // namespace
}  // namespace quire::testing
