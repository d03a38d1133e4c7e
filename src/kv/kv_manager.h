// SPDX-License-Identifier: Apache-2.0
// What the scheduler asks of the KV cache: prefix hits, slots for new tokens, slot mappings, pages given back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "kv/prefix_hash.h"

namespace quire::kv {

struct KvManagerOptions {
  int32_t num_blocks = 0;  // with the null page (MemoryPlan::num_blocks)
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
};

// Pages that already hold the beginning of a sequence. Not referenced yet: it is valid until the next call that
// allocates, so it goes straight into can_allocate and allocate_slots.
struct PrefixHit {
  std::vector<BlockId> blocks;
  int64_t num_tokens = 0;      // blocks.size() * block_size
  int64_t queried_tokens = 0;  // of the sequence that was looked up; for the statistics
  bool counted = true;         // in the statistics; false for one that comes back after a preemption
};

// For vLLM's counters prefix_cache_queries and prefix_cache_hits: in tokens, counted when a sequence gets its first
// pages (so that one that waits and asks at every step counts once).
struct PrefixStats {
  int64_t requests = 0;
  int64_t queried_tokens = 0;
  int64_t hit_tokens = 0;
};

// Owns the pool; fills the sequences' tables. Engine thread only. A page that is published (shared or shareable) is
// never written: positions to write always lie in private pages behind the published ones.
//
// One request:  hit = find_prefix(table, tokens);
//               if (!allocate_slots(table, hit.num_tokens + chunk, hit)) wait or preempt;
//               slot_mapping(table, computed, slots); run the step; commit(table, tokens, computed + chunk);
//               ... at the end, or when preempted: free(table).
class KvManager {
 public:
  explicit KvManager(const KvManagerOptions& options, PrefixHasher hasher = PrefixHasher::random());

  // The longest cached prefix of `tokens` (all tokens of the sequence: prompt and output) in whole pages, at most
  // tokens.size() - 1 long, so the last token is always computed anew into a private page. Empty when caching is off.
  PrefixHit find_prefix(BlockTable& table, std::span<const int32_t> tokens);

  // Would allocate_slots succeed and leave `watermark_blocks` pages free?
  bool can_allocate(const BlockTable& table, int64_t num_tokens, const PrefixHit& hit = {},
                    int64_t watermark_blocks = 0) const;
  // Makes room for the positions [0, num_tokens) of the sequence: pages of `hit` first (the table must then be empty),
  // new ones behind. All or nothing: false, and nothing changed, when the pool has too few pages.
  [[nodiscard]] bool allocate_slots(BlockTable& table, int64_t num_tokens, const PrefixHit& hit = {});

  // slots[i] = the slot of position begin + i: page id * block_size + offset. These positions are about to be written,
  // so they must have room and lie behind the published pages (checked).
  void slot_mapping(const BlockTable& table, int64_t begin, std::span<int64_t> slots) const;

  // Says that the positions [0, num_computed) are in the pages now; full pages that are not yet in the prefix cache go
  // there. `tokens` are the sequence's tokens, at least num_computed of them.
  void commit(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed);

  // Gives the table's pages back (end, abort or preemption). Cached ones can still be hit until they are evicted.
  void free(BlockTable& table);

  // Forgets the prefix cache; false, and nothing changed, while any page is in use.
  [[nodiscard]] bool reset_prefix_cache() { return pool_.reset_prefix_cache(); }

  int32_t block_size() const { return options_.block_size; }
  bool prefix_caching() const { return options_.enable_prefix_caching; }
  int64_t blocks_for(int64_t num_tokens) const;  // pages that num_tokens positions need
  int64_t num_usable_tokens() const { return int64_t{pool_.num_usable()} * options_.block_size; }
  double usage() const { return pool_.usage(); }
  const PrefixStats& prefix_stats() const { return stats_; }
  const BlockPool& pool() const { return pool_; }

 private:
  void hash_full_pages(BlockTable& table, std::span<const int32_t> tokens, int64_t num_pages) const;
  PageKey page_key(const BlockTable& table, std::span<const int32_t> tokens, int64_t page, ContentId parent) const;
  int64_t pages_to_take(const BlockTable& table, int64_t num_tokens, const PrefixHit& hit) const;

  KvManagerOptions options_;
  PrefixHasher hasher_;
  BlockPool pool_;
  PrefixStats stats_;
};

}  // namespace quire::kv
