// SPDX-License-Identifier: Apache-2.0
// Steps submitted ahead on a device that samples: under random traffic with ends, stop strings, aborts and preemptions,
// each request gets the tokens and logprobs that it gets alone, and those of an engine that waits for each step.
// Compared by memcmp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "models/fake_constraint.h"
#include "models/golden.h"
#include "models/harness.h"

namespace quire::testing {
namespace {

// The emulator, or the GPU that QUIRE_TEST_DEVICE names.
std::string device() {
  return test_device() == "cpu" ? "emulator" : test_device();
}

// A request, the step at which it arrives, and after how many tokens its client goes away (0: never).
struct Visit {
  engine::Request request;
  int64_t step = 0;
  size_t leaves_after = 0;
};

// What a request's client received, per child.
struct Seen {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<int32_t> ranks;
  engine::FinishReason finish = engine::FinishReason::kNone;
  std::optional<int32_t> stop_token;
};

std::string difference(const Seen& a, const Seen& b) {
  if (a.tokens != b.tokens) return "the tokens differ";
  if (a.ranks != b.ranks) return "ranks or listed tokens differ";
  if (a.logprobs.size() != b.logprobs.size()) return "there are more logprobs";
  if (std::memcmp(a.logprobs.data(), b.logprobs.data(), a.logprobs.size() * sizeof(float)) != 0) {
    return "the logprobs differ";
  }
  if (a.finish != b.finish || a.stop_token != b.stop_token) return "they ended otherwise";
  return {};
}

std::vector<Visit> random_visits(std::mt19937& rng, int count) {
  std::vector<int32_t> shared(60);
  for (int32_t& token : shared) token = static_cast<int32_t>(rng() % 500);
  std::vector<Visit> visits(static_cast<size_t>(count));
  const auto one_in = [&](uint32_t n) { return rng() % n == 0; };
  for (Visit& visit : visits) {
    engine::Request& request = visit.request;
    if (one_in(2)) request.prompt.assign(shared.begin(), shared.begin() + 16 + static_cast<ptrdiff_t>(rng() % 44));
    for (size_t more = 1 + rng() % 30; more > 0; --more) {
      request.prompt.push_back(static_cast<int32_t>(rng() % 500));
    }
    sampling::SamplingParams& p = request.params;
    p.seed = static_cast<int64_t>(rng());
    p.max_tokens = 1 + static_cast<int64_t>(rng() % 24);
    p.temperature = one_in(2) ? 0.0 : 1.1;
    if (one_in(3)) p.top_k = 30;
    if (one_in(3)) p.top_p = 0.9;
    if (one_in(4)) p.repetition_penalty = 1.4;
    if (one_in(2)) {
      // There are few tokens to choose from, so each choice depends on the one before: a penalty or a bad word that
      // misses the last token shows at once.
      std::vector<int32_t> few(4);
      for (int32_t& token : few) token = static_cast<int32_t>(rng() % 500);
      for (const int32_t token : few) p.logit_bias.edit().emplace_back(token, 60.0f);
      if (one_in(2)) p.frequency_penalty = 1.9;
      if (one_in(2)) p.bad_word_ids = {{few[0], few[1]}, {few[1], few[2]}, {few[2], few[0]}, {few[3], few[3]}};
    }
    if (one_in(3)) p.logprobs = static_cast<int64_t>(rng() % 21);
    if (one_in(4)) p.min_tokens = std::min<int64_t>(*p.max_tokens, 3);
    if (one_in(4)) p.n = p.greedy() ? 1 : 2;
    // Many end tokens, so that sequences stop while a row of theirs is in flight.
    if (one_in(2)) {
      for (int32_t token = 0; token < 40; ++token) p.eos_token_ids.edit().push_back(token * 11);
    }
    if (one_in(3)) request.constraint = hashed_constraint(static_cast<uint32_t>(rng()));
    if (one_in(3)) p.stop_token_ids = {static_cast<int32_t>(rng() % 500), static_cast<int32_t>(rng() % 500)};
    visit.step = static_cast<int64_t>(rng() % 30);
    if (one_in(4)) visit.leaves_after = 1 + rng() % 6;
  }
  return visits;
}

using AllSeen = std::map<std::pair<size_t, int32_t>, Seen>;  // by request and child

void note(const engine::Output& output, Seen& seen) {
  EXPECT_EQ(seen.finish, engine::FinishReason::kNone) << "an output after the last";
  if (output.error) ADD_FAILURE() << output.error->message;
  seen.tokens.insert(seen.tokens.end(), output.tokens.begin(), output.tokens.end());
  for (const auto& list : output.logprobs) {
    for (const sampling::TokenLogprob& entry : list) {
      seen.logprobs.push_back(entry.logprob);
      seen.ranks.push_back(entry.token);
      seen.ranks.push_back(entry.rank);
    }
  }
  seen.finish = output.finish;
  seen.stop_token = output.stop_token;
}

AllSeen run_visits(engine::Engine& engine, const std::vector<Visit>& visits) {
  AllSeen all;
  std::map<engine::RequestId, size_t> who;
  size_t come = 0;
  std::vector<bool> here(visits.size());
  for (int64_t step = 0; come < visits.size() || engine.has_work(); ++step) {
    for (size_t v = 0; v < visits.size(); ++v) {
      if (here[v] || visits[v].step > step) continue;
      here[v] = true;
      ++come;
      auto id = engine.add(visits[v].request);
      if (!id.ok()) {
        ADD_FAILURE() << id.error().message;
        continue;
      }
      who[*id] = v;
    }
    std::vector<engine::RequestId> leaving;
    for (const engine::Output& output : engine.step()) {
      const size_t v = who.at(output.id);
      Seen& seen = all[{v, output.child}];
      note(output, seen);
      // The first child's tokens decide when the client goes away; what the other children have by then depends on the
      // schedule.
      const bool goes = visits[v].leaves_after > 0 && output.child == 0 && visits[v].request.params.n == 1 &&
                        seen.tokens.size() == visits[v].leaves_after && seen.finish == engine::FinishReason::kNone;
      if (goes) leaving.push_back(output.id);
    }
    for (const engine::RequestId id : leaving) {
      engine.abort(id);
      all[{who.at(id), 0}].finish = engine::FinishReason::kAbort;
    }
  }
  EXPECT_TRUE(engine.reset_prefix_cache()) << "a page was not given back";
  return all;
}

void expect_equal(const AllSeen& a, const AllSeen& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [key, seen] : a) {
    const auto other = b.find(key);
    ASSERT_NE(other, b.end()) << what;
    EXPECT_EQ(difference(seen, other->second), "") << what << ": visit " << key.first << ", child " << key.second;
  }
}

class Ahead : public ::testing::TestWithParam<std::string> {};

TEST_P(Ahead, RandomTrafficGivesEachRequestWhatItGetsAlone) {
  std::mt19937 rng(7);
  llm::Options options = dummy_options(GetParam());
  options.device = device();
  options.max_model_len = "128";
  if (GetParam() == "llama" || GetParam() == "deepseek-v3") options.dtype = "bfloat16";  // uses the matrix tile
  const std::vector<Visit> visits = random_visits(rng, GetParam() == "llama" ? 14 : 8);

  AllSeen alone;
  {
    llm::Options waiting = options;
    waiting.async_scheduling = false;
    waiting.enable_prefix_caching = false;
    const auto engine = make_engine(waiting);
    ASSERT_NE(engine, nullptr);
    for (size_t v = 0; v < visits.size(); ++v) {
      Visit now = visits[v];
      now.step = 0;
      for (auto& [key, seen] : run_visits(*engine, {now})) alone[{v, key.second}] = std::move(seen);
    }
  }
  options.max_num_batched_tokens = 40;
  options.max_num_seqs = 8;
  int64_t preemptions = 0;
  for (const bool ahead : {false, true}) {
    options.async_scheduling = ahead;
    // Only as many pages as one whole request needs, so that sequences are preempted.
    options.num_gpu_blocks_override = 8;
    while (!fits(options)) options.num_gpu_blocks_override = *options.num_gpu_blocks_override + 2;
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    expect_equal(alone, run_visits(*engine, visits), ahead ? "ahead" : "waiting");
    preemptions = engine->stats().preemptions;
  }
  // Gemma 3's sliding windows free pages, so no sequence is preempted there.
  EXPECT_TRUE(preemptions > 0 || GetParam() == "gemma3");
}

INSTANTIATE_TEST_SUITE_P(Families, Ahead, ::testing::Values("llama", "gemma3", "qwen3.5", "deepseek-v3"),
                         [](const auto& test) { return test_name(test.param); });

// An engine that is used again after it was left with a step in flight.
TEST(Ahead, AStepOfNobodyIsLeftAlone) {
  llm::Options options = dummy_options("llama");
  options.device = device();
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  const engine::Request request = greedy_request({5, 6, 7, 8}, 6);
  const engine::RequestId gone = engine->add(request).value();
  ASSERT_EQ(engine->step().size(), 1u);
  engine->abort(gone);
  EXPECT_FALSE(engine->has_work());
  EXPECT_TRUE(engine->step().empty());
  const AllSeen first = run_visits(*engine, {{request, 0, 0}});
  const AllSeen again = run_visits(*engine, {{request, 0, 0}});
  expect_equal(first, again, "again");
  EXPECT_EQ(first.begin()->second.tokens.size(), 6u);
}

// Logprobs that only the host computes, and prompt logprobs, next to requests without them.
TEST(Ahead, LogitsThatTheHostWantsChangeNoToken) {
  llm::Options options = dummy_options("llama");
  options.device = device();
  options.max_logprobs = -1;
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  std::vector<Visit> plain(3);
  for (size_t v = 0; v < plain.size(); ++v) {
    plain[v].request = greedy_request({3, 1, 4, static_cast<int32_t>(v)}, 8);
    plain[v].request.params.temperature = 1;
    plain[v].request.params.seed = static_cast<int64_t>(v);
    plain[v].step = static_cast<int64_t>(2 * v);
  }
  std::vector<Visit> wanting = plain;
  wanting[1].request.params.logprobs = -1;
  wanting[2].request.params.prompt_logprobs = 2;
  const AllSeen a = run_visits(*engine, plain), b = run_visits(*engine, wanting);
  for (const auto& [key, seen] : a) EXPECT_EQ(seen.tokens, b.at(key).tokens) << "request " << key.first;
  const auto vocab = static_cast<size_t>(engine->model().config().vocab_size);
  EXPECT_EQ(b.at({1, 0}).logprobs.size(), 8 * (vocab + 1));
}

// The families on the emulator; if QUIRE_TEST_DEVICE names a device, golden_test runs all of them.
class GoldenOnDevice : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenOnDevice, LogitsAndGreedyTokensAreTheReferences) {
  // The emulator is slow, so only one family has a long prompt.
  expect_golden(GetParam(), device(), 4, GetParam() == "llama" ? 400 : 64);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenOnDevice,
                         ::testing::Values("llama", "qwen3", "qwen3.5", "deepseek-v3", "gpt-oss", "gemma3"),
                         [](const auto& test) { return test_name(test.param); });

}  // namespace
}  // namespace quire::testing
