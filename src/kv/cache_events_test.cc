// SPDX-License-Identifier: Apache-2.0
// Cache events: a subscriber that applies them knows exactly which blocks are cached, in every group.
#include "kv/cache_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "kv/kv_manager.h"

namespace quire::kv {
namespace {

using ::testing::ElementsAre;
using Kind = CacheEvent::Kind;

TEST(CacheEventLog, JoinsBlocksThatFollowEachOther) {
  CacheEventLog log;
  log.stored(0, 10, std::nullopt, std::vector{1, 2}, {.salt = "salt"});
  log.stored(1, 10, std::nullopt, std::vector{1, 2}, {.salt = "salt"});
  log.stored(0, 11, 10, std::vector{3, 4}, {.salt = "salt"});
  log.stored(0, 21, 20, std::vector{5, 6}, {.salt = "salt", .adapter_name = "poet", .adapter_id = 3});
  const std::vector<CacheEvent> events = log.take();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_THAT(events[0].hashes, ElementsAre(10, 11));
  EXPECT_THAT(events[0].tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(events[0].origin.salt, "salt");
  EXPECT_EQ(events[1].group, 1);
  EXPECT_EQ(events[2].parent, 20u);
  EXPECT_EQ(events[2].origin.salt, "") << "it is in the hash of the first block";
  EXPECT_EQ(events[2].origin.adapter_name, "poet");
  EXPECT_TRUE(log.take().empty());
}

TEST(CacheEventLog, NothingIsJoinedAcrossARemoval) {
  CacheEventLog log;
  log.stored(0, 10, std::nullopt, std::vector{1}, {});
  log.removed(0, 11);
  log.removed(0, 12);
  log.removed(1, 12);
  log.stored(0, 11, 10, std::vector{2}, {});
  log.cleared();
  const std::vector<CacheEvent> events = log.take();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_THAT(events[1].hashes, ElementsAre(11, 12));
  EXPECT_THAT(events[3].hashes, ElementsAre(11));
  EXPECT_EQ(events[4].kind, Kind::kCleared);
}

// What a subscriber knows: the blocks of each group, with their parents and tokens.
struct Subscriber {
  struct Block {
    std::optional<uint64_t> parent;
    std::vector<int32_t> tokens;
  };
  std::map<std::pair<int32_t, uint64_t>, Block> blocks;

  void apply(const std::vector<CacheEvent>& events, std::span<const CacheGroup> groups) {
    for (const CacheEvent& event : events) {
      if (event.kind == Kind::kCleared) blocks.clear();
      if (event.kind == Kind::kRemoved) {
        for (const uint64_t hash : event.hashes) {
          EXPECT_EQ(blocks.erase({event.group, hash}), 1u) << "an unknown block was removed";
        }
      }
      if (event.kind != Kind::kStored) continue;
      const auto size = static_cast<size_t>(groups[static_cast<size_t>(event.group)].block_size);
      ASSERT_EQ(event.tokens.size(), event.hashes.size() * size);
      std::optional<uint64_t> parent = event.parent;
      for (size_t i = 0; i < event.hashes.size(); ++i) {
        const std::span<const int32_t> tokens = std::span(event.tokens).subspan(i * size, size);
        const Block block{parent, {tokens.begin(), tokens.end()}};
        EXPECT_TRUE(blocks.emplace(std::pair(event.group, event.hashes[i]), block).second) << "stored twice";
        parent = event.hashes[i];
      }
    }
  }
};

// The blocks that can be hit, from the pool itself: group and end of each, by the tokens before it.
std::set<std::pair<int32_t, uint64_t>> cached_blocks(const KvManager& kv) {
  std::set<std::pair<int32_t, uint64_t>> out;
  const PrefixTree& tree = kv.pool().tree();
  for (BlockId id = 1; id < kv.pool().num_blocks(); ++id) {
    if (kv.pool().is_published(id)) out.emplace(tree.group(id), tree.hash(tree.node(id)).lo);
  }
  return out;
}

// A sequence that gives back its pages when it ends.
struct Running {
  Running(KvManager& manager, const std::string& salt) : kv(manager), table(salt) {}
  ~Running() { kv.free(table); }
  KvManager& kv;
  BlockTable table;
  std::vector<int32_t> tokens;
  int64_t computed = 0;
};

class CacheEventsTest : public ::testing::TestWithParam<std::vector<CacheGroup>> {};

TEST_P(CacheEventsTest, ASubscriberKnowsWhatIsCachedUnderRandomTraffic) {
  const std::vector<CacheGroup>& groups = GetParam();
  KvManager kv({.num_blocks = 40, .groups = groups});
  kv.record_events();
  Subscriber subscriber;
  std::mt19937 random(7);
  const auto draw = [&](int most) { return static_cast<int64_t>(random() % static_cast<unsigned>(most)); };
  std::vector<std::unique_ptr<Running>> running;
  int64_t removals = 0;
  for (int round = 0; round < 2000; ++round) {
    if (running.size() < 3) {
      auto one = std::make_unique<Running>(kv, draw(4) == 0 ? "salt" : "");
      one->tokens.resize(static_cast<size_t>(9 + draw(60)));
      std::iota(one->tokens.begin(), one->tokens.end(), static_cast<int32_t>(1000 * draw(3)));
      if (draw(2) == 0) one->tokens[static_cast<size_t>(draw(static_cast<int>(one->tokens.size())))] = 7;
      const PrefixHit hit = kv.find_prefix(one->table, one->tokens);
      one->computed = std::min<int64_t>(hit.num_tokens + 1 + draw(9), static_cast<int64_t>(one->tokens.size()));
      if (kv.can_admit(static_cast<int64_t>(one->tokens.size()), hit) &&
          kv.allocate_slots(one->table, one->computed, hit)) {
        kv.commit(one->table, one->tokens, one->computed);
        running.push_back(std::move(one));
      }
    }
    const auto at = static_cast<size_t>(draw(static_cast<int>(running.size()) + 1));
    if (at < running.size()) {
      Running& one = *running[at];
      const auto length = static_cast<int64_t>(one.tokens.size());
      const int64_t end = std::min(length, one.computed + 1 + draw(12));
      const bool over = one.computed == length || !kv.allocate_slots(one.table, end);
      if (!over) {
        kv.commit(one.table, one.tokens, end);
        one.computed = end;
      } else {
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    if (running.empty() && draw(20) == 0) {
      ASSERT_TRUE(kv.reset_prefix_cache());
    }
    const std::vector<CacheEvent> events = kv.take_events();
    removals += std::ranges::count(events, Kind::kRemoved, &CacheEvent::kind);
    subscriber.apply(events, groups);
    std::set<std::pair<int32_t, uint64_t>> known;
    for (const auto& [key, block] : subscriber.blocks) known.insert(key);
    ASSERT_EQ(known, cached_blocks(kv)) << "after round " << round;
  }
  EXPECT_GT(removals, 20);
  for (const auto& [key, block] : subscriber.blocks) {
    if (block.parent) {
      EXPECT_EQ(block.tokens.size(), static_cast<size_t>(groups[static_cast<size_t>(key.first)].block_size));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Groups, CacheEventsTest,
    ::testing::Values(std::vector<CacheGroup>{{CacheKind::kFull, 4, 0}},
                      std::vector<CacheGroup>{{CacheKind::kFull, 4, 0}, {CacheKind::kWindow, 8, 6}},
                      std::vector<CacheGroup>{{CacheKind::kState, 8, 0}, {CacheKind::kFull, 8, 0}},
                      std::vector<CacheGroup>{{CacheKind::kState, 4, 0}, {CacheKind::kFull, 16, 0}}));

TEST(CacheEvents, TheParentOfABlockIsTheBlockBeforeIt) {
  KvManager kv({.num_blocks = 20, .groups = {{CacheKind::kFull, 4, 0}, {CacheKind::kWindow, 8, 64}}});
  kv.record_events();
  std::vector<int32_t> tokens(17);
  std::iota(tokens.begin(), tokens.end(), 0);
  Running first(kv, "salt"), again(kv, "salt");
  ASSERT_TRUE(kv.allocate_slots(first.table, 17, kv.find_prefix(first.table, tokens)));
  kv.commit(first.table, tokens, 17);
  const std::vector<CacheEvent> events = kv.take_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].hashes.size(), 4u);
  EXPECT_EQ(events[1].hashes.size(), 2u);
  EXPECT_EQ(events[0].parent, std::nullopt);
  EXPECT_EQ(events[0].origin.salt, "salt");
  EXPECT_EQ(events[0].hashes[1], events[1].hashes[0]) << "both end at token 8";
  EXPECT_EQ(events[0].hashes[3], events[1].hashes[1]);
  // A hit stores nothing new.
  ASSERT_TRUE(kv.allocate_slots(again.table, 17, kv.find_prefix(again.table, tokens)));
  kv.commit(again.table, tokens, 17);
  EXPECT_TRUE(kv.take_events().empty());
}

}  // namespace
}  // namespace quire::kv
