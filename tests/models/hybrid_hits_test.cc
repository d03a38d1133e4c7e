// SPDX-License-Identifier: Apache-2.0
// Prefix hits of models with recurrent states end inside pages: close to where two prompts part, and where the last
// answer of a conversation ended. They change no bit.
#include <gtest/gtest.h>

#include <random>

#include "models/harness.h"

namespace quire::testing {
namespace {

class HybridHits : public ::testing::TestWithParam<std::string> {
 protected:
  // Few tokens per state: the pages of the small models are made as long as those of real ones.
  llm::Options options() const {
    llm::Options out = dummy_options(GetParam());
    out.max_model_len = "1024";
    out.dtype = "float32";
    out.block_size = 576;
    out.prefix_match_unit = 16;
    out.max_num_batched_tokens = 200;
    out.num_gpu_blocks_override = 120;
    return out;
  }
  std::vector<int32_t> random_tokens(size_t n) {
    std::vector<int32_t> out(n);
    for (int32_t& token : out) token = static_cast<int32_t>(rng_() % 500);
    return out;
  }
  // What an engine without a cache answers.
  Trace alone(const engine::Request& request) const {
    llm::Options plain = options();
    plain.enable_prefix_caching = false;
    const auto engine = make_engine(plain);
    return run(*engine, {request})[0];
  }
  std::mt19937 rng_{5};
};

TEST_P(HybridHits, EndCloseToWhereTwoPromptsPart) {
  const auto engine = make_engine(options());
  ASSERT_NE(engine, nullptr);
  const std::vector<int32_t> common = random_tokens(200);
  int64_t before = 0;
  // The second finds a checkpoint at an interval, the third the one where the second left the first.
  for (const int64_t expected : {0, 192, 192}) {
    std::vector<int32_t> prompt = common;
    const std::vector<int32_t> rest = random_tokens(50);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    const engine::Request request = greedy_request(prompt, 20);
    EXPECT_EQ(difference(alone(request), run(*engine, {request})[0]), "");
    EXPECT_EQ(engine->stats().prefix.hit_tokens - before, expected);
    before = engine->stats().prefix.hit_tokens;
  }
}

TEST_P(HybridHits, EndWhereTheLastAnswerDid) {
  const auto engine = make_engine(options());
  ASSERT_NE(engine, nullptr);
  std::vector<int32_t> text = random_tokens(40);
  int64_t before = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const auto known = static_cast<int64_t>(text.size());
    if (turn > 0) {
      const std::vector<int32_t> question = random_tokens(25);
      text.insert(text.end(), question.begin(), question.end());
    }
    const engine::Request request = greedy_request(text, 30);
    const Trace answer = run(*engine, {request})[0];
    EXPECT_EQ(difference(alone(request), answer), "") << "turn " << turn;
    const int64_t hit = engine->stats().prefix.hit_tokens - before;
    before += hit;
    if (turn > 0) {
      EXPECT_EQ(hit, (known - 1) / 16 * 16) << "the last token of an answer is not computed";
    }
    text.insert(text.end(), answer.tokens.begin(), answer.tokens.end());
  }
}

// A hit inside a page copies it: every rank must copy its own.
TEST_P(HybridHits, HaveTheSameBitsOnSeveralRanks) {
  if (test_device() != "cpu") GTEST_SKIP() << "the ranks are a CPU's, and other devices have other bits";
  const std::vector<int32_t> common = random_tokens(200);
  for (const bool pipeline : {false, true}) {
    llm::Options several = options();
    several.device = "cpu";
    several.threads = 2;
    (pipeline ? several.pipeline_parallel_size : several.tensor_parallel_size) = 2;
    const auto engine = make_engine(several);
    ASSERT_NE(engine, nullptr);
    for (int i = 0; i < 3; ++i) {
      std::vector<int32_t> prompt = common;
      const std::vector<int32_t> rest = random_tokens(50);
      prompt.insert(prompt.end(), rest.begin(), rest.end());
      const engine::Request request = greedy_request(prompt, 20);
      EXPECT_EQ(difference(alone(request), run(*engine, {request})[0]), "") << "pipeline " << pipeline << ", " << i;
    }
    EXPECT_EQ(engine->stats().prefix.hit_tokens, 2 * 192);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HybridHits, ::testing::Values("qwen3.5", "granite-hybrid", "lfm2"));

}  // namespace
}  // namespace quire::testing
