// SPDX-License-Identifier: Apache-2.0
// Drafters on a device that samples, with --async-scheduling: the drafter's first pass is queued before the host knows
// how many drafts were accepted, and the step before it knows the last drafts. Answers have the bits that they have
// without drafts and without any of this. The emulator runs it, or the GPU that QUIRE_TEST_DEVICE names.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "models/golden.h"
#include "models/harness.h"
#include "models/visits.h"

namespace quire::testing {
namespace {

// A model and what drafts for it: "mtp", "eagle3", or the golden case of a draft model.
struct Drafted {
  const char* target;
  const char* drafter;
};

std::string config_of(const std::string& drafter, int64_t tokens) {
  const auto file = [](const std::filesystem::path& folder) {
    return R"("model": ")" + (goldens_folder() / folder / "config.json").string() + R"(", )";
  };
  std::string what = drafter == "mtp" ? R"("method": "mtp", )" : file(drafter);
  if (drafter == "eagle3") what = R"("method": "eagle3", )" + file("llama/eagle3");
  return "{" + what + R"("num_speculative_tokens": )" + std::to_string(tokens) + "}";
}

llm::Options device_options(const std::string& target) {
  llm::Options options = dummy_options(target);
  if (options.device == "cpu") options.device = "emulator";
  options.max_model_len = "112";
  options.seed = 4;  // of the requests without one
  return options;
}

class DraftAsync : public ::testing::TestWithParam<Drafted> {};

// Random traffic with settings, grammars, ends and preemptions of all kinds.
TEST_P(DraftAsync, AnswersAreThoseWithoutDrafts) {
  const auto [target, drafter] = GetParam();
  std::mt19937 rng(29);
  std::vector<Visit> visits = random_stays(rng, 5);
  for (Visit& visit : visits) visit.step /= 4;  // so that several run together
  llm::Options options = device_options(target);
  const auto plain = make_engine(options);
  ASSERT_NE(plain, nullptr);
  const AllSeen truth = run_visits(*plain, visits);
  for (const int64_t drafts : {1, 3, 4}) {
    if (test_device() == "cpu" && (drafts == 1 || (drafts == 4 && std::string_view(target) != "llama"))) continue;
    const bool crowded = drafts == 4;
    options.speculative_config = config_of(drafter, drafts);
    options.block_size = drafts == 3 ? 8 : 16;
    options.max_num_batched_tokens = crowded ? 40 : 512;
    options.num_gpu_blocks_override = crowded ? 8 : 2000;
    while (!fits(options)) options.num_gpu_blocks_override = *options.num_gpu_blocks_override + 2;
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    const std::string what = std::to_string(drafts) + " drafts";
    expect_equal(truth, run_visits(*engine, visits), what);
    const engine::SpeculationStats stats = engine->stats().speculation;
    if (!crowded) {  // states of drafts take pages, too
      EXPECT_GT(stats.draft_tokens, 0) << what;
    }
    EXPECT_EQ(engine->stats().kv_usage, 0) << what << ": pages were not given back";
  }
}

// The drafts, and how many of them are right, are those of an engine that waits for each pass and step.
TEST_P(DraftAsync, DraftsAreThoseOfAnEngineThatWaits) {
  const auto [target, drafter] = GetParam();
  llm::Options options = device_options(target);
  std::vector<engine::Request> requests;
  for (int32_t i = 0; i < 3; ++i) requests.push_back(greedy_request({7, 8, 9, i}, 24 + i));
  requests[1].params.temperature = 1;
  requests[1].params.seed = 5;
  for (int32_t token = 0; token < 40; ++token) requests[1].params.eos_token_ids.edit().push_back(token * 11);
  requests[2].params.temperature = 0.5;
  requests[2].params.seed = 6;
  requests[2].params.frequency_penalty = 1.5;
  requests[2].params.logprobs = 2;
  const std::vector<Visit> visits = {{requests[0]}, {requests[1]}, {requests[2]}};
  options.speculative_config = config_of(drafter, 3);
  std::vector<AllSeen> seen;
  std::vector<engine::SpeculationStats> stats;
  for (const bool async : {false, true}) {
    options.async_scheduling = async;
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    engine->set_clock([] { return 0.0; });  // all drafts are worth it
    seen.push_back(run_visits(*engine, visits));
    stats.push_back(engine->stats().speculation);
  }
  expect_equal(seen[0], seen[1], "async");
  EXPECT_EQ(stats[0].drafts, stats[1].drafts);
  EXPECT_EQ(stats[0].draft_tokens, stats[1].draft_tokens);
  EXPECT_EQ(stats[0].accepted_per_position, stats[1].accepted_per_position);
  EXPECT_GT(stats[1].draft_tokens, 0);
  if (std::string_view(target) == drafter) {
    EXPECT_EQ(stats[1].accepted_tokens, stats[1].draft_tokens) << "the model is its own draft model";
  }
}

// The bug: of a request for an embedding, a layer ahead read the token after the last one, and its row could end the
// server.
TEST_P(DraftAsync, EmbeddingsAreThoseWithoutDrafts) {
  const auto [target, drafter] = GetParam();
  llm::Options options = device_options(target);
  options.runner = "generate";
  options.convert = "embed";
  options.max_num_batched_tokens = 40;  // prompts are computed in chunks
  const auto embeddings = [&] {
    const auto engine = make_engine(options);
    EXPECT_NE(engine, nullptr);
    std::map<engine::RequestId, std::vector<float>> pooled;
    EXPECT_TRUE(engine->add(greedy_request({7, 8, 9}, 24)).ok());
    for (const size_t length : {1, 16, 61}) {
      engine::Request request;
      for (size_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<int32_t>(5 + i * 3));
      request.pool = model::PoolRows::kMean;
      EXPECT_TRUE(engine->add(std::move(request)).ok());
    }
    while (engine->has_work()) {
      for (const engine::Output& output : engine->step()) {
        if (!output.pooled.empty()) pooled[output.id].assign(output.pooled.begin(), output.pooled.end());
      }
    }
    return pooled;
  };
  const auto truth = embeddings();
  EXPECT_EQ(truth.size(), 3u);
  options.speculative_config = config_of(drafter, 3);
  EXPECT_EQ(truth, embeddings());
}

INSTANTIATE_TEST_SUITE_P(Drafters, DraftAsync,
                         ::testing::Values(Drafted{"llama", "llama"}, Drafted{"llama", "mistral"},
                                           Drafted{"gemma3", "gemma3"}, Drafted{"llama", "eagle3"},
                                           Drafted{"qwen3.5", "mtp"}, Drafted{"deepseek-v3", "mtp"}),
                         [](const auto& test) {
                           return test_name(test.param.target) + "_with_" + test_name(test.param.drafter);
                         });

// What each call of Engine::step() does, in order: the names of the spans in it.
std::vector<std::vector<std::string>> calls_of(engine::Engine& engine, const engine::Request& request) {
  const std::vector<SpanTimes> spans = spans_of([&] {
    EXPECT_TRUE(engine.add(request).ok());
    while (engine.has_work()) engine.step();
  });
  std::vector<std::vector<std::string>> calls;
  for (const SpanTimes& step : spans) {
    if (!step.name.starts_with("step ")) continue;
    calls.emplace_back();
    for (const SpanTimes& span : spans) {
      if (span.begin > step.begin && span.end <= step.end) calls.back().push_back(span.name);
    }
  }
  return calls;
}

// The place of the n-th span whose name begins like this; the number of spans if there is none.
size_t place_of(const std::vector<std::string>& spans, std::string_view name, size_t n = 0) {
  size_t at = 0;
  for (; at < spans.size(); ++at) {
    if (spans[at].starts_with(name) && n-- == 0) break;
  }
  return at;
}

// A round of three drafts: three passes are sampled, two of them are read; the step is queued; the third one is read;
// the step's sampling and the next round's first pass are queued; only then is the step read.
TEST(DraftAsyncOrder, NothingWaitsForTheHost) {
  for (const char* drafter : {"llama", "eagle3"}) {
    for (const bool async : {true, false}) {
      llm::Options options = device_options("llama");
      options.speculative_config = config_of(drafter, 3);
      options.async_scheduling = async;
      const auto engine = make_engine(options);
      ASSERT_NE(engine, nullptr);
      engine->set_draft_edit([](const engine::Sequence&, std::vector<int32_t>&) {});
      engine->set_clock([] { return 0.0; });
      int queued = 0, rounds = 0;
      for (const auto& spans : calls_of(*engine, greedy_request({1, 2, 3}, 40))) {
        const size_t forward = place_of(spans, "forward 4 tokens");
        if (forward == spans.size()) continue;  // fewer drafts
        ++rounds;
        const bool early = place_of(spans, "read ", 2) > forward;
        const size_t start = std::min(place_of(spans, "draft model starts 1"), place_of(spans, "layer ahead starts 1"));
        const bool started = start > forward && start < place_of(spans, "read ", 3);
        EXPECT_EQ(early, async) << drafter;
        EXPECT_EQ(started, async) << drafter;
        queued += early && started ? 1 : 0;
      }
      EXPECT_GT(rounds, 0) << drafter;
      EXPECT_EQ(queued > 0, async) << drafter;
    }
  }
}

// Steps overlap while a sequence pauses because its drafts were wrong, and where drafts are not worth their time.
TEST(DraftAsyncOrder, StepsOverlapWhileNobodyHasDrafts) {
  for (const Drafted pair : {Drafted{"llama", "mistral"}, Drafted{"qwen3.5", "mtp"}}) {
    for (const bool dear : {false, true}) {
      if (test_device() == "cpu" && dear && std::string_view(pair.drafter) == "mtp") continue;  // the emulator is slow
      llm::Options options = device_options(pair.target);
      const engine::Request request = greedy_request({1, 2, 3}, 40);
      const auto plain = make_engine(options);
      ASSERT_NE(plain, nullptr);
      const AllSeen truth = run_visits(*plain, {{request}, {request}});
      options.speculative_config = config_of(pair.drafter, 2);
      const auto engine = make_engine(options);
      ASSERT_NE(engine, nullptr);
      engine->set_clock([&engine, dear] {  // a step takes as long as its rows, or always the same time
        const engine::EngineStats stats = engine->stats();
        return static_cast<double>(dear ? stats.tokens_computed : stats.steps);
      });
      int overlapping = 0;
      for (const auto& spans : calls_of(*engine, request)) {
        overlapping += place_of(spans, "forward ") < place_of(spans, "read ") &&
                               place_of(spans, "read ") < spans.size()
                           ? 1
                           : 0;
      }
      EXPECT_GT(overlapping, 10) << pair.target << (dear ? ", dear" : "");
      expect_equal(truth, run_visits(*engine, {{request}, {request}}), pair.target);
    }
  }
}

}  // namespace
}  // namespace quire::testing
