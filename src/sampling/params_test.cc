// SPDX-License-Identifier: Apache-2.0
// Sampling settings: ranges, normal form, and errors that name the field.
#include "sampling/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace quire::sampling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr ParamLimits kLimits = {.vocab_size = 100, .max_logprobs = 20};

std::string refusal(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  const Status status = params.validate(kLimits);
  return status.ok() ? "accepted" : status.error().message;
}

SamplingParams accepted(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  const Status status = params.validate(kLimits);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return params;
}

TEST(SamplingParams, DefaultsAreValid) {
  const SamplingParams params = accepted([](SamplingParams&) {});
  EXPECT_EQ(params.temperature, 1.0);
  EXPECT_FALSE(params.greedy());
}

TEST(SamplingParams, SmallTemperaturesAreRaisedAndZeroIsGreedy) {
  EXPECT_EQ(accepted([](SamplingParams& p) { p.temperature = 0.001; }).temperature, 0.01);
  EXPECT_EQ(accepted([](SamplingParams& p) { p.temperature = 0.01; }).temperature, 0.01);
  const SamplingParams greedy = accepted([](SamplingParams& p) {
    p.temperature = 1e-6;
    p.top_k = 5;
    p.top_p = 0.5;
    p.min_p = 0.5;
  });
  EXPECT_TRUE(greedy.greedy());
  EXPECT_EQ(greedy.top_k, 0);
  EXPECT_EQ(greedy.top_p, 1.0);
  EXPECT_EQ(greedy.min_p, 0.0);
}

TEST(SamplingParams, OffSpellingsAreNormalised) {
  EXPECT_EQ(accepted([](SamplingParams& p) { p.top_k = -1; }).top_k, 0);
  EXPECT_EQ(accepted([](SamplingParams& p) { p.seed = -1; }).seed, std::nullopt);
  EXPECT_EQ(accepted([](SamplingParams& p) { p.seed = 7; }).seed, 7);
  EXPECT_THAT(accepted([](SamplingParams& p) {
                p.logit_bias = {{9, 500.f}, {3, 1.f}, {9, -200.f}};
              }).logit_bias,
              ElementsAre(Pair(3, 1.f), Pair(9, -100.f)));
}

TEST(SamplingParams, NumbersOutOfRangeAreNamed) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const double bad : {-0.1, 2.1, nan, inf}) {
    EXPECT_THAT(refusal([=](SamplingParams& p) { p.temperature = bad; }), HasSubstr("temperature must be in [0, 2]"));
  }
  for (const double bad : {0.0, -1.0, 1.1, nan}) {
    EXPECT_THAT(refusal([=](SamplingParams& p) { p.top_p = bad; }), HasSubstr("top_p must be in (0, 1]"));
  }
  for (const double bad : {-0.1, 1.1, nan}) {
    EXPECT_THAT(refusal([=](SamplingParams& p) { p.min_p = bad; }), HasSubstr("min_p must be in [0, 1]"));
  }
  for (const double bad : {0.0, -1.0, 5e-324, 1e300, nan, inf}) {
    EXPECT_THAT(refusal([=](SamplingParams& p) { p.repetition_penalty = bad; }), HasSubstr("repetition_penalty must"));
  }
  for (const double bad : {-2.1, 2.1, nan}) {
    EXPECT_THAT(refusal([=](SamplingParams& p) { p.presence_penalty = bad; }), HasSubstr("presence_penalty must"));
    EXPECT_THAT(refusal([=](SamplingParams& p) { p.frequency_penalty = bad; }), HasSubstr("frequency_penalty must"));
  }
  EXPECT_THAT(refusal([](SamplingParams& p) { p.top_k = -2; }), HasSubstr("top_k must be -1 or 0 (off)"));
  EXPECT_THAT(refusal([](SamplingParams& p) { p.n = 0; }), HasSubstr("n must be between 1 and 16384, got 0"));
  EXPECT_THAT(refusal([](SamplingParams& p) { p.max_tokens = 0; }), HasSubstr("max_tokens must be at least 1"));
  EXPECT_THAT(refusal([](SamplingParams& p) { p.min_tokens = -1; }), HasSubstr("min_tokens must be at least 0"));
  EXPECT_THAT(refusal([](SamplingParams& p) { p.min_tokens = 17; }), HasSubstr("at most max_tokens (16)"));
  EXPECT_THAT(refusal([](SamplingParams& p) { p.logprobs = -2; }), HasSubstr("logprobs must"));
  EXPECT_THAT(refusal([](SamplingParams& p) { p.logprobs = 21; }), HasSubstr("at most 20 (--max-logprobs), got 21"));
  EXPECT_THAT(refusal([](SamplingParams& p) { p.logprobs = -1; }),
              HasSubstr("needs --max-logprobs -1; ask for at most 20"));
  EXPECT_THAT(refusal([](SamplingParams& p) { p.prompt_logprobs = 21; }), HasSubstr("prompt_logprobs must"));
}

TEST(SamplingParams, AllLogprobsNeedAnUnboundedMaximum) {
  SamplingParams params;
  params.logprobs = -1;
  EXPECT_TRUE(params.validate({.vocab_size = 100, .max_logprobs = -1}).ok());
}

TEST(SamplingParams, SeveralGreedyAnswersAreRefused) {
  EXPECT_THAT(refusal([](SamplingParams& p) {
                p.n = 2;
                p.temperature = 0;
              }),
              HasSubstr("n must be 1 when temperature is 0, got 2"));
}

TEST(SamplingParams, IdsOutsideTheVocabularyAreNamed) {
  for (const int32_t bad : {-1, 100}) {
    EXPECT_THAT(refusal([=](SamplingParams& p) { p.logit_bias = {{bad, 1.f}}; }), HasSubstr("logit_bias"));
    EXPECT_THAT(refusal([=](SamplingParams& p) { p.allowed_token_ids = {{5, bad}}; }), HasSubstr("allowed_token_ids"));
    EXPECT_THAT(refusal([=](SamplingParams& p) { p.stop_token_ids = {bad}; }), HasSubstr("stop_token_ids"));
    EXPECT_THAT(refusal([=](SamplingParams& p) { p.bad_word_ids = {{1, bad}}; }), HasSubstr("bad_words"));
  }
  EXPECT_THAT(refusal([](SamplingParams& p) { p.allowed_token_ids.emplace(); }), HasSubstr("must not be empty"));
  EXPECT_THAT(refusal([](SamplingParams& p) { p.logit_bias = {{1, std::nanf("")}}; }), HasSubstr("not a number"));
}

TEST(SamplingParams, EmptyStringsAreRefused) {
  EXPECT_THAT(refusal([](SamplingParams& p) { p.stop = {"x", ""}; }), HasSubstr("stop must not"));
  EXPECT_THAT(refusal([](SamplingParams& p) { p.bad_words = {""}; }), HasSubstr("bad_words must not"));
}

TEST(SamplingParams, ChildrenCountUpFromTheSeed) {
  EXPECT_EQ(child_seed(40, 0), 40u);
  EXPECT_EQ(child_seed(40, 2), 42u);
  EXPECT_EQ(child_seed(~uint64_t{0}, 1), 0u);
}

TEST(SeedGenerator, RepeatsItsSeriesFromTheSameSeed) {
  SeedGenerator first(7), same(7), other(8), drawn;
  const uint64_t seed = first.next();
  EXPECT_EQ(same.next(), seed);
  EXPECT_NE(first.next(), seed);
  EXPECT_NE(other.next(), seed);
  EXPECT_NE(drawn.next(), drawn.next());
}

}  // namespace
}  // namespace quire::sampling
