// SPDX-License-Identifier: Apache-2.0
// What the scheduler asks of the KV cache: prefix hits, room for new tokens, slot mappings, pages given back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "kv/cache_groups.h"
#include "kv/prefix_hash.h"

namespace quire::kv {

struct KvManagerOptions {
  int32_t num_blocks = 0;   // with the null page (MemoryPlan::num_blocks)
  int32_t block_size = 16;  // of the one group there is when `groups` is empty
  bool enable_prefix_caching = true;
  std::vector<CacheGroup> groups = {};
  int64_t max_step_tokens = 0;  // of one sequence in one step; 0: no bound
};

// Pages that already hold the beginning of a sequence. Not referenced yet: it is valid until the next call that
// allocates, so it goes straight into can_admit and allocate_slots.
struct PrefixHit {
  std::vector<std::vector<BlockId>> groups;  // as a table has them, left-behind pages null; a state: its one page
  NodeId node = kRootNode;                   // where it ends
  int64_t num_tokens = 0;
  int64_t queried_tokens = 0;  // of the sequence that was looked up; for the statistics
  bool counted = true;         // in the statistics; false for one that comes back after a preemption

  std::span<const BlockId> blocks(size_t group = 0) const {
    return group < groups.size() ? std::span<const BlockId>(groups[group]) : std::span<const BlockId>();
  }
};

// For vLLM's counters prefix_cache_queries and prefix_cache_hits: in tokens, counted when a sequence gets its first
// pages (so that one that waits and asks at every step counts once).
struct PrefixStats {
  int64_t requests = 0;
  int64_t queried_tokens = 0;
  int64_t hit_tokens = 0;
};

// Owns the pool; fills the sequences' tables, one for each cache group. Engine thread only. A page that is published
// (shared or shareable) is never written: positions to write always lie in private pages behind the published ones.
//
// The rules of a group, by its kind:
//  - full: a page for each block_size positions, held until the sequence ends;
//  - window: the same, but a page whose positions no later token sees is given back after the step;
//  - state: one page, written in place. When a step ends at a checkpoint (see step_end) its page is published and so
//    never written again: the next step reads it and writes a fresh one, and then drops it. No state is ever copied.
// A hit of length L needs the full groups' pages up to L, the window groups' pages that the token at L sees, and a
// checkpoint of each state group at L exactly.
//
// One request:  hit = find_prefix(table, tokens); if (!can_admit(tokens.size(), hit)) wait;
//               end = step_end(table, computed, computed + chunk);
//               if (!allocate_slots(table, end, hit)) wait or preempt;
//               slot_mapping(table, group, computed, slots); run the step; commit(table, tokens, end);
//               ... at the end, or when preempted: free(table).
class KvManager {
 public:
  explicit KvManager(const KvManagerOptions& options, PrefixHasher hasher = PrefixHasher::random());

  // The longest cached prefix of `tokens` (all tokens of the sequence: prompt and output) that every group has, at most
  // tokens.size() - 1 long, so the last token is always computed anew into a private page. Empty when caching is off,
  // and without `read` (every row is wanted). The places of the sequence's checkpoints are settled here too.
  PrefixHit find_prefix(BlockTable& table, std::span<const int32_t> tokens, bool read = true);
  // Where a step that wants to compute the positions [begin, end) has to stop, so that a state is at hand there: the
  // last boundary of hit_unit() before the tokens' end, and where other sequences leave this one's text.
  int64_t step_end(const BlockTable& table, int64_t begin, int64_t end) const;

  // Would a sequence that begins with `hit` find room until its first num_tokens positions are computed?
  bool can_admit(int64_t num_tokens, const PrefixHit& hit) const;
  // Would allocate_slots succeed?
  bool can_allocate(const BlockTable& table, int64_t num_tokens, const PrefixHit& hit = {}) const;
  // Makes room for a step that ends with position num_tokens - 1: pages of `hit` first (the table must then be empty),
  // new ones behind. All or nothing: false, and nothing changed, when the pool has too few pages.
  [[nodiscard]] bool allocate_slots(BlockTable& table, int64_t num_tokens, const PrefixHit& hit = {});

  // slots[i] = the slot of position begin + i in a group of attention: page id * block_size + offset. These positions
  // are about to be written, so they must have room and lie behind the published pages (checked).
  void slot_mapping(const BlockTable& table, size_t group, int64_t begin, std::span<int64_t> slots) const;

  // Says that the positions [0, num_computed) are in the pages now, and states with them. Full pages and checkpoints
  // that are not yet in the prefix cache go there; pages that windows left behind are given back. `tokens` are the
  // sequence's tokens, at least num_computed of them.
  void commit(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed);

  // Gives the table's pages back (end, abort or preemption). Cached ones can still be hit until they are evicted.
  void free(BlockTable& table);

  // Forgets the prefix cache; false, and nothing changed, while any page is in use.
  [[nodiscard]] bool reset_prefix_cache() { return pool_.reset_prefix_cache(); }

  std::span<const CacheGroup> groups() const { return options_.groups; }
  bool prefix_caching() const { return options_.enable_prefix_caching; }
  int64_t hit_unit() const { return hit_unit_; }
  // The most pages that a sequence of this length ever holds.
  int64_t pages_for(int64_t num_tokens) const { return most_pages(options_.groups, num_tokens, rules_); }
  double usage() const { return pool_.usage(); }
  const PrefixStats& prefix_stats() const { return stats_; }
  const BlockPool& pool() const { return pool_; }

 private:
  UnitKey unit_key(BlockTable& table, std::span<const int32_t> tokens, int64_t unit) const;
  int64_t walk(BlockTable& table, std::span<const int32_t> tokens);
  bool find_states(NodeId node) const;
  int64_t missing_in_windows(int64_t num_tokens) const;
  void collect(PrefixHit& hit) const;
  int64_t pages_to_take(const BlockTable& table, int64_t num_tokens, const PrefixHit& hit) const;
  int64_t idle_pages(const PrefixHit& hit) const;
  void start(BlockTable& table, const PrefixHit& hit);
  void publish_units(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed);
  void leave_behind(BlockTable& table, int64_t num_computed);

  KvManagerOptions options_;
  StepRules rules_;
  int64_t hash_unit_ = 0;  // tokens of a node
  int64_t hit_unit_ = 0;   // tokens between possible ends of a hit
  bool has_states_ = false;
  PrefixHasher hasher_;
  BlockPool pool_;
  PrefixStats stats_;
  std::vector<NodeId> path_;  // of the last walk: path_[i] is where i units end
};

}  // namespace quire::kv
