// SPDX-License-Identifier: Apache-2.0
// KvManager: the scheduler's interface to the KV cache: prefix hits, pages for new tokens, slot mappings.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "kv/cache_groups.h"
#include "kv/prefix_hash.h"

namespace quire::kv {

struct KvManagerOptions {
  int32_t num_blocks = 0;   // includes the null page (MemoryPlan::num_blocks)
  int32_t block_size = 16;  // of the only group, if `groups` is empty
  bool enable_prefix_caching = true;
  std::vector<CacheGroup> groups = {};
  bool keeps_nothing = false;   // an encoder: there are no groups, and a sequence takes no pages
  int64_t max_step_tokens = 0;  // of one sequence in one step; 0: unlimited
  // Tokens between the states of a prompt that are kept in case that another prompt leaves it there; 0: none.
  int64_t checkpoint_interval = 0;
  static constexpr int64_t kAutoInterval = -1;  // denser at the beginning of a prompt than later
};

// Cached pages that hold the beginning of a sequence. They are not referenced yet: a hit is valid until the next
// allocation, so pass it to can_admit and allocate_slots at once.
struct PrefixHit {
  std::vector<std::vector<BlockId>> groups;  // as in a BlockTable; a state group has one page
  std::vector<BlockId> parts;                // by group: a page whose first positions end the hit, or kNullBlock
  NodeId node = kRootNode;                   // where it ends
  int64_t num_tokens = 0;
  int64_t queried_tokens = 0;   // the length of the sequence that was looked up; for the statistics
  bool counted = true;          // in the statistics; false after a preemption
  int64_t restored_tokens = 0;  // of num_tokens: they came from a tier below the cache, just now
  bool from_disk = false;       // at least some of them

  std::span<const BlockId> blocks(size_t group = 0) const {
    return group < groups.size() ? std::span<const BlockId>(groups[group]) : std::span<const BlockId>();
  }
};

// For vLLM's counters prefix_cache_queries and prefix_cache_hits, in tokens. A sequence is counted when it gets its
// first pages, so that one that waits for several steps counts once.
struct PrefixStats {
  int64_t requests = 0;
  int64_t queried_tokens = 0;
  int64_t hit_tokens = 0;
  // Of the tiers below the cache: tokens that were looked up there, because the cache did not have them, and found.
  int64_t offload_queried_tokens = 0;
  int64_t offload_hit_tokens = 0;
};

// Owns the block pool and fills the block tables of the sequences. Engine thread only. A published page (one in the
// prefix cache) is never written: new positions always go to private pages after the published ones.
//
// What a sequence holds depends on the kind of the group:
//  - full: one page per block_size positions, until the sequence ends.
//  - window: the same, but a page is freed after the step when no later token attends to its positions.
//  - state: one page, written in place. Where a checkpoint is to be made, the step writes the state to a page of its
//  own,
//    which is published and thus never written again: a step that begins there reads it, writes a new page and then
//    drops it. States are never copied. A step with drafts also writes a page before each of them; the commit keeps the
//    one after the last accepted token.
// A hit of length L needs the pages of the full groups up to L, the pages of the window groups that the token at L
// attends to, and a checkpoint of each state group at exactly L. If L is inside a page of an attention group, the hit
// begins with a copy of a page that has the same beginning, or with that page itself if nobody else needs the rest.
//
// The calls for one request:
//   hit = find_prefix(table, tokens); if (!can_admit(tokens.size(), hit)) wait;
//   end = computed + chunk; if (!allocate_slots(table, end, hit)) wait or preempt;
//   slot_mapping(table, group, computed, slots); run the step; commit(table, tokens, end);
//   ... at the end, or when preempted: free(table).
class KvManager {
 public:
  explicit KvManager(const KvManagerOptions& options, PrefixHasher hasher = PrefixHasher::random());

  // The longest prefix of `tokens` (prompt and output of the sequence) that is cached in every group. It has at most
  // tokens.size() - 1 tokens, so the last token is always computed, into a private page. Empty if caching is off or
  // `read` is false (the logits of all rows are wanted). Also decides where the sequence makes checkpoints.
  PrefixHit find_prefix(BlockTable& table, std::span<const int32_t> tokens, bool read = true);
  // Whether there are enough pages for a sequence that starts with `hit`, until num_tokens positions are computed.
  bool can_admit(int64_t num_tokens, const PrefixHit& hit) const;
  // Whether allocate_slots would succeed.
  bool can_allocate(const BlockTable& table, int64_t num_tokens, const PrefixHit& hit = {}) const;
  // Gives the table pages for all positions below num_tokens: first those of `hit`, then new ones; and pages for the
  // checkpoints on the way there, if many are free. Returns false and changes nothing if the pool has too few pages.
  // REQUIRES: the table is empty if there is a hit.
  [[nodiscard]] bool allocate_slots(BlockTable& table, int64_t num_tokens, const PrefixHit& hit = {});

  // After allocate_slots(table, num_tokens): gives the table pages for so many drafts, too. Returns false and changes
  // nothing if the pool has too few pages. REQUIRES: the table has no pages for drafts yet.
  [[nodiscard]] bool allocate_drafts(BlockTable& table, int64_t num_tokens, int64_t drafts);

  // Sets slots[i] to the slot of position begin + i in an attention group: page id * block_size + offset.
  // REQUIRES: the positions have pages (allocate_slots), none of which is published.
  void slot_mapping(const BlockTable& table, size_t group, int64_t begin, std::span<int64_t> slots) const;

  // Call after a step: the positions [0, num_computed) are now in the pages. Publishes full pages and checkpoints, and
  // frees pages that a window has passed. If the step had drafts, num_computed counts the accepted ones, and the states
  // after rejected ones are dropped. REQUIRES: `tokens` has at least num_computed tokens of the sequence.
  void commit(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed);

  // Gives back the pages after the first num_tokens positions: those of drafts that were rejected.
  // REQUIRES: at least as many positions were committed as those pages begin after; none of them is published.
  void trim(BlockTable& table, int64_t num_tokens);

  // Frees the table's pages (end, abort or preemption). Published pages can be hit until they are evicted.
  void free(BlockTable& table, bool preempted = false);

  // `copy` is called to copy a page of a group. What the steps before have written must be copied, and what later steps
  // write must not.
  using CopyPage = std::function<void(BlockId from, BlockId to, size_t group)>;
  void set_copy(CopyPage copy) { copy_page_ = std::move(copy); }

  // The tiers below the cache: pages are copied to them when they are published. Set before the first request.
  void set_offload(Offload* offload);
  // Starts to read the pages with which a tier makes `hit` longer, into pages of the pool, and keeps them and those of
  // the hit from being evicted. False if there are none, or too few free pages. REQUIRES: the table is empty, and the
  // hit is valid; it is not valid any more if this returns true.
  bool start_restore(BlockTable& table, std::span<const int32_t> tokens, const PrefixHit& hit);
  bool restoring(const BlockTable& table) const { return table.restore_.has_value(); }
  // Whether all of its pages have been read.
  bool restored(const BlockTable& table) const;
  // Publishes the pages that were read, so that find_prefix finds them, and ends the restore.
  // REQUIRES: restored(), and the tokens of start_restore.
  void finish_restore(BlockTable& table, std::span<const int32_t> tokens);
  // Ends a restore at once and gives its pages back.
  void cancel_restore(BlockTable& table);
  // Gives back pages of cancelled restores that were still being read. Call once per step.
  void reap_cancelled();

  // Empties the prefix cache. Returns false and changes nothing while any page is in use.
  [[nodiscard]] bool reset_prefix_cache() { return pool_.reset_prefix_cache(); }

  // From now on changes of the prefix cache are noted; take_events() must then be called regularly.
  void record_events();
  // What has changed since the last call, in order.
  std::vector<CacheEvent> take_events() { return events_.take(); }

  std::span<const CacheGroup> groups() const { return options_.groups; }
  bool prefix_caching() const { return options_.enable_prefix_caching; }
  int64_t hit_unit() const { return hit_unit_; }
  // The most pages that a sequence of this length holds at once.
  int64_t pages_for(int64_t num_tokens) const { return max_pages(options_.groups, num_tokens, policy_); }
  double usage() const { return pool_.usage(); }
  const PrefixStats& prefix_stats() const { return stats_; }
  const BlockPool& pool() const { return pool_; }

 private:
  UnitKey unit_key(BlockTable& table, std::span<const int32_t> tokens, int64_t unit) const;
  int64_t walk(BlockTable& table, std::span<const int32_t> tokens);
  bool find_states(NodeId node) const;
  bool find_parts(NodeId node, int64_t num_tokens) const;
  bool ends_inside(size_t group, int64_t position) const;
  int64_t missing_in_windows(int64_t num_tokens) const;
  void collect(PrefixHit& hit) const;
  int64_t pages_to_take(const BlockTable& table, int64_t num_tokens, const PrefixHit& hit) const;
  int64_t idle_pages(const PrefixHit& hit) const;
  void start(BlockTable& table, const PrefixHit& hit, int64_t spare_pages);
  void start_parts(BlockTable& table, const PrefixHit& hit, int64_t spare_pages);
  void publish(const BlockTable& table, std::span<const int32_t> tokens, size_t group, BlockId block, NodeId node,
               int64_t end);
  void publish_units(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed);
  void free_skipped(BlockTable& table, int64_t num_computed);
  template <class Use>
  void each_needed_page(int64_t num_tokens, Use use) const;
  PageKey page_key(BlockTable& table, std::span<const int32_t> tokens, int64_t end, size_t group) const;
  void store_hit(BlockTable& table, std::span<const int32_t> tokens) const;

  // kv_checkpoints.cc
  int64_t interval_for(int64_t prompt) const;
  bool at_interval(int64_t interval, int64_t position) const;
  bool is_stop(const BlockTable& table, int64_t position) const;
  void allocate_states(BlockTable& table, int64_t end);
  void advance_states(BlockTable& table, size_t write);
  void commit_states(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed);
  void make_checkpoint(BlockTable& table, std::span<const int32_t> tokens, int64_t position);
  void drop_checkpoint(const BlockTable::Checkpoint& checkpoint);
  void store_parts(BlockTable& table, size_t group, int64_t page_end);
  void store_last_parts(BlockTable& table);

  KvManagerOptions options_;
  CachePolicy policy_;
  int64_t hash_unit_ = 0;   // tokens per node of the prefix tree
  int64_t hit_unit_ = 0;    // hits end at multiples of this
  int64_t num_states_ = 0;  // groups of states
  int64_t keep_unit_ = 0;   // decode keeps a checkpoint at each multiple of this
  PrefixHasher hasher_;
  CacheEventLog events_;
  bool records_events_ = false;
  BlockPool pool_;
  PrefixStats stats_;
  Offload* offload_ = nullptr;
  CopyPage copy_page_;
  std::deque<BlockTable::Checkpoint> at_intervals_;  // the oldest first; they have at most a quarter of the pages
  std::vector<PageLoadPtr> cancelled_;               // loads that were being read when they were cancelled
  std::vector<NodeId> path_;                         // of the last walk(): path_[i] is the node where i units end
};

}  // namespace quire::kv
