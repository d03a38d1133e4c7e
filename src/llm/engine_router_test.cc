// SPDX-License-Identifier: Apache-2.0
// Tests of the rule by which requests find their engine.
#include "llm/engine_router.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quire::llm {
namespace {

constexpr int64_t kBlock = 16;

std::vector<int32_t> text_of(int32_t first, size_t tokens) {
  std::vector<int32_t> out(tokens);
  std::iota(out.begin(), out.end(), first);
  return out;
}

class EngineRouterTest : public testing::Test {
 protected:
  std::vector<EngineRouter::Chain> chains(std::vector<int32_t> prompt, std::string_view key = "") {
    return {router_.hashes(prompt, key)};
  }
  size_t choose(std::vector<int32_t> prompt, std::vector<int64_t> loads) {
    return router_.rank(chains(std::move(prompt)), loads)[0];
  }
  void send(size_t engine, std::vector<int32_t> prompt) { router_.record(engine, chains(std::move(prompt))); }

  EngineRouter router_{2, kBlock, 1000};
};

TEST_F(EngineRouterTest, TakesTurnsWithoutPrefixAndLoad) {
  EXPECT_EQ(choose(text_of(0, 64), {0, 0}), 0U);
  EXPECT_EQ(choose(text_of(100, 64), {0, 0}), 1U);
  EXPECT_EQ(choose(text_of(200, 64), {0, 0}), 0U);
}

TEST_F(EngineRouterTest, TakesTheLeastLoadedWithoutPrefix) {
  EXPECT_EQ(choose(text_of(0, 64), {3, 2}), 1U);
  EXPECT_EQ(choose(text_of(0, 64), {2, 3}), 0U);
  EXPECT_EQ(choose({}, {2, 1}), 1U);
}

TEST_F(EngineRouterTest, TakesTheLongestPrefix) {
  send(0, text_of(0, 64));
  send(1, text_of(0, 256));
  EXPECT_EQ(choose(text_of(0, 300), {0, 0}), 1U);
  EXPECT_EQ(choose(text_of(0, 300), {0, 2}), 1U);  // 192 tokens more, two sequences more
  EXPECT_EQ(choose(text_of(0, 300), {0, 4}), 0U);  // four sequences more: overloaded
}

TEST_F(EngineRouterTest, AnEqualScoreGoesToTheLeastLoaded) {
  send(0, text_of(0, EngineRouter::kLoadTokens));
  EXPECT_EQ(choose(text_of(0, EngineRouter::kLoadTokens), {1, 0}), 1U);
  EXPECT_EQ(choose(text_of(0, EngineRouter::kLoadTokens), {0, 0}), 0U);
}

TEST_F(EngineRouterTest, OverloadIsComparedWithTheLeastLoaded) {
  send(0, text_of(0, 8 * EngineRouter::kLoadTokens));
  EXPECT_EQ(choose(text_of(0, 2000), {7, 0}), 0U);
  EXPECT_EQ(choose(text_of(0, 2000), {9, 0}), 1U);
  EXPECT_EQ(choose(text_of(0, 2000), {107, 100}), 0U);
}

TEST_F(EngineRouterTest, WhatOneEngineHasComputedTheOthersMayCopy) {
  const auto computed = std::make_shared<std::atomic<bool>>(false);
  router_.record(0, chains(text_of(0, 512)), computed);
  EXPECT_EQ(choose(text_of(0, 600), {7, 0}), 0U);  // it is being computed there
  *computed = true;
  EXPECT_EQ(choose(text_of(0, 600), {7, 0}), 1U);
  EXPECT_EQ(choose(text_of(0, 600), {1, 1}), 0U);  // a copy is not made without need
  EXPECT_EQ(choose(text_of(0, 600), {1, 0}), 1U);  // 64 tokens are counted less: as much as a sequence
  EXPECT_EQ(choose(text_of(0, 1100), {0, 0}), 0U);
  send(1, text_of(0, 512));  // being computed there does not make it unknown
  EXPECT_EQ(choose(text_of(0, 600), {9, 8}), 1U);
}

TEST_F(EngineRouterTest, APartOfABlockIsNoPrefix) {
  send(1, text_of(0, kBlock - 1));
  EXPECT_EQ(router_.known_tokens(1, chains(text_of(0, kBlock - 1))), 0);
  send(1, text_of(0, 2 * kBlock + 5));
  EXPECT_EQ(router_.known_tokens(1, chains(text_of(0, 100))), 2 * kBlock);
}

TEST_F(EngineRouterTest, APrefixIsNotFoundBehindAnotherBeginning) {
  send(0, text_of(0, 64));
  std::vector<int32_t> other = text_of(0, 64);
  other[0] = 9999;
  EXPECT_EQ(router_.known_tokens(0, chains(other)), 0);
}

TEST_F(EngineRouterTest, KeysSeparatePrefixes) {
  router_.record(0, chains(text_of(0, 64), "salt"));
  EXPECT_EQ(router_.known_tokens(0, chains(text_of(0, 64))), 0);
  EXPECT_EQ(router_.known_tokens(0, chains(text_of(0, 64), "salt")), 64);
}

TEST_F(EngineRouterTest, ForgetsAfterAReset) {
  send(0, text_of(0, 64));
  router_.forget();
  EXPECT_EQ(router_.known_tokens(0, chains(text_of(0, 64))), 0);
}

TEST(EngineRouter, ForgetsTheLongestUnusedEndsFirst) {
  EngineRouter router(2, kBlock, 4);
  const auto chain = [&](int32_t first, size_t tokens) {
    return std::vector<EngineRouter::Chain>{router.hashes(text_of(first, tokens), "")};
  };
  router.record(0, chain(0, 3 * kBlock));
  router.record(0, chain(1000, 2 * kBlock));
  EXPECT_EQ(router.known_tokens(0, chain(0, 3 * kBlock)), 2 * kBlock);
  EXPECT_EQ(router.known_tokens(0, chain(1000, 2 * kBlock)), 2 * kBlock);
  router.record(0, chain(0, 100 * kBlock));  // longer than all that is remembered
  EXPECT_EQ(router.known_tokens(0, chain(0, 100 * kBlock)), 4 * kBlock);
  EXPECT_EQ(router.known_tokens(0, chain(1000, 2 * kBlock)), 0);
}

TEST(EngineRouter, WithoutPrefixCachesLoadAloneDecides) {
  EngineRouter router(3, kBlock, 0);
  const std::vector<EngineRouter::Chain> prompt{router.hashes(text_of(0, 640), "")};
  router.record(2, prompt);
  EXPECT_EQ(router.rank(prompt, std::vector<int64_t>{1, 0, 2}), (std::vector<size_t>{1, 0, 2}));
}

TEST(EngineRouter, AllPromptsOfARequestCount) {
  EngineRouter router(2, kBlock, 100);
  const auto chain = [&](int32_t first) { return router.hashes(text_of(first, 64), ""); };
  router.record(0, std::vector<EngineRouter::Chain>{chain(0)});
  router.record(1, std::vector<EngineRouter::Chain>{chain(1000), chain(2000)});
  EXPECT_EQ(
      router.rank(std::vector<EngineRouter::Chain>{chain(0), chain(1000), chain(2000)}, std::vector<int64_t>{0, 0})[0],
      1U);
}

}  // namespace
}  // namespace quire::llm
