// SPDX-License-Identifier: Apache-2.0
// The pool's rules one by one: the null page, the order of the free queue, hits, eviction.
#include "kv/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The node of a text of one token behind `parent`, held by the test.
NodeId node_of(BlockPool& pool, int32_t token, NodeId parent = kRootNode) {
  const int32_t tokens[] = {token};
  return pool.tree().extend(parent, {.hash = {.lo = static_cast<uint64_t>(token), .hi = 0}, .tokens = tokens});
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
  pool.publish(1, node_of(pool, 1));
  pool.publish(2, node_of(pool, 2));
  pool.free(blocks);  // page 3 holds nothing: front; 2 before 1, so that the tail is evicted first
  EXPECT_THAT(pool.free_queue(), ElementsAre(3, 4, 5, 2, 1));
  EXPECT_EQ(pool.num_cached(), 2);
  EXPECT_DOUBLE_EQ(pool.usage(), 0.0);
}

TEST(BlockPool, EvictsLeastRecentlyUsedFreeBlock) {
  BlockPool pool(3);
  const auto blocks = take(pool, 2);
  const NodeId one = node_of(pool, 1), two = node_of(pool, 2);
  pool.publish(1, one);
  pool.publish(2, two);
  pool.free(std::vector<BlockId>{2});
  pool.free(std::vector<BlockId>{1});
  EXPECT_THAT(take(pool, 1), ElementsAre(2));
  EXPECT_EQ(pool.tree().page(two, 0), kNullBlock);
  EXPECT_EQ(pool.tree().page(one, 0), 1);
  EXPECT_EQ(pool.num_evictions(), 1);
}

TEST(BlockPool, AHitLeavesTheQueueAndSurvivesAllocation) {
  BlockPool pool(3);
  const auto blocks = take(pool, 1);
  const NodeId node = node_of(pool, 5);
  pool.publish(1, node);
  pool.free(blocks);
  pool.touch(std::vector<BlockId>{1});
  EXPECT_EQ(pool.ref_count(1), 1);
  EXPECT_THAT(pool.free_queue(), ElementsAre(2));
  pool.touch(std::vector<BlockId>{1});
  EXPECT_EQ(pool.ref_count(1), 2);
  pool.free(std::vector<BlockId>{1});
  EXPECT_THAT(pool.free_queue(), ElementsAre(2));
  EXPECT_EQ(pool.tree().page(node, 0), 1);
}

TEST(BlockPool, ResetsItsCacheOnlyWhenAllPagesAreFree) {
  BlockPool pool(4);
  const auto blocks = take(pool, 2);
  const NodeId node = node_of(pool, 1);
  pool.publish(1, node);
  pool.free(std::vector<BlockId>{1});
  EXPECT_FALSE(pool.reset_prefix_cache());
  EXPECT_EQ(pool.tree().page(node, 0), 1);
  pool.free(std::vector<BlockId>{2});
  EXPECT_TRUE(pool.reset_prefix_cache());
  EXPECT_EQ(pool.tree().page(node, 0), kNullBlock);
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
