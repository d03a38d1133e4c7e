// SPDX-License-Identifier: Apache-2.0
// Checkpoints of recurrent states: hits that end inside pages, and which checkpoints stay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "kv/kv_manager.h"

namespace quire::kv {
namespace {

using ::testing::ElementsAre;

constexpr CacheGroup kPages32 = {CacheKind::kFull, 32, 0};
constexpr CacheGroup kStates4 = {CacheKind::kState, 4, 0};

// A common beginning of n tokens, then others.
std::vector<int32_t> text_of(int n, int length, int32_t other = 1000) {
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  std::iota(tokens.begin(), tokens.end(), 0);
  for (size_t i = static_cast<size_t>(n); i < tokens.size(); ++i) tokens[i] += other;
  return tokens;
}

struct Copied {
  BlockId from, to;
  bool operator==(const Copied&) const = default;
};

struct CheckpointTest : ::testing::Test {
  KvManager& manager(KvManagerOptions options) {
    kv = std::make_unique<KvManager>(options);
    kv->set_copy([this](BlockId from, BlockId to, size_t) { copies.push_back({from, to}); });
    return *kv;
  }
  std::unique_ptr<KvManager> kv;
  std::vector<Copied> copies;
};

struct CheckpointedSequence {
  CheckpointedSequence(KvManager& manager, std::vector<int32_t> text) : kv(manager), tokens(std::move(text)) {}
  ~CheckpointedSequence() { kv.free(table); }
  // Computes the prompt in one step; returns the length of the hit.
  int64_t run() {
    const PrefixHit hit = kv.find_prefix(table, tokens);
    EXPECT_TRUE(kv.allocate_slots(table, std::ssize(tokens), hit));
    ends.assign(table.state_ends().begin(), table.state_ends().end());
    kv.commit(table, tokens, std::ssize(tokens));
    return hit.num_tokens;
  }
  void decode(int n) {
    for (int i = 0; i < n; ++i) {
      tokens.push_back(7000 + i);
      ASSERT_TRUE(kv.allocate_slots(table, std::ssize(tokens)));
      kv.commit(table, tokens, std::ssize(tokens));
    }
  }
  KvManager& kv;
  BlockTable table;
  std::vector<int32_t> tokens;
  std::vector<int64_t> ends;
};

int64_t hit_of(KvManager& kv, const std::vector<int32_t>& tokens) {
  BlockTable table;
  return kv.find_prefix(table, tokens).num_tokens;
}

TEST_F(CheckpointTest, AHitEndsInsideAPageOfASequenceThatRuns) {
  manager({.num_blocks = 40, .groups = {kPages32, kStates4}});
  CheckpointedSequence first(*kv, text_of(27, 27));
  EXPECT_EQ(first.run(), 0);
  EXPECT_THAT(first.ends, ElementsAre(24, 27));
  CheckpointedSequence second(*kv, text_of(25, 40));
  EXPECT_EQ(second.run(), 24);
  EXPECT_EQ(second.table.num_published(0), 1) << "its own page, which is full now";
  EXPECT_THAT(copies, ElementsAre(Copied{first.table.blocks()[0], second.table.blocks()[0]}));
}

TEST_F(CheckpointTest, TheNextTurnGoesOnInThePageOfTheLastOne) {
  manager({.num_blocks = 40, .groups = {kPages32, kStates4}});
  BlockId page = kNullBlock;
  std::vector<int32_t> text;
  {
    CheckpointedSequence turn(*kv, text_of(9, 9));
    turn.run();
    turn.decode(8);
    page = turn.table.blocks()[0];
    text = turn.tokens;
  }
  for (int32_t token = 0; token < 6; ++token) text.push_back(token);
  CheckpointedSequence next(*kv, text);
  EXPECT_EQ(next.run(), 16) << "the last multiple of 4 in 17 tokens";
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(next.table.blocks()[0], page);
}

TEST_F(CheckpointTest, APageWhoseRestIsOfUseIsCopied) {
  manager({.num_blocks = 40, .groups = {kPages32, kStates4}});
  { CheckpointedSequence(*kv, text_of(13, 13)).run(); }
  { CheckpointedSequence(*kv, text_of(13, 40)).run(); }  // goes on in the page, and fills it
  EXPECT_TRUE(copies.empty());
  CheckpointedSequence other(*kv, text_of(12, 20));
  EXPECT_EQ(other.run(), 12);
  EXPECT_EQ(copies.size(), 1u);
  EXPECT_EQ(hit_of(*kv, text_of(13, 40)), 36) << "all of the other is still there";
}

TEST_F(CheckpointTest, WithoutAPageToSpareTheHitTakesThePage) {
  // Three pages: one of attention, and a state that is read beside the one that is written.
  manager({.num_blocks = 4, .groups = {kPages32, kStates4}});
  { CheckpointedSequence(*kv, text_of(9, 9)).run(); }
  CheckpointedSequence next(*kv, text_of(9, 30));
  EXPECT_EQ(next.run(), 8);
  EXPECT_TRUE(copies.empty());
}

TEST_F(CheckpointTest, DecodeKeepsItsNewestCheckpointAndThoseAtPages) {
  manager({.num_blocks = 60, .groups = {kPages32, kStates4}});
  CheckpointedSequence s(*kv, text_of(6, 6));
  s.run();
  s.decode(50);  // 56 tokens
  std::vector<int64_t> found;
  for (int64_t n = 4; n < 60; n += 4) {
    std::vector<int32_t> text(s.tokens.begin(), s.tokens.begin() + std::min<int64_t>(n, 56));
    text.push_back(1);
    if (hit_of(*kv, text) == n) found.push_back(n);
  }
  EXPECT_THAT(found, ElementsAre(4, 32, 56));
}

TEST_F(CheckpointTest, APromptLeavesCheckpointsAtIntervals) {
  manager({.num_blocks = 100, .groups = {kPages32, kStates4}, .checkpoint_interval = 10});
  CheckpointedSequence first(*kv, text_of(50, 50));
  first.run();
  EXPECT_THAT(first.ends, ElementsAre(12, 24, 36, 48, 50)) << "the next multiple of 4";
  EXPECT_EQ(hit_of(*kv, text_of(30, 50)), 24);
}

TEST_F(CheckpointTest, IntervalsGrowWithTheirDistanceFromTheBeginning) {
  manager({.num_blocks = 2000, .groups = {kPages32, kStates4}, .checkpoint_interval = -1});
  CheckpointedSequence first(*kv, text_of(5000, 5000));
  first.run();
  for (int64_t common = 64; common < 5000; common += 13) {
    const int64_t hit = hit_of(*kv, text_of(static_cast<int>(common), 5000));
    EXPECT_GE(hit, common - std::max<int64_t>(67, common / 8)) << common;
  }
  EXPECT_LT(first.ends.size(), 45u);
}

TEST_F(CheckpointTest, CheckpointsAtIntervalsHaveABudget) {
  manager({.num_blocks = 101, .groups = {kPages32, kStates4, kStates4}, .checkpoint_interval = -1});
  {
    CheckpointedSequence first(*kv, text_of(900, 900));
    first.run();
    // A quarter of 100 pages, of which a prompt gets a half: six checkpoints of two pages, besides that of its end.
    EXPECT_THAT(first.ends, ElementsAre(256, 512, 768, 896, 900));
  }
  manager({.num_blocks = 101, .groups = {kPages32, kStates4, kStates4}, .checkpoint_interval = 4});
  int64_t most = 0;
  for (int i = 0; i < 5; ++i) {
    const std::vector<int32_t> text = text_of(0, 59, 100 * i);
    CheckpointedSequence(*kv, text).run();
    int64_t states = 0;
    for (BlockId page = 1; page < 101; ++page) {
      states += kv->pool().is_published(page) && kv->pool().tree().group(page) > 0 ? 1 : 0;
    }
    most = std::max(most, states);
    EXPECT_EQ(hit_of(*kv, text), 56);
  }
  EXPECT_LE(most, 25 + 5 * 2) << "a quarter, and those of the prompts' ends";
}

TEST_F(CheckpointTest, ACheckpointThatWasOfUseStays) {
  manager({.num_blocks = 101, .groups = {kPages32, kStates4}, .checkpoint_interval = 4});
  { CheckpointedSequence(*kv, text_of(60, 60)).run(); }
  { EXPECT_EQ(CheckpointedSequence(*kv, text_of(20, 30)).run(), 20); }
  for (int i = 1; i < 4; ++i) CheckpointedSequence(*kv, text_of(0, 60, 100 * i)).run();
  EXPECT_EQ(hit_of(*kv, text_of(20, 22)), 20);
  EXPECT_EQ(hit_of(*kv, text_of(16, 18)), 0) << "others made room for newer ones";
}

TEST_F(CheckpointTest, WithFewFreePagesAStepMakesNoCheckpoints) {
  manager({.num_blocks = 9, .groups = {kPages32, kStates4}, .checkpoint_interval = 4});
  CheckpointedSequence first(*kv, text_of(30, 30));
  first.run();
  EXPECT_EQ(first.ends.back(), 30);
  EXPECT_LT(first.ends.size(), 7u);
  EXPECT_EQ(kv->usage(), 2.0 / 8);
}

}  // namespace
}  // namespace quire::kv
