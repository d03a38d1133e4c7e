// SPDX-License-Identifier: Apache-2.0
// The KV manager over several cache groups: windows, states, and hits that every group must have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "kv/kv_manager.h"

namespace quire::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;

using Tokens = std::vector<int32_t>;

constexpr CacheGroup kFull4 = {CacheKind::kFull, 4, 0};
constexpr CacheGroup kState4 = {CacheKind::kState, 4, 0};

CacheGroup window(int64_t block_size, int64_t size) {
  return {CacheKind::kWindow, block_size, size};
}

Tokens counting(int n) {
  Tokens tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// A common beginning of n tokens, then others.
Tokens branch(int n, int length) {
  Tokens tokens = counting(length);
  for (size_t i = static_cast<size_t>(n); i < tokens.size(); ++i) tokens[i] += 1000;
  return tokens;
}

// A sequence as the scheduler runs it: in steps of at most `chunk` tokens.
struct GroupedSequence {
  GroupedSequence(KvManager& manager, Tokens text, const std::string& salt = "")
      : kv(manager), table(salt), tokens(std::move(text)) {}
  ~GroupedSequence() { kv.free(table); }

  int64_t admit() {
    const PrefixHit hit = kv.find_prefix(table, tokens);
    EXPECT_TRUE(kv.can_admit(static_cast<int64_t>(tokens.size()), hit));
    computed = hit.num_tokens;
    EXPECT_TRUE(step(static_cast<int64_t>(tokens.size()), hit));
    return hit.num_tokens;
  }
  // One step towards `end`; false when there are no pages.
  bool step(int64_t end, const PrefixHit& hit = {}) {
    if (!kv.allocate_slots(table, end, hit)) return false;
    kv.commit(table, tokens, end);
    computed = end;
    return true;
  }
  int64_t run() {
    const int64_t hit = admit();
    while (computed < static_cast<int64_t>(tokens.size())) EXPECT_TRUE(step(static_cast<int64_t>(tokens.size())));
    return hit;
  }
  void decode(int n) {
    for (int i = 0; i < n; ++i) {
      tokens.push_back(i);
      ASSERT_TRUE(step(computed + 1));
    }
  }

  KvManager& kv;
  BlockTable table;
  Tokens tokens;
  int64_t computed = 0;
};

int64_t serve_once(KvManager& kv, const Tokens& tokens, const std::string& salt = "") {
  return GroupedSequence(kv, tokens, salt).run();
}

TEST(KvGroups, AWindowGivesBackThePagesThatFellOut) {
  KvManager kv({.num_blocks = 20, .enable_prefix_caching = false, .groups = {window(4, 6)}});
  GroupedSequence s(kv, counting(30));
  ASSERT_TRUE(s.step(8));  // the token at 8 sees 3..8
  EXPECT_THAT(s.table.blocks(), ElementsAre(1, 2));
  ASSERT_TRUE(s.step(9));  // at 9: 4..9
  EXPECT_THAT(s.table.blocks(), ElementsAre(0, 2, 3));
  ASSERT_TRUE(s.step(12));  // at 12: 7..12
  EXPECT_THAT(s.table.blocks(), ElementsAre(0, 2, 3));
  ASSERT_TRUE(s.step(30));  // at 30: 25..30
  EXPECT_EQ(kv.pool().num_usable() - kv.pool().num_free(), 2);
  kv.free(s.table);
  EXPECT_EQ(kv.pool().num_free(), 19);
}

TEST(KvGroups, AWindowHitNeedsTheLastPagesAlone) {
  KvManager kv({.num_blocks = 8, .groups = {window(4, 6)}});
  serve_once(kv, counting(17));
  // The five pages of the text are cached, the oldest will go first; whoever continues needs positions 11 to 15.
  BlockTable filler("other");
  ASSERT_TRUE(kv.allocate_slots(filler, 16));  // three empty ones and the first of the text
  kv.free(filler);
  BlockTable table;
  const PrefixHit hit = kv.find_prefix(table, counting(17));
  EXPECT_EQ(hit.num_tokens, 16);
  EXPECT_THAT(hit.blocks(), ElementsAre(0, 0, Gt(0), Gt(0)));
}

TEST(KvGroups, AHitIsWhatAllGroupsHave) {
  KvManager kv({.num_blocks = 60, .groups = {kFull4, window(4, 6)}});
  EXPECT_EQ(serve_once(kv, counting(17)), 0);
  EXPECT_EQ(GroupedSequence(kv, branch(8, 17)).admit(), 8);
  EXPECT_EQ(GroupedSequence(kv, branch(7, 17)).admit(), 4);
  EXPECT_EQ(GroupedSequence(kv, counting(17)).admit(), 16);
}

TEST(KvGroups, PagesOfDifferentLengthHitWhereAllEnd) {
  KvManager kv({.num_blocks = 40, .groups = {kFull4, {CacheKind::kFull, 8, 0}, window(12, 5)}});
  EXPECT_EQ(kv.hit_unit(), 24);
  serve_once(kv, counting(60));
  EXPECT_EQ(GroupedSequence(kv, counting(60)).admit(), 48);
  EXPECT_EQ(GroupedSequence(kv, branch(47, 60)).admit(), 24);
  EXPECT_EQ(GroupedSequence(kv, counting(48)).admit(), 24);
  GroupedSequence s(kv, counting(60));
  s.admit();
  EXPECT_EQ(s.table.blocks(0).size(), 15u);
  EXPECT_EQ(s.table.blocks(1).size(), 8u);
  EXPECT_EQ(s.table.blocks(2).size(), 5u);
}

TEST(KvGroups, AStateIsWrittenInPlaceUntilItIsPublished) {
  KvManager kv({.num_blocks = 20, .groups = {kState4}});
  GroupedSequence s(kv, counting(6));
  (void)kv.find_prefix(s.table, s.tokens);
  ASSERT_TRUE(kv.allocate_slots(s.table, 3));
  EXPECT_EQ(s.table.state_source(0), -1);
  const BlockId first = s.table.state_destination(0);
  kv.commit(s.table, s.tokens, 3);
  ASSERT_TRUE(kv.allocate_slots(s.table, 4));
  EXPECT_EQ(s.table.state_source(0), first);
  EXPECT_EQ(s.table.state_destination(0), first);
  kv.commit(s.table, s.tokens, 4);  // a boundary: the page is a checkpoint now
  EXPECT_TRUE(kv.pool().is_published(first));
  ASSERT_TRUE(kv.allocate_slots(s.table, 5));
  EXPECT_EQ(s.table.state_source(0), first);
  EXPECT_NE(s.table.state_destination(0), first);
  EXPECT_EQ(kv.pool().ref_count(first), 1);
  kv.commit(s.table, s.tokens, 5);
  EXPECT_EQ(kv.pool().ref_count(first), 0);  // in the cache, and free to be evicted
  EXPECT_TRUE(kv.pool().is_published(first));
  EXPECT_EQ(kv.pool().num_usable() - kv.pool().num_free(), 1);
}

TEST(KvGroups, APromptLeavesACheckpointAtItsLastBoundary) {
  KvManager kv({.num_blocks = 30, .groups = {kFull4, kState4}});
  GroupedSequence s(kv, counting(23));
  s.admit();
  EXPECT_EQ(GroupedSequence(kv, counting(23)).admit(), 20);
  EXPECT_EQ(GroupedSequence(kv, counting(21)).admit(), 20);
  EXPECT_EQ(GroupedSequence(kv, counting(20)).admit(), 0);  // 16 tokens of it are in pages, but no state is
}

TEST(KvGroups, WithoutStatesNothingIsCut) {
  KvManager kv({.num_blocks = 30, .groups = {kFull4, window(4, 6)}});
  GroupedSequence s(kv, counting(23));
  s.admit();
  EXPECT_EQ(s.computed, 23);
}

TEST(KvGroups, ChunksAreNotCheckpoints) {
  KvManager kv({.num_blocks = 30, .groups = {kFull4, kState4}});
  GroupedSequence s(kv, counting(23));
  (void)kv.find_prefix(s.table, s.tokens);
  for (const int64_t end : {8, 12, 20, 23}) ASSERT_TRUE(s.step(end));
  EXPECT_EQ(kv.pool().num_cached(), 5 + 1);  // five full pages, one state
}

TEST(KvGroups, AHitFallsBackToTheLastCheckpointThatIsThere) {
  KvManager kv({.num_blocks = 60, .groups = {kFull4, kState4}});
  EXPECT_EQ(serve_once(kv, counting(10)), 0);
  EXPECT_EQ(serve_once(kv, counting(23)), 8);
  // Pages are known up to 16, states at 8 and at 20.
  EXPECT_EQ(serve_once(kv, branch(17, 30)), 8);
  EXPECT_EQ(serve_once(kv, branch(17, 30)), 28);
}

TEST(KvGroups, AHitFallsBackToWhereTheWindowIsStillThere) {
  KvManager kv({.num_blocks = 41, .groups = {kFull4, window(4, 4)}});
  {
    GroupedSequence s(kv, counting(33));  // its windows' pages fall out one by one: they will be evicted in that order
    (void)kv.find_prefix(s.table, s.tokens);
    for (int64_t end = 4; end <= 32; end += 4) ASSERT_TRUE(s.step(end));
  }
  EXPECT_EQ(serve_once(kv, branch(8, 9)), 8);  // the second was used again
  BlockTable filler("other");
  ASSERT_TRUE(kv.allocate_slots(filler, 60));  // the 24 that hold nothing, and the windows' but the second and the last
  EXPECT_EQ(kv.pool().num_evictions(), 6);
  kv.free(filler);
  EXPECT_EQ(GroupedSequence(kv, branch(21, 33)).admit(), 8);
  EXPECT_EQ(GroupedSequence(kv, counting(33)).admit(), 32);
}

TEST(KvGroups, AJunctionIsForgottenWithThePagesThatMadeIt) {
  KvManager kv({.num_blocks = 60, .groups = {kFull4, kState4}});
  serve_once(kv, counting(23));
  GroupedSequence s(kv, branch(17, 30));
  (void)kv.find_prefix(s.table, s.tokens);
  ASSERT_TRUE(kv.allocate_slots(s.table, 30));
  EXPECT_THAT(s.table.state_ends(), ElementsAre(16, 28, 30));
  kv.free(s.table);
  ASSERT_TRUE(kv.reset_prefix_cache());
  (void)kv.find_prefix(s.table, s.tokens);
  ASSERT_TRUE(kv.allocate_slots(s.table, 30));
  EXPECT_THAT(s.table.state_ends(), ElementsAre(28, 30));
}

TEST(KvGroups, DecodeLeavesACheckpointAtEachBoundary) {
  KvManager kv({.num_blocks = 30, .groups = {kFull4, kState4}});
  Tokens text;
  {
    GroupedSequence s(kv, counting(6));
    s.run();
    s.decode(7);  // 13 tokens: boundaries 4, 8, 12
    text = s.tokens;
  }
  for (const int64_t end : {13, 9, 5}) {
    GroupedSequence s(kv, Tokens(text.begin(), text.begin() + end));
    EXPECT_EQ(s.admit(), end - 1);
  }
}

TEST(KvGroups, AJunctionGetsACheckpointForTheThirdRequest) {
  KvManager kv({.num_blocks = 60, .groups = {kFull4, kState4}});
  EXPECT_EQ(serve_once(kv, branch(14, 31)), 0);
  GroupedSequence second(kv, branch(14, 31));
  second.tokens[20] = 7;  // shares 20 tokens, of which whole pages hold 20
  EXPECT_EQ(second.admit(), 0);
  GroupedSequence third(kv, branch(14, 31));
  third.tokens[20] = 8;
  EXPECT_EQ(third.admit(), 20);
}

TEST(KvGroups, EveryStateGroupMustHaveItsCheckpoint) {
  // Ten usable pages: 2 full and 2 + 2 states while it runs. Then the pool is filled until one checkpoint is gone.
  KvManager kv({.num_blocks = 11, .groups = {kFull4, kState4, kState4}});
  serve_once(kv, counting(6));
  EXPECT_EQ(kv.pool().num_cached(), 3);
  BlockTable filler("other");
  ASSERT_TRUE(kv.allocate_slots(filler, 6 * 4));  // 6 pages and 2 states: one of the cached pages goes
  EXPECT_EQ(kv.pool().num_cached(), 2);
  kv.free(filler);
  EXPECT_EQ(GroupedSequence(kv, counting(6)).admit(), 0);
}

TEST(KvGroups, APreemptedHybridComesBackBehindItsCheckpoint) {
  KvManager kv({.num_blocks = 30, .groups = {kFull4, kState4}});
  GroupedSequence s(kv, counting(10));
  s.run();
  s.decode(3);  // 13
  kv.free(s.table);
  EXPECT_EQ(kv.usage(), 0.0);
  EXPECT_EQ(s.admit(), 12);
}

TEST(KvGroups, ASequenceThatDiesBeforeItsStepGivesBackBothStates) {
  KvManager kv({.num_blocks = 30, .groups = {kFull4, kState4}});
  GroupedSequence s(kv, counting(9));
  (void)kv.find_prefix(s.table, s.tokens);
  ASSERT_TRUE(s.step(8));
  ASSERT_TRUE(kv.allocate_slots(s.table, 9));
  EXPECT_NE(s.table.state_source(1), s.table.state_destination(1));
  EXPECT_EQ(kv.pool().num_usable() - kv.pool().num_free(), 3 + 2);
  kv.free(s.table);
  EXPECT_EQ(kv.pool().num_usable(), kv.pool().num_free());
}

TEST(KvGroups, AStepWithDraftsKeepsTheStateAfterTheLastAcceptedToken) {
  KvManager kv({.num_blocks = 20, .groups = {kFull4, kState4}});
  const auto used = [&] { return kv.pool().num_usable() - kv.pool().num_free(); };
  GroupedSequence s(kv, counting(12));
  (void)kv.find_prefix(s.table, std::span(s.tokens).first(6));
  ASSERT_TRUE(s.step(4));
  ASSERT_TRUE(s.step(6));
  ASSERT_TRUE(kv.allocate_slots(s.table, 7));
  ASSERT_TRUE(kv.allocate_drafts(s.table, 7, 3));
  EXPECT_EQ(used(), 3 + 1 + 3);
  std::vector<BlockId> states;
  for (size_t drafts = 0; drafts <= 3; ++drafts) states.push_back(s.table.state_after(1, drafts));
  EXPECT_EQ(s.table.state_source(1), states[0]);
  kv.commit(s.table, s.tokens, 9);  // two of three are right, and the first of them ends a unit
  kv.trim(s.table, 10);
  EXPECT_EQ(s.table.state_source(1), states[2]);
  EXPECT_TRUE(kv.pool().is_published(states[1]));
  EXPECT_FALSE(kv.pool().is_published(states[3]));
  EXPECT_EQ(used(), 3 + 1);
  EXPECT_EQ(GroupedSequence(kv, counting(12)).admit(), 8);

  ASSERT_TRUE(kv.allocate_slots(s.table, 10));
  EXPECT_FALSE(kv.allocate_drafts(s.table, 10, 100)) << "there are not so many pages";
  ASSERT_TRUE(kv.allocate_drafts(s.table, 10, 2));
  kv.commit(s.table, s.tokens, 10);  // none is right
  EXPECT_EQ(s.table.state_source(1), states[2]) << "written in place";
  EXPECT_EQ(used(), 3 + 1);
  ASSERT_TRUE(kv.allocate_slots(s.table, 11));
  ASSERT_TRUE(kv.allocate_drafts(s.table, 11, 2));
  kv.free(s.table);
  EXPECT_EQ(used(), 0);
}

TEST(KvGroups, ARefusedStepChangesNothing) {
  KvManager kv({.num_blocks = 4, .groups = {kFull4, kState4}});
  GroupedSequence s(kv, counting(9));
  (void)kv.find_prefix(s.table, s.tokens);
  ASSERT_TRUE(s.step(8));                       // two pages and a state: all
  EXPECT_FALSE(kv.allocate_slots(s.table, 9));  // a page and a fresh state
  EXPECT_EQ(s.table.blocks(0).size(), 2u);
  EXPECT_EQ(kv.pool().num_free(), 0);
  EXPECT_EQ(kv.pages_for(9), 3 + 2);
}

TEST(KvGroups, AdmissionCountsEveryGroup) {
  KvManager kv({.num_blocks = 12, .groups = {kFull4, kState4, window(4, 6)}, .max_step_tokens = 4});
  // 24 tokens: 6 full pages, 2 states, and 4 + 5 positions that touch up to 3 pages.
  EXPECT_EQ(kv.pages_for(24), 6 + 2 + 3);
  EXPECT_TRUE(kv.can_admit(24, {}));
  EXPECT_FALSE(kv.can_admit(25, {}));
  EXPECT_EQ(kv.pages_for(4), 1 + 1 + 1);
}

TEST(KvGroups, WithoutPrefixCachingNothingIsCutAndNothingKept) {
  KvManager kv({.num_blocks = 30, .enable_prefix_caching = false, .groups = {kFull4, kState4}});
  GroupedSequence s(kv, counting(23));
  s.admit();
  EXPECT_EQ(s.computed, 23);
  s.decode(9);
  EXPECT_EQ(kv.pool().num_usable() - kv.pool().num_free(), 8 + 1);
  EXPECT_EQ(kv.pages_for(32), 8 + 1);
}

TEST(KvGroups, ASequenceThatMayNotReadTheCacheStillWritesIt) {
  KvManager kv({.num_blocks = 30, .groups = {kFull4, kState4}});
  serve_once(kv, counting(10));
  GroupedSequence s(kv, counting(14));
  const PrefixHit none = kv.find_prefix(s.table, s.tokens, false);
  EXPECT_EQ(none.num_tokens, 0);
  EXPECT_EQ(none.queried_tokens, 0);
  ASSERT_TRUE(s.step(14));
  EXPECT_EQ(GroupedSequence(kv, counting(14)).admit(), 12);
}

TEST(KvGroups, TheSaltSeparatesStatesToo) {
  KvManager kv({.num_blocks = 30, .groups = {kState4}}, PrefixHasher::colliding(0));
  serve_once(kv, counting(9), "alice");
  EXPECT_EQ(GroupedSequence(kv, counting(9), "bob").admit(), 0);
  EXPECT_EQ(GroupedSequence(kv, counting(9), "alice").admit(), 8);
}

TEST(KvGroups, ResetForgetsEveryGroup) {
  KvManager kv({.num_blocks = 30, .groups = {kFull4, kState4, window(4, 6)}});
  {
    GroupedSequence s(kv, counting(9));
    s.run();
    EXPECT_FALSE(kv.reset_prefix_cache());
  }
  EXPECT_TRUE(kv.reset_prefix_cache());
  EXPECT_EQ(kv.pool().tree().num_nodes(), 0);
  EXPECT_EQ(GroupedSequence(kv, counting(9)).admit(), 0);
}

TEST(KvGroupsDeathTest, AStepWithoutRoomForItsStateIsCaught) {
  KvManager kv({.num_blocks = 30, .groups = {kState4}});
  BlockTable table;
  ASSERT_TRUE(kv.allocate_slots(table, 2));
  kv.commit(table, counting(3), 2);
  EXPECT_DEATH((void)table.state_destination(0), "allocate_slots was not called");
  EXPECT_DEATH(kv.commit(table, counting(3), 3), "allocate_slots was not called");
  kv.free(table);
}

}  // namespace
}  // namespace quire::kv
