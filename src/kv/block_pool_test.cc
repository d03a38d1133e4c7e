// SPDX-License-Identifier: Apache-2.0
// The pool's rules one by one: the null page, the order of the free queue, hits, eviction.
#include "kv/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Tokens = std::vector<int32_t>;

BlockHash hash_of(uint64_t n) {
  return {.lo = n, .hi = 0};
}

std::vector<BlockId> take(BlockPool& pool, int64_t n) {
  std::vector<BlockId> blocks;
  EXPECT_TRUE(pool.allocate(n, blocks));
  return blocks;
}

TEST(BlockPool, NeverHandsOutTheNullPage) {
  BlockPool pool(4);
  EXPECT_EQ(pool.num_usable(), 3);
  EXPECT_THAT(take(pool, 3), ElementsAre(1, 2, 3));
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_DOUBLE_EQ(pool.usage(), 1.0);
}

TEST(BlockPool, AllocationIsAllOrNothing) {
  BlockPool pool(4);
  std::vector<BlockId> blocks = {7};
  EXPECT_FALSE(pool.allocate(4, blocks));
  EXPECT_THAT(blocks, ElementsAre(7));
  EXPECT_THAT(pool.free_queue(), ElementsAre(1, 2, 3));
  EXPECT_TRUE(pool.allocate(0, blocks));
}

TEST(BlockPool, FreedPagesWithoutContentGoToTheFront) {
  BlockPool pool(6);
  const auto blocks = take(pool, 3);
  pool.free(blocks);
  EXPECT_THAT(pool.free_queue(), ElementsAre(1, 2, 3, 4, 5));
}

TEST(BlockPool, FreedCachedPagesGoToTheBackTailFirst) {
  BlockPool pool(6);
  const auto blocks = take(pool, 3);
  const ContentId first = pool.publish(1, {.hash = hash_of(1), .tokens = Tokens{1}});
  pool.publish(2, {.hash = hash_of(2), .parent = first, .tokens = Tokens{2}});
  pool.free(blocks);  // page 3 holds nothing: front; 2 before 1, so that the tail is evicted first
  EXPECT_THAT(pool.free_queue(), ElementsAre(3, 4, 5, 2, 1));
  EXPECT_EQ(pool.num_cached(), 2);
  EXPECT_DOUBLE_EQ(pool.usage(), 0.0);
}

TEST(BlockPool, EvictsLeastRecentlyUsedFreeBlock) {
  BlockPool pool(3);
  const auto blocks = take(pool, 2);
  const Tokens one_token = {1}, two_token = {2};
  const PageKey one = {.hash = hash_of(1), .tokens = one_token};
  const PageKey two = {.hash = hash_of(2), .tokens = two_token};
  pool.publish(1, one);
  pool.publish(2, two);
  pool.free(std::vector<BlockId>{2});
  pool.free(std::vector<BlockId>{1});
  EXPECT_THAT(take(pool, 1), ElementsAre(2));
  EXPECT_EQ(pool.find(two), kNullBlock);
  EXPECT_EQ(pool.find(one), 1);
  EXPECT_EQ(pool.num_evictions(), 1);
}

TEST(BlockPool, AHitLeavesTheQueueAndSurvivesAllocation) {
  BlockPool pool(3);
  const auto blocks = take(pool, 1);
  const Tokens tokens = {5};
  const PageKey key = {.hash = hash_of(1), .tokens = tokens};
  pool.publish(1, key);
  pool.free(blocks);
  pool.touch(std::vector<BlockId>{1});
  EXPECT_EQ(pool.ref_count(1), 1);
  EXPECT_THAT(pool.free_queue(), ElementsAre(2));
  pool.touch(std::vector<BlockId>{1});
  EXPECT_EQ(pool.ref_count(1), 2);
  pool.free(std::vector<BlockId>{1});
  EXPECT_THAT(pool.free_queue(), ElementsAre(2));
  EXPECT_EQ(pool.find(key), 1);
}

TEST(BlockPool, ACollisionIsAMissAndNeverAWrongPage) {
  BlockPool pool(5);
  take(pool, 3);
  const Tokens a = {1, 2}, b = {3, 4};
  const ContentId content_a = pool.publish(1, {.hash = hash_of(9), .tokens = a});
  const PageKey other_tokens = {.hash = hash_of(9), .tokens = b};
  const PageKey other_extra = {.hash = hash_of(9), .tokens = a, .extra = "salt"};
  const PageKey other_parent = {.hash = hash_of(9), .parent = content_a, .tokens = a};
  EXPECT_EQ(pool.find(other_tokens), kNullBlock);
  EXPECT_EQ(pool.find(other_extra), kNullBlock);
  EXPECT_EQ(pool.find(other_parent), kNullBlock);
  const ContentId content_b = pool.publish(2, other_tokens);
  EXPECT_NE(content_a, content_b);
  EXPECT_EQ(pool.find(other_tokens), 2);
  EXPECT_EQ(pool.find({.hash = hash_of(9), .tokens = a}), 1);
}

TEST(BlockPool, PagesOfTheSameContentShareItsIdentity) {
  BlockPool pool(5);
  take(pool, 3);
  const Tokens head = {1}, tail = {2};
  const ContentId first = pool.publish(1, {.hash = hash_of(1), .tokens = head});
  const ContentId second = pool.publish(2, {.hash = hash_of(1), .tokens = head});
  EXPECT_EQ(first, second);
  pool.publish(3, {.hash = hash_of(2), .parent = second, .tokens = tail});
  EXPECT_EQ(pool.find({.hash = hash_of(2), .parent = first, .tokens = tail}), 3);
  EXPECT_EQ(pool.find({.hash = hash_of(1), .tokens = head}), 1);  // the oldest
}

TEST(BlockPool, AContentIdIsNeverUsedAgain) {
  BlockPool pool(2);
  const Tokens tokens = {1};
  const PageKey key = {.hash = hash_of(1), .tokens = tokens};
  const auto blocks = take(pool, 1);
  const ContentId before = pool.publish(1, key);
  pool.free(blocks);
  take(pool, 1);  // evicts
  EXPECT_NE(pool.publish(1, key), before);
}

TEST(BlockPool, ResetsItsCacheOnlyWhenAllPagesAreFree) {
  BlockPool pool(4);
  const auto blocks = take(pool, 2);
  const Tokens tokens = {1};
  const PageKey key = {.hash = hash_of(1), .tokens = tokens};
  pool.publish(1, key);
  pool.free(std::vector<BlockId>{1});
  EXPECT_FALSE(pool.reset_prefix_cache());
  EXPECT_EQ(pool.find(key), 1);
  pool.free(std::vector<BlockId>{2});
  EXPECT_TRUE(pool.reset_prefix_cache());
  EXPECT_EQ(pool.find(key), kNullBlock);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.num_free(), 3);
}

TEST(BlockPool, NullPagesInATableAreNotFreed) {
  BlockPool pool(3);
  const auto blocks = take(pool, 1);
  pool.free(std::vector<BlockId>{kNullBlock, blocks[0], kNullBlock});
  EXPECT_THAT(pool.free_queue(), ElementsAre(1, 2));
}

TEST(BlockPool, APoolOfTheNullPageAloneIsEmpty) {
  BlockPool pool(1);
  std::vector<BlockId> blocks;
  EXPECT_FALSE(pool.allocate(1, blocks));
  EXPECT_THAT(pool.free_queue(), IsEmpty());
  EXPECT_DOUBLE_EQ(pool.usage(), 0.0);
}

TEST(BlockPoolDeathTest, FreeingTwiceIsCaught) {
  BlockPool pool(3);
  const auto blocks = take(pool, 1);
  pool.free(blocks);
  EXPECT_DEATH(pool.free(blocks), "freed more often");
}

}  // namespace
}  // namespace quire::kv
