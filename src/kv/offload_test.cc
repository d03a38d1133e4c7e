// SPDX-License-Identifier: Apache-2.0
// The tiers below the KV cache: pages are stored while others use them, overwritten meanwhile, and restored.
#include "kv/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "base/test_folder.h"
#include "kv/kv_manager.h"

namespace quire::kv {
namespace {

using OffloadTokens = std::vector<int32_t>;

constexpr int64_t kPageBytes = 256;

// A pool with memory and a disk tier. Each page of a sequence is filled with what identifies it, as a model would.
class Pool {
 public:
  Pool(const std::filesystem::path& folder, std::vector<CacheGroup> groups, int32_t pages, std::string identity = "m",
       int64_t folder_bytes = 1 << 20, std::shared_ptr<PeerPages> peers = nullptr)
      : memory_(static_cast<size_t>(pages * kPageBytes)) {
    OffloadOptions options;
    options.folder = folder;
    options.folder_bytes = folder_bytes;
    options.identity = [identity] { return identity; };
    options.peers = std::move(peers);
    PageMemory memory;
    memory.pages = memory_.data();
    memory.page_bytes = kPageBytes;
    memory.num_pages = pages;
    memory.group_bytes.assign(groups.size(), kPageBytes - 16);
    offload = std::make_unique<Offload>(options, memory);
    kv = std::make_unique<KvManager>(
        KvManagerOptions{.num_blocks = pages, .groups = std::move(groups), .checkpoint_interval = 8});
    kv->set_copy([this](BlockId from, BlockId to, size_t) { std::memcpy(page(to), page(from), kPageBytes); });
    kv->set_offload(offload.get());
    EXPECT_TRUE(offload->wait_until_open(10));
  }
  ~Pool() {
    kv.reset();
    offload.reset();
  }
  std::byte* page(BlockId id) { return memory_.data() + id * kPageBytes; }

  std::vector<std::byte> memory_;
  std::unique_ptr<Offload> offload;
  std::unique_ptr<KvManager> kv;
};

// The contents that a page must have: they follow from the tokens up to its end, and its group.
uint8_t mark_of(std::span<const int32_t> tokens, int64_t end, size_t group) {
  uint32_t sum = 17 + static_cast<uint32_t>(group);
  for (const int32_t token : tokens.first(static_cast<size_t>(end))) sum = sum * 31 + static_cast<uint32_t>(token);
  return static_cast<uint8_t>(sum ^ (sum >> 8) ^ (sum >> 16));
}

struct OffloadedSequence {
  OffloadedSequence(Pool& owner, OffloadTokens text, const std::string& salt = "")
      : pool(owner), table(salt), tokens(std::move(text)) {}
  ~OffloadedSequence() { pool.kv->free(table); }

  // Runs the whole text, of which the last tokens are an answer, with what the tiers have, and checks every position
  // that it reads. Returns the hit's length.
  int64_t run(int64_t answer = 0) {
    KvManager& kv = *pool.kv;
    const auto length = static_cast<int64_t>(tokens.size());
    const auto prompt = std::span(tokens).first(static_cast<size_t>(length - answer));
    PrefixHit hit = kv.find_prefix(table, prompt);
    if (kv.start_restore(table, prompt, hit)) {
      while (!kv.restored(table)) std::this_thread::yield();
      kv.finish_restore(table, prompt);
      hit = kv.find_prefix(table, prompt);
    }
    restored = hit.restored_tokens;
    int64_t computed = hit.num_tokens;
    PrefixHit start = hit;
    while (computed < length) {
      const int64_t end = computed < std::ssize(prompt) ? std::min(std::ssize(prompt), computed + 7) : computed + 1;
      EXPECT_TRUE(kv.allocate_slots(table, end, std::exchange(start, {})));
      check(computed);
      for (size_t g = 0; g < kv.groups().size(); ++g) {
        const CacheGroup& group = kv.groups()[g];
        if (group.kind == CacheKind::kState) {
          for (size_t i = 0; i < table.state_ends().size(); ++i) {
            const uint8_t mark = mark_of(tokens, table.state_ends()[i], g);
            std::memset(pool.page(table.state_after(g, i)), mark, kPageBytes);
          }
          continue;
        }
        for (int64_t at = computed; at < end; ++at) {
          const std::span<std::byte> room = place(g, at);
          std::memset(room.data(), mark_of(tokens, at + 1, g), room.size());
        }
      }
      kv.commit(table, tokens, end);
      computed = end;
    }
    pool.offload->after_step();
    return hit.num_tokens;
  }

  // Where K and V of a position are.
  std::span<std::byte> place(size_t g, int64_t position) {
    const int64_t size = pool.kv->groups()[g].block_size, room = (kPageBytes - 16) / size;
    std::byte* page = pool.page(table.blocks(g)[static_cast<size_t>(position / size)]);
    return {page + position % size * room, static_cast<size_t>(room)};
  }

  // What a step at `position` reads.
  void check(int64_t position) {
    for (size_t g = 0; g < pool.kv->groups().size(); ++g) {
      const CacheGroup& group = pool.kv->groups()[g];
      if (group.kind == CacheKind::kState) {
        const int32_t page = table.state_source(g);
        if (page <= 0) continue;
        EXPECT_EQ(*reinterpret_cast<uint8_t*>(pool.page(page)), mark_of(tokens, position, g));
        continue;
      }
      for (int64_t at = first_seen_page(group, position) * group.block_size; at < position; ++at) {
        const std::span<std::byte> room = place(g, at);
        const uint8_t wanted = mark_of(tokens, at + 1, g);
        for (const std::byte byte : {room.front(), room.back()}) {
          EXPECT_EQ(static_cast<uint8_t>(byte), wanted) << "group " << g << ", position " << at;
        }
      }
    }
  }

  Pool& pool;
  BlockTable table;
  OffloadTokens tokens;
  int64_t restored = 0;
};

OffloadTokens some_tokens(int n, int seed = 0) {
  OffloadTokens tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), seed * 1000);
  return tokens;
}

int64_t run(Pool& pool, const OffloadTokens& tokens, const std::string& salt = "") {
  OffloadedSequence sequence(pool, tokens, salt);
  const int64_t hit = sequence.run();
  return hit;
}

const std::vector<CacheGroup> kDense = {{CacheKind::kFull, 4, 0}};
const std::vector<CacheGroup> kWindows = {{CacheKind::kFull, 4, 0}, {CacheKind::kWindow, 4, 6}};
const std::vector<CacheGroup> kHybrid = {{CacheKind::kState, 8, 0}, {CacheKind::kFull, 8, 0}};
const std::vector<CacheGroup> kHitsInside = {
    {CacheKind::kState, 4, 0}, {CacheKind::kFull, 16, 0}, {CacheKind::kWindow, 48, 9}};

TEST(OffloadTest, APrefixComesBackAfterARestart) {
  for (const auto& groups : {kDense, kWindows, kHybrid, kHitsInside}) {
    const TempFolder folder;
    {
      Pool pool(folder.path(), groups, 40);
      EXPECT_EQ(run(pool, some_tokens(42)), 0);
    }
    Pool pool(folder.path(), groups, 40);
    OffloadedSequence again(pool, some_tokens(42));
    EXPECT_EQ(again.run(), 40);
    EXPECT_EQ(again.restored, 40);
    EXPECT_EQ(run(pool, some_tokens(42)), 40) << "and is in the cache then";
    EXPECT_EQ(pool.kv->prefix_stats().offload_hit_tokens, 40);
    EXPECT_EQ(pool.kv->prefix_stats().hit_tokens, 40);
    EXPECT_EQ(run(pool, some_tokens(42), "salt"), 0) << "another user's salt";
    EXPECT_EQ(run(pool, some_tokens(42, 1)), 0);
  }
}

TEST(OffloadTest, AnotherEngineCopiesWhatOneHasComputed) {
  for (const auto& groups : {kDense, kWindows, kHybrid, kHitsInside}) {
    const auto peers = std::make_shared<PeerPages>();
    Pool one("", groups, 40, "", 0, peers), other("", groups, 40, "", 0, peers);
    EXPECT_EQ(run(one, some_tokens(42)), 0);
    OffloadedSequence copied(other, some_tokens(42));
    EXPECT_EQ(copied.run(), 40);
    EXPECT_EQ(copied.restored, 0) << "a hit as any other";
    EXPECT_EQ(other.kv->prefix_stats().hit_tokens, 40);
    EXPECT_EQ(other.kv->prefix_stats().offload_queried_tokens, 0);
    EXPECT_EQ(run(other, some_tokens(42), "salt"), 0) << "another user's salt";
  }
}

// Every page that is read is checked by run(), in both pools.
TEST(OffloadTest, EnginesThatEvictCopyWholePages) {
  for (const auto& groups : {kDense, kWindows, kHybrid, kHitsInside}) {
    const auto peers = std::make_shared<PeerPages>();
    std::atomic<int64_t> hits = 0;
    const auto work = [&](unsigned seed) {
      Pool pool("", groups, 26, "", 0, peers);
      std::mt19937 random(seed);
      for (int i = 0; i < 150; ++i) {
        OffloadTokens text = some_tokens(30 + static_cast<int>(random() % 18), static_cast<int>(random() % 4));
        OffloadedSequence sequence(pool, text);
        hits += sequence.run(static_cast<int64_t>(random() % 9));
      }
      EXPECT_EQ(pool.kv->usage(), 0);
    };
    std::thread other([&] { work(1); });
    work(2);
    other.join();
    EXPECT_GT(hits, 300);
  }
}

TEST(OffloadTest, ForeignPagesAreNotFound) {
  const TempFolder folder;
  {
    Pool pool(folder.path(), kDense, 40), unused(folder.path(), kDense, 4);
    run(pool, some_tokens(42));
  }
  Pool other(folder.path(), kDense, 40, "another model");
  EXPECT_EQ(run(other, some_tokens(42)), 0);
  Pool same(folder.path(), kDense, 40);
  EXPECT_EQ(run(same, some_tokens(42)), 40) << "both models' pages are in one folder";
}

TEST(OffloadTest, EvictedPagesComeBackToAFullPool) {
  for (const auto& groups : {kDense, kWindows, kHybrid}) {
    const TempFolder folder;
    Pool pool(folder.path(), groups, 26);
    int64_t restored = 0;
    for (int round = 0; round < 3; ++round) {
      for (int seed = 0; seed < 5; ++seed) {
        OffloadedSequence sequence(pool, some_tokens(34 + seed, seed));
        sequence.run();
        restored += sequence.restored;
        if (round == 0) pool.offload->flush();
      }
    }
    EXPECT_GT(restored, 5 * 2 * 20) << "most prefixes were evicted and read back";
    EXPECT_GT(pool.kv->pool().num_evictions(), 0);
    EXPECT_EQ(pool.kv->usage(), 0) << "no page is left behind";
  }
}

TEST(OffloadTest, AnAnswerComesBackUpToItsLastCheckpoint) {
  const TempFolder folder;
  OffloadTokens text = some_tokens(58);
  {
    Pool pool(folder.path(), kHitsInside, 40);
    OffloadedSequence sequence(pool, text);
    EXPECT_EQ(sequence.run(33), 0);  // the prompt has 25 tokens
  }
  Pool pool(folder.path(), kHitsInside, 40);
  text.resize(80, 5);
  OffloadedSequence next(pool, text);
  EXPECT_EQ(next.run(), 56);
  EXPECT_EQ(next.restored, 56);
}

TEST(OffloadTest, RandomTextsWithHitsInsidePagesAreWhole) {
  const TempFolder folder;
  std::mt19937 random(5);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  int64_t restored = 0, hits = 0;
  for (int life = 0; life < 4; ++life) {
    Pool pool(folder.path(), kHitsInside, life % 2 == 0 ? 14 : 40);
    for (int i = 0; i < 60; ++i) {
      OffloadTokens text = some_tokens(20 + draw(60), draw(3));
      if (draw(2) == 0) std::fill(text.begin() + draw(static_cast<int>(text.size())), text.end(), draw(3));
      OffloadedSequence sequence(pool, text);
      hits += sequence.run(draw(19));
      restored += sequence.restored;
    }
    EXPECT_EQ(pool.kv->usage(), 0);
    EXPECT_EQ(pool.offload->stats().disk.refused, 0);
  }
  EXPECT_GT(restored, 200);
  EXPECT_GT(hits, restored + 1000);
}

TEST(OffloadTest, PagesThatAreOverwrittenBeforeTheWriterHadThemAreWhole) {
  const TempFolder folder;
  // The pool is so small that nearly every page is evicted at once; reading checks all contents.
  Pool pool(folder.path(), kDense, 14);
  for (int round = 0; round < 40; ++round) run(pool, some_tokens(30 + round % 17, round % 7));
  pool.offload->flush();
  for (int seed = 0; seed < 7; ++seed) run(pool, some_tokens(47, seed));
  EXPECT_GT(pool.offload->stats().loaded_pages, 0);
  EXPECT_EQ(pool.offload->stats().disk.refused, 0);
}

TEST(OffloadTest, ADamagedPageEndsTheHitBeforeIt) {
  const TempFolder folder;
  {
    Pool pool(folder.path(), kDense, 40);
    run(pool, some_tokens(42));
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.path().extension() == ".kv") files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 10u);
  std::filesystem::resize_file(files[3], 100);
  Pool pool(folder.path(), kDense, 40);
  const int64_t hit = run(pool, some_tokens(42));
  EXPECT_LT(hit, 40);
  EXPECT_EQ(pool.offload->stats().disk.refused, 1);
  EXPECT_EQ(pool.kv->usage(), 0);
  pool.offload->flush();
  Pool again(folder.path(), kDense, 40);
  EXPECT_EQ(run(again, some_tokens(42)), 40) << "the page was computed and stored again";
}

TEST(OffloadTest, ACancelledRestoreGivesItsPagesBack) {
  const TempFolder folder;
  {
    Pool pool(folder.path(), kDense, 40);
    run(pool, some_tokens(42));
  }
  Pool pool(folder.path(), kDense, 40);
  for (int i = 0; i < 20; ++i) {
    OffloadedSequence sequence(pool, some_tokens(42));
    const PrefixHit hit = pool.kv->find_prefix(sequence.table, sequence.tokens);
    ASSERT_TRUE(pool.kv->start_restore(sequence.table, sequence.tokens, hit));
    EXPECT_GT(pool.kv->usage(), 0);
    pool.kv->free(sequence.table);
    EXPECT_FALSE(pool.kv->restoring(sequence.table));
    while (pool.kv->usage() > 0) pool.kv->reap_cancelled();
  }
  EXPECT_EQ(run(pool, some_tokens(42)), 40);
}

TEST(OffloadTest, ARestoreNeedsFreePages) {
  const TempFolder folder;
  {
    Pool pool(folder.path(), kDense, 40);
    run(pool, some_tokens(42));
  }
  Pool pool(folder.path(), kDense, 14);
  OffloadedSequence holder(pool, some_tokens(14, 3));
  holder.run();
  OffloadedSequence sequence(pool, some_tokens(42));
  const PrefixHit hit = pool.kv->find_prefix(sequence.table, sequence.tokens);
  EXPECT_FALSE(pool.kv->start_restore(sequence.table, sequence.tokens, hit));
}

TEST(OffloadTest, WhatTheFolderHasNoRoomForIsNotThere) {
  const TempFolder folder;
  Pool pool(folder.path(), kDense, 40, "m", 5 * (kPageBytes - 16 + 128));
  run(pool, some_tokens(42));
  pool.offload->flush();
  EXPECT_EQ(pool.offload->stats().disk.files, 5);
  ASSERT_TRUE(pool.kv->reset_prefix_cache());
  EXPECT_EQ(run(pool, some_tokens(42)), 0) << "the first pages were deleted for the last ones";
}

}  // namespace
}  // namespace quire::kv
