// SPDX-License-Identifier: Apache-2.0
// The map of a pool's pages: states, groups, owners, the bound on its size, and what single pages hold.
#include "kv/page_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace quire::kv {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using MapTokens = std::vector<int32_t>;
constexpr CacheGroup kPages4{CacheKind::kFull, 4, 0};

MapTokens ascending(int n, int start = 0) {
  MapTokens tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), start);
  return tokens;
}

// A sequence that computes its tokens in one step.
struct MappedSequence {
  MappedSequence(KvManager& kv_in, MapTokens tokens_in) : kv(kv_in), tokens(std::move(tokens_in)) {
    const PrefixHit hit = kv.find_prefix(table, tokens);
    const auto size = static_cast<int64_t>(tokens.size());
    EXPECT_TRUE(kv.allocate_slots(table, size, hit));
    kv.commit(table, tokens, size);
  }
  ~MappedSequence() { kv.free(table); }
  PageHolder view() const { return {&table, tokens, static_cast<int64_t>(tokens.size())}; }

  KvManager& kv;
  MapTokens tokens;
  BlockTable table;
};

PageCell cell_of(const PageMap& map, BlockId page) {
  return map.cells[static_cast<size_t>(page - 1)];
}

TEST(PageMap, TellsUsedSharedCachedAndFreePagesApart) {
  KvManager kv({.num_blocks = 11, .groups = {kPages4}});
  std::vector<BlockId> cached;
  {
    const MappedSequence gone(kv, ascending(9, 100));
    cached.assign(gone.table.blocks().begin(), gone.table.blocks().end());
  }
  const MappedSequence first(kv, ascending(10));
  const MappedSequence second(kv, ascending(9));
  const PageHolder holders[] = {first.view(), second.view()};
  const PageMap map = map_pages(kv, holders, 100);
  ASSERT_EQ(map.num_pages, 10);
  ASSERT_EQ(map.cells.size(), 10u);
  EXPECT_EQ(map.pages_per_cell, 1);
  for (const int i : {0, 1}) {
    EXPECT_EQ(cell_of(map, cached[static_cast<size_t>(i)]), (PageCell{PageState::kCached, 0, 0})) << i;
    EXPECT_EQ(cell_of(map, first.table.blocks()[static_cast<size_t>(i)]), (PageCell{PageState::kShared, 0, 1})) << i;
  }
  EXPECT_EQ(cell_of(map, first.table.blocks()[2]), (PageCell{PageState::kUsed, 0, 1}));
  EXPECT_EQ(cell_of(map, second.table.blocks()[2]), (PageCell{PageState::kUsed, 0, 2}));
  ASSERT_EQ(map.groups.size(), 1u);
  EXPECT_EQ(map.groups[0].cached, 2);
  EXPECT_EQ(map.groups[0].shared, 2);
  EXPECT_EQ(map.groups[0].used, 2);
  EXPECT_EQ(map.free, 4);
}

TEST(PageMap, HasAtMostSoManyCells) {
  for (const int32_t pages : {1, 7, 8, 9, 1000, 100'000}) {
    KvManager kv({.num_blocks = pages + 1, .groups = {kPages4}});
    const PageMap map = map_pages(kv, {}, 8);
    EXPECT_LE(map.cells.size(), 8u) << pages;
    EXPECT_GE(static_cast<int64_t>(map.cells.size()) * map.pages_per_cell, pages);
    EXPECT_LT((static_cast<int64_t>(map.cells.size()) - 1) * map.pages_per_cell, pages);
    EXPECT_THAT(map.cells, Each(PageCell{}));
    EXPECT_EQ(map.free, pages);
  }
  KvManager empty({.num_blocks = 1, .groups = {kPages4}});
  EXPECT_TRUE(map_pages(empty, {}, 8).cells.empty());
}

TEST(PageMap, ACellOfSeveralPagesHasTheStateOfMost) {
  KvManager kv({.num_blocks = 13, .enable_prefix_caching = false, .groups = {kPages4}});
  const MappedSequence one(kv, ascending(20));  // pages 1 to 5
  const PageHolder holders[] = {one.view()};
  const PageMap map = map_pages(kv, holders, 4);  // of three pages each
  const PageCell used{PageState::kUsed, 0, 1};
  EXPECT_THAT(map.cells, ElementsAre(used, used, PageCell{}, PageCell{}));
}

TEST(PageMap, KeepsGroupsApart) {
  const CacheGroup window{CacheKind::kWindow, 4, 6}, state{CacheKind::kState, 4, 0};
  KvManager kv({.num_blocks = 30, .groups = {kPages4, window, state}});
  const MappedSequence one(kv, ascending(16));
  const PageHolder holders[] = {one.view()};
  const PageMap map = map_pages(kv, holders, 100);
  EXPECT_EQ(map.groups[0].used, 4);
  EXPECT_EQ(map.groups[1].used, 2) << "the window has passed two pages";
  EXPECT_EQ(map.groups[1].cached, 2) << "which stay in the prefix cache";
  EXPECT_EQ(map.groups[2].used, 1);
  EXPECT_EQ(map.groups[2].cached, 1) << "the checkpoint before the last page";
  int64_t by_group[3] = {0, 0, 0};
  for (const PageCell& c : map.cells) by_group[c.group] += c.state == PageState::kFree ? 0 : 1;
  EXPECT_THAT(by_group, ElementsAre(4, 4, 2));
}

TEST(PageView, SaysWhichTokensAPageHoldsAndForWhom) {
  KvManager kv({.num_blocks = 20, .groups = {kPages4}});
  const MappedSequence first(kv, ascending(10));
  const MappedSequence second(kv, ascending(9));
  const PageHolder holders[] = {first.view(), second.view()};
  const PageView shared = view_page(kv, holders, first.table.blocks()[1]);
  EXPECT_EQ(shared.state, PageState::kShared);
  EXPECT_THAT(shared.holders, ElementsAre(0, 1));
  EXPECT_THAT(shared.tokens, ElementsAre(4, 5, 6, 7));
  const PageView last = view_page(kv, holders, first.table.blocks()[2]);
  EXPECT_EQ(last.state, PageState::kUsed);
  EXPECT_THAT(last.holders, ElementsAre(0));
  EXPECT_THAT(last.tokens, ElementsAre(8, 9)) << "the page is not full";
  EXPECT_EQ(last.begin, 8);
  EXPECT_EQ(last.end, 10);
  const PageView free = view_page(kv, holders, 19);
  EXPECT_EQ(free.state, PageState::kFree);
  EXPECT_TRUE(free.tokens.empty() && free.holders.empty());
}

TEST(PageView, KnowsTheTokensOfCachedPages) {
  const CacheGroup state{CacheKind::kState, 4, 0};
  KvManager kv({.num_blocks = 20, .groups = {kPages4, state}});
  std::vector<BlockId> pages;
  BlockId kept = kNullBlock;
  {
    const MappedSequence gone(kv, ascending(12, 50));
    pages.assign(gone.table.blocks().begin(), gone.table.blocks().end());
    kept = gone.table.state_source(1);
  }
  const PageView page = view_page(kv, {}, pages[1]);
  EXPECT_EQ(page.state, PageState::kCached);
  EXPECT_THAT(page.tokens, ElementsAre(54, 55, 56, 57));
  EXPECT_EQ(page.begin, 4);
  const PageView summary = view_page(kv, {}, kept);
  EXPECT_EQ(summary.group, 1);
  EXPECT_EQ(summary.end, 12);
  EXPECT_EQ(summary.tokens, ascending(12, 50));
}

TEST(PageView, OfPositionsThatAreNotComputedYetIsEmpty) {
  KvManager kv({.num_blocks = 20, .groups = {kPages4}});
  BlockTable table;
  const MapTokens tokens = ascending(6);
  ASSERT_TRUE(kv.allocate_slots(table, 12));
  const PageHolder holders[] = {{&table, tokens, 5}};
  EXPECT_THAT(view_page(kv, holders, table.blocks()[1]).tokens, ElementsAre(4));
  const PageView ahead = view_page(kv, holders, table.blocks()[2]);
  EXPECT_EQ(ahead.begin, ahead.end);
  EXPECT_TRUE(ahead.tokens.empty());
  kv.free(table);
}

}  // namespace
}  // namespace quire::kv
