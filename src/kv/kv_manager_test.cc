// SPDX-License-Identifier: Apache-2.0
// The KV manager against a naive model under random operations, and its rules one by one.
#include "kv/kv_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

namespace quire::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Tokens = std::vector<int32_t>;

Tokens iota(int n, int start = 0) {
  Tokens tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), start);
  return tokens;
}

// The naive model: every page remembers the whole text up to its end; the free queue is a std::list.
class NaiveCache {
 public:
  NaiveCache(int num_blocks, int block_size) : block_size_(block_size), refs_(static_cast<size_t>(num_blocks)) {
    for (BlockId id = 1; id < num_blocks; ++id) queue_.push_back(id);
  }

  // Hits by brute force: for each prefix in whole pages, the page that has held this text the longest.
  std::vector<BlockId> longest_prefix(const std::string& salt, const Tokens& tokens) const {
    std::vector<BlockId> hit;
    for (size_t end = block_size_; end < tokens.size(); end += block_size_) {
      const Tokens prefix(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(end));
      std::optional<std::pair<int, BlockId>> best;
      for (const auto& [id, text] : texts_) {
        if (text.salt == salt && text.tokens == prefix && (!best || text.age < best->first)) best = {text.age, id};
      }
      if (!best) break;
      hit.push_back(best->second);
    }
    return hit;
  }

  bool allocate(std::vector<BlockId>& table, size_t num_tokens, const std::vector<BlockId>& hit) {
    auto queue = queue_;
    for (const BlockId id : hit) queue.remove(id);
    const size_t have = table.size() + hit.size();
    const size_t want = (num_tokens + block_size_ - 1) / block_size_;
    const size_t n = want > have ? want - have : 0;
    if (n > queue.size()) return false;
    queue_ = queue;
    for (const BlockId id : hit) {
      ++refs_[static_cast<size_t>(id)];
      table.push_back(id);
    }
    for (size_t i = 0; i < n; ++i) {
      const BlockId id = queue_.front();
      queue_.pop_front();
      texts_.erase(id);
      refs_[static_cast<size_t>(id)] = 1;
      table.push_back(id);
    }
    return true;
  }

  void commit(const std::vector<BlockId>& table, const std::string& salt, const Tokens& tokens, size_t computed) {
    for (size_t page = 0; (page + 1) * block_size_ <= computed; ++page) {
      if (texts_.contains(table[page])) continue;
      const auto end = tokens.begin() + static_cast<ptrdiff_t>((page + 1) * block_size_);
      texts_[table[page]] = {salt, Tokens(tokens.begin(), end), clock_++};
    }
  }

  void free(std::vector<BlockId>& table) {
    for (auto it = table.rbegin(); it != table.rend(); ++it) {
      if (--refs_[static_cast<size_t>(*it)] > 0) continue;
      if (texts_.contains(*it)) {
        queue_.push_back(*it);
      } else {
        queue_.push_front(*it);
      }
    }
    table.clear();
  }

  bool reset() {
    if (queue_.size() + 1 != refs_.size()) return false;
    texts_.clear();
    return true;
  }

  const std::list<BlockId>& queue() const { return queue_; }
  const std::vector<int>& refs() const { return refs_; }
  size_t num_cached() const { return texts_.size(); }

 private:
  struct Text {
    std::string salt;
    Tokens tokens;
    int age = 0;
  };
  size_t block_size_;
  std::vector<int> refs_;
  std::list<BlockId> queue_;
  std::map<BlockId, Text> texts_;
  int clock_ = 0;
};

// One sequence in both worlds.
struct Sequence {
  explicit Sequence(const std::string& s) : salt(s), table(s) {}
  std::string salt;
  Tokens tokens;
  int64_t computed = 0;
  BlockTable table;
  std::vector<BlockId> naive_table;
};

class Traffic {
 public:
  Traffic(uint32_t seed, int num_blocks, int block_size, PrefixHasher hasher)
      : random_(seed),
        block_size_(block_size),
        kv_({.num_blocks = num_blocks, .block_size = block_size}, hasher),
        naive_(num_blocks, block_size) {}

  void step() {
    switch (draw(12)) {
      case 0:
      case 1:
      case 2:
        return arrive();
      case 3:
        return leave();
      case 4:
        return preempt();
      case 5:
        if (draw(10) == 0) {
          EXPECT_EQ(kv_.reset_prefix_cache(), naive_.reset());
        }
        return;
      default:
        return advance();
    }
  }

  void check() {
    std::map<BlockId, int> owners;
    for (const auto& s : running_) {
      ASSERT_EQ(std::vector<BlockId>(s->table.blocks().begin(), s->table.blocks().end()), s->naive_table);
      for (const BlockId id : s->table.blocks()) ++owners[id];
      check_private_pages(*s);
    }
    const auto queue = kv_.pool().free_queue();
    ASSERT_EQ(queue, std::vector<BlockId>(naive_.queue().begin(), naive_.queue().end()));
    ASSERT_EQ(kv_.pool().num_free(), static_cast<int32_t>(queue.size()));
    ASSERT_EQ(kv_.pool().num_cached(), static_cast<int32_t>(naive_.num_cached()));
    std::map<BlockId, int> free_times;
    for (const BlockId id : queue) ++free_times[id];
    ASSERT_EQ(owners.count(kNullBlock) + free_times.count(kNullBlock), 0u);
    for (BlockId id = 1; id < kv_.pool().num_blocks(); ++id) {  // no page lost, none owned and free at once
      const int owned = owners.contains(id) ? owners[id] : 0;
      const int free = free_times.contains(id) ? free_times[id] : 0;
      ASSERT_EQ(free, owned == 0 ? 1 : 0) << "page " << id;
      ASSERT_EQ(kv_.pool().ref_count(id), owned) << "page " << id;
      ASSERT_EQ(naive_.refs()[static_cast<size_t>(id)], owned) << "page " << id;
    }
  }

  void finish() {
    while (!running_.empty()) leave();
    check();
    EXPECT_EQ(kv_.pool().num_free(), kv_.pool().num_usable());
  }

  int64_t hits() const { return hits_; }
  int64_t refusals() const { return refusals_; }
  int64_t evictions() const { return kv_.pool().num_evictions(); }

 private:
  int draw(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }

  // A page that is not published belongs to one sequence alone: it may be written.
  void check_private_pages(const Sequence& s) {
    const auto blocks = s.table.blocks();
    for (size_t i = static_cast<size_t>(s.table.num_published()); i < blocks.size(); ++i) {
      ASSERT_EQ(kv_.pool().ref_count(blocks[i]), 1);
    }
  }

  void arrive() {
    auto s = std::make_unique<Sequence>(draw(4) == 0 ? "salt" : "");
    const int length = 1 + draw(6 * block_size_);
    const int branch = draw(length);  // a common beginning, then one of three continuations
    const int kind = draw(3);
    for (int i = 0; i < length; ++i) s->tokens.push_back(i < branch ? i % 5 : 10 + kind);
    start(std::move(s));
  }

  void start(std::unique_ptr<Sequence> s) {
    const PrefixHit hit = kv_.find_prefix(s->table, s->tokens);
    const std::vector<BlockId> blocks(hit.blocks().begin(), hit.blocks().end());
    ASSERT_EQ(blocks, naive_.longest_prefix(s->salt, s->tokens));
    ASSERT_LT(hit.num_tokens, static_cast<int64_t>(s->tokens.size()));
    hits_ += static_cast<int64_t>(blocks.size());
    const int64_t rest = static_cast<int64_t>(s->tokens.size()) - hit.num_tokens;
    const int64_t target = hit.num_tokens + 1 + draw(static_cast<int>(rest));
    const bool could = kv_.can_allocate(s->table, target, hit);
    const bool did = kv_.allocate_slots(s->table, target, hit);
    ASSERT_EQ(did, could);
    ASSERT_EQ(did, naive_.allocate(s->naive_table, static_cast<size_t>(target), blocks));
    if (!did) {
      ++refusals_;
      return;
    }
    s->computed = hit.num_tokens;
    compute(*s, target);
    running_.push_back(std::move(s));
  }

  void compute(Sequence& s, int64_t target) {
    std::vector<int64_t> slots(static_cast<size_t>(target - s.computed));
    kv_.slot_mapping(s.table, 0, s.computed, slots);
    for (size_t i = 0; i < slots.size(); ++i) {
      const int64_t pos = s.computed + static_cast<int64_t>(i);
      ASSERT_EQ(slots[i],
                int64_t{s.naive_table[static_cast<size_t>(pos / block_size_)]} * block_size_ + pos % block_size_);
    }
    kv_.commit(s.table, s.tokens, target);
    naive_.commit(s.naive_table, s.salt, s.tokens, static_cast<size_t>(target));
    s.computed = target;
  }

  void advance() {
    if (running_.empty()) return;
    Sequence& s = *running_[static_cast<size_t>(draw(static_cast<int>(running_.size())))];
    if (s.computed == static_cast<int64_t>(s.tokens.size())) s.tokens.push_back(draw(2));
    const int64_t target = s.computed + 1 + draw(static_cast<int>(static_cast<int64_t>(s.tokens.size()) - s.computed));
    const bool did = kv_.allocate_slots(s.table, target);
    ASSERT_EQ(did, naive_.allocate(s.naive_table, static_cast<size_t>(target), {}));
    if (!did) {
      ++refusals_;
      return;
    }
    compute(s, target);
  }

  std::unique_ptr<Sequence> drop() {
    const size_t i = static_cast<size_t>(draw(static_cast<int>(running_.size())));
    auto s = std::move(running_[i]);
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    kv_.free(s->table);
    naive_.free(s->naive_table);
    return s;
  }
  void leave() {
    if (!running_.empty()) drop();
  }
  void preempt() {  // comes back at once, with its hashes kept and its output as part of the prompt
    if (running_.empty()) return;
    auto s = drop();
    s->computed = 0;
    start(std::move(s));
  }

  std::mt19937 random_;
  int block_size_;
  KvManager kv_;
  NaiveCache naive_;
  std::vector<std::unique_ptr<Sequence>> running_;
  int64_t hits_ = 0;
  int64_t refusals_ = 0;
};

void run_traffic(PrefixHasher hasher, int block_size) {
  int64_t hits = 0, refusals = 0, evictions = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Traffic traffic(seed, 4 + static_cast<int>(seed) * 2, block_size, hasher);
    for (int i = 0; i < 400; ++i) {
      traffic.step();
      traffic.check();
      if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << " step " << i;
    }
    traffic.finish();
    hits += traffic.hits();
    refusals += traffic.refusals();
    evictions += traffic.evictions();
  }
  EXPECT_GT(hits, 500);  // the traffic does reach the interesting places
  EXPECT_GT(refusals, 500);
  EXPECT_GT(evictions, 500);
}

TEST(KvManager, EqualsTheNaiveModelUnderRandomTraffic) {
  run_traffic(PrefixHasher(11, 22), 4);
}
TEST(KvManager, EqualsTheNaiveModelWithPagesOfOneToken) {
  run_traffic(PrefixHasher(11, 22), 1);
}
TEST(KvManager, EqualsTheNaiveModelWhenEveryHashCollides) {
  run_traffic(PrefixHasher::colliding(0), 4);
}
TEST(KvManager, EqualsTheNaiveModelWhenManyHashesCollide) {
  run_traffic(PrefixHasher::colliding(2), 2);
}

// A request that is admitted, computed and freed: its pages stay behind in the cache.
void serve(KvManager& kv, const Tokens& tokens, const std::string& salt = "") {
  BlockTable table(salt);
  const PrefixHit hit = kv.find_prefix(table, tokens);
  ASSERT_TRUE(kv.allocate_slots(table, static_cast<int64_t>(tokens.size()), hit));
  kv.commit(table, tokens, static_cast<int64_t>(tokens.size()));
  kv.free(table);
}

int64_t hit_tokens(KvManager& kv, const Tokens& tokens, const std::string& salt = "") {
  BlockTable table(salt);
  return kv.find_prefix(table, tokens).num_tokens;
}

TEST(KvManager, AFullyCachedPromptRecomputesItsLastTokenInAPrivatePage) {
  KvManager kv({.num_blocks = 10, .block_size = 4});
  const Tokens tokens = iota(8);
  serve(kv, tokens);
  BlockTable table;
  const PrefixHit hit = kv.find_prefix(table, tokens);
  EXPECT_EQ(hit.num_tokens, 4);  // not 8: the page with the last token is computed again
  ASSERT_TRUE(kv.allocate_slots(table, 8, hit));
  EXPECT_EQ(table.blocks()[0], hit.blocks()[0]);
  EXPECT_FALSE(kv.pool().is_published(table.blocks()[1]));
  EXPECT_EQ(hit_tokens(kv, iota(9)), 8);
  kv.free(table);
}

TEST(KvManager, TrimGivesBackThePagesOfRejectedDraftsAndTheCacheSeesAcceptedTokensOnly) {
  KvManager kv({.num_blocks = 10, .block_size = 4});
  BlockTable table;
  Tokens tokens = iota(6);
  ASSERT_TRUE(kv.allocate_slots(table, 6));
  kv.commit(table, tokens, 6);
  ASSERT_TRUE(kv.allocate_slots(table, 15));  // one token and eight drafts, two of which are accepted
  const int64_t free = kv.pool().num_free();
  tokens = iota(10);
  kv.commit(table, tokens, 9);
  kv.trim(table, 10);
  EXPECT_EQ(table.blocks().size(), 3u);
  EXPECT_EQ(kv.pool().num_free(), free + 1);
  EXPECT_EQ(table.num_published(), 2);
  EXPECT_EQ(hit_tokens(kv, iota(15)), 8);
  kv.trim(table, 10);
  EXPECT_EQ(table.blocks().size(), 3u);
  kv.free(table);
  EXPECT_EQ(kv.pool().num_free(), kv.pool().num_usable());
}

TEST(KvManager, TheSaltSeparatesUsers) {
  KvManager kv({.num_blocks = 10, .block_size = 4});
  serve(kv, iota(9), "alice");
  EXPECT_EQ(hit_tokens(kv, iota(9), "alice"), 8);
  EXPECT_EQ(hit_tokens(kv, iota(9), "bob"), 0);
  EXPECT_EQ(hit_tokens(kv, iota(9)), 0);
}

TEST(KvManager, PrefixCachingCanBeOff) {
  KvManager kv({.num_blocks = 10, .block_size = 4, .enable_prefix_caching = false});
  serve(kv, iota(9));
  EXPECT_EQ(hit_tokens(kv, iota(9)), 0);
  EXPECT_EQ(kv.pool().num_cached(), 0);
}

TEST(KvManager, PartialPagesAreNotCached) {
  KvManager kv({.num_blocks = 10, .block_size = 4});
  const Tokens tokens = iota(8);
  BlockTable table;
  ASSERT_TRUE(kv.allocate_slots(table, 8));
  kv.commit(table, tokens, 3);
  EXPECT_EQ(table.num_published(), 0);
  kv.commit(table, tokens, 7);
  EXPECT_EQ(table.num_published(), 1);
  kv.free(table);
}

TEST(KvManager, CountsIdleHitsAsTakenWhenItLooksForRoom) {
  // Three usable pages: two cached and idle, one empty. A request that hits both and needs two more can not have them,
  // although three pages are free.
  KvManager kv({.num_blocks = 4, .block_size = 4});
  serve(kv, iota(8));
  BlockTable table;
  const PrefixHit hit = kv.find_prefix(table, iota(16));
  ASSERT_EQ(hit.blocks().size(), 2u);
  EXPECT_FALSE(kv.can_allocate(table, 16, hit));
  EXPECT_FALSE(kv.can_admit(16, hit));
  EXPECT_FALSE(kv.allocate_slots(table, 16, hit));
  EXPECT_THAT(table.blocks(), IsEmpty());
  EXPECT_EQ(kv.pool().num_free(), 3);
  EXPECT_TRUE(kv.can_allocate(table, 12, hit));
  EXPECT_TRUE(kv.can_admit(12, hit));
  EXPECT_TRUE(kv.allocate_slots(table, 12, hit));
  kv.free(table);
}

TEST(KvManager, CountsPrefixStatisticsOnceARequest) {
  KvManager kv({.num_blocks = 10, .block_size = 4});
  serve(kv, iota(9));
  EXPECT_EQ(hit_tokens(kv, iota(9)), 8);  // only asked
  EXPECT_EQ(kv.prefix_stats().queried_tokens, 9);
  EXPECT_EQ(kv.prefix_stats().hit_tokens, 0);
  serve(kv, iota(9));
  EXPECT_EQ(kv.prefix_stats().queried_tokens, 18);
  EXPECT_EQ(kv.prefix_stats().hit_tokens, 8);
  BlockTable again;  // one that comes back after a preemption
  PrefixHit hit = kv.find_prefix(again, iota(9));
  hit.counted = false;
  ASSERT_TRUE(kv.allocate_slots(again, 9, hit));
  kv.free(again);
  EXPECT_EQ(kv.prefix_stats().queried_tokens, 18);
  EXPECT_EQ(kv.prefix_stats().requests, 2);
}

TEST(KvManagerDeathTest, APublishedPageCanNotBeWritten) {
  KvManager kv({.num_blocks = 10, .block_size = 4});
  BlockTable table;
  ASSERT_TRUE(kv.allocate_slots(table, 8));
  kv.commit(table, iota(8), 5);
  std::vector<int64_t> slots(1);
  EXPECT_DEATH(kv.slot_mapping(table, 0, 3, slots), "published page");
  EXPECT_DEATH(kv.slot_mapping(table, 0, 8, slots), "no pages yet");
  kv.free(table);
}

TEST(KvManagerDeathTest, ATableThatDiesWithPagesIsCaught) {
  KvManager kv({.num_blocks = 10, .block_size = 4});
  EXPECT_DEATH(
      {
        BlockTable table;
        if (!kv.allocate_slots(table, 8)) return;
      },
      "destroyed with pages");
}

TEST(BlockTable, MovesItsPages) {
  KvManager kv({.num_blocks = 10, .block_size = 4});
  BlockTable a("salt");
  ASSERT_TRUE(kv.allocate_slots(a, 8));
  BlockTable b(std::move(a));
  EXPECT_THAT(b.blocks(), ElementsAre(1, 2));
  BlockTable c;
  c = std::move(b);
  EXPECT_THAT(c.blocks(), ElementsAre(1, 2));
  EXPECT_EQ(c.salt(), "salt");
  kv.free(c);
  EXPECT_EQ(kv.usage(), 0.0);
}

}  // namespace
}  // namespace quire::kv
