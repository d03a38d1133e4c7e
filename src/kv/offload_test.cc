// SPDX-License-Identifier: Apache-2.0
// The tiers below the KV cache: pages are stored while others use them, overwritten meanwhile, and restored.
#include "kv/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
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
       int64_t folder_bytes = 1 << 20)
      : memory_(static_cast<size_t>(pages * kPageBytes)) {
    OffloadOptions options;
    options.folder = folder;
    options.folder_bytes = folder_bytes;
    options.identity = [identity] { return identity; };
    PageMemory memory;
    memory.pages = memory_.data();
    memory.page_bytes = kPageBytes;
    memory.num_pages = pages;
    memory.group_bytes.assign(groups.size(), kPageBytes - 16);
    offload = std::make_unique<Offload>(options, memory);
    kv = std::make_unique<KvManager>(KvManagerOptions{.num_blocks = pages, .groups = std::move(groups)});
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

  // Runs the whole prompt, with what the tiers have, and checks every page that it reads. Returns the hit's length.
  int64_t run(bool tiers = true) {
    KvManager& kv = *pool.kv;
    const auto length = static_cast<int64_t>(tokens.size());
    PrefixHit hit = kv.find_prefix(table, tokens);
    if (tiers && kv.start_restore(table, tokens, hit)) {
      while (!kv.restored(table)) std::this_thread::yield();
      kv.finish_restore(table, tokens);
      hit = kv.find_prefix(table, tokens);
    }
    restored = hit.restored_tokens;
    int64_t computed = hit.num_tokens;
    PrefixHit start = hit;
    while (computed < length) {
      const int64_t end = kv.step_end(table, computed, std::min(length, computed + 7));
      EXPECT_TRUE(kv.allocate_slots(table, end, std::exchange(start, {})));
      check(computed);
      for (size_t g = 0; g < kv.groups().size(); ++g) {
        const CacheGroup& group = kv.groups()[g];
        if (group.kind == CacheKind::kState) {
          std::memset(pool.page(table.state_destination(g)), mark_of(tokens, end, g), kPageBytes);
          continue;
        }
        for (int64_t i = computed / group.block_size; i < (end + group.block_size - 1) / group.block_size; ++i) {
          const int64_t filled = std::min(end, (i + 1) * group.block_size);
          std::memset(pool.page(table.blocks(g)[static_cast<size_t>(i)]), mark_of(tokens, filled, g), kPageBytes);
        }
      }
      kv.commit(table, tokens, end);
      computed = end;
    }
    pool.offload->after_step();
    return hit.num_tokens;
  }

  // The pages that a step at `position` reads.
  void check(int64_t position) {
    for (size_t g = 0; g < pool.kv->groups().size(); ++g) {
      const CacheGroup& group = pool.kv->groups()[g];
      if (group.kind == CacheKind::kState) {
        const int32_t page = table.state_source(g);
        if (page <= 0) continue;
        EXPECT_EQ(*reinterpret_cast<uint8_t*>(pool.page(page)), mark_of(tokens, position, g));
        continue;
      }
      for (int64_t i = first_seen_page(group, position); i < position / group.block_size; ++i) {
        const BlockId page = table.blocks(g)[static_cast<size_t>(i)];
        const uint8_t wanted = mark_of(tokens, (i + 1) * group.block_size, g);
        for (const int64_t at : {int64_t{0}, kPageBytes - 17}) {
          EXPECT_EQ(static_cast<uint8_t>(pool.page(page)[at]), wanted) << "group " << g << ", page " << i;
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

TEST(OffloadTest, APrefixComesBackAfterARestart) {
  for (const auto& groups : {kDense, kWindows, kHybrid}) {
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
