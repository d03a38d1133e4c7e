// SPDX-License-Identifier: Apache-2.0
// Steps submitted ahead on a device that samples: under random traffic with ends, stop strings, aborts and preemptions,
// each request gets the tokens and logprobs that it gets alone, and those of an engine that waits for each step.
// Compared by memcmp.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "backend/testing/row_digest_oracle.h"
#include "base/digest.h"
#include "models/golden.h"
#include "models/harness.h"
#include "models/visits.h"

namespace quire::testing {
namespace {

// The emulator, or the GPU that QUIRE_TEST_DEVICE names.
std::string device() {
  return test_device() == "cpu" ? "emulator" : test_device();
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
  // Gemma 3's sliding windows free pages, and Qwen3.5 shares those of equal beginnings, so that there are enough.
  EXPECT_TRUE(preemptions > 0 || GetParam() == "gemma3" || GetParam() == "qwen3.5");
}

INSTANTIATE_TEST_SUITE_P(Families, Ahead, ::testing::Values("llama", "gemma3", "qwen3.5", "deepseek-v3"),
                         [](const auto& test) { return test_name(test.param); });

// Digests that the backend makes, and those of the first receipts, are those of the logits.
TEST(Ahead, DigestsAreThoseOfTheLogits) {
  for (const std::string& where : std::set<std::string>{"cpu", device()}) {
    llm::Options options = dummy_options("llama");
    options.device = where;
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    const std::vector<int32_t> prompt = {5, 6, 7, 8};
    const std::map<int64_t, std::vector<float>> rows = run(*engine, {greedy_request(prompt, 6)})[0].logits;
    for (const auto version : {sampling::RowDigests::kFirst, sampling::RowDigests::kSecond}) {
      engine::Request request = greedy_request(prompt, 6);
      request.params.row_digests = version;
      ASSERT_TRUE(engine->add(request).ok());
      std::vector<uint64_t> found, expected;
      while (engine->has_work()) {
        for (const engine::Output& output : engine->step()) {
          found.insert(found.end(), output.row_digests.begin(), output.row_digests.end());
        }
      }
      for (const auto& [position, row] : rows) {
        expected.push_back(version == sampling::RowDigests::kFirst ? digest_of(std::as_bytes(std::span(row))).low
                                                                   : cases::row_digest_oracle(row));
      }
      EXPECT_EQ(found, expected) << where;
    }
  }
}

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
  EXPECT_EQ(b.at({1, 0}).answer.logprobs.size(), 8 * (vocab + 1));
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
