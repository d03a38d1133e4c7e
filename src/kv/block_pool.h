// SPDX-License-Identifier: Apache-2.0
// BlockPool: the ids of all KV pages, with reference counts, the free queue in eviction order, and the prefix cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/cache_events.h"
#include "kv/prefix_tree.h"

namespace quire::kv {

// Allocates pages by id and remembers what full pages hold, by vLLM's rules:
//  - The free queue is a doubly linked list; allocation takes from its front.
//  - A page whose reference count falls to 0 goes to the back of the queue if it is cached (so that the least recently
//    used page is evicted first), and to the front if it is not. The pages of a request are freed last page first, so
//    that a cached prompt loses its end before its beginning.
//  - A hit takes the page out of the queue. A cached page that is allocated again is removed from the prefix tree.
// Used on the engine's thread only. Invariant: each page except the null page is either in the free queue (count 0) or
// referenced (count > 0).
class BlockPool {
 public:
  // `num_blocks` includes the null page, so num_blocks - 1 pages are usable. REQUIRES: num_blocks >= 1. The nodes of
  // the prefix tree hold `unit` tokens each.
  explicit BlockPool(int32_t num_blocks, int64_t unit = 1, int32_t num_groups = 1);

  // Appends n pages with count 1 to `out`, or does nothing and returns false if fewer are free.
  [[nodiscard]] bool allocate(int64_t n, std::vector<BlockId>& out);
  // One page with count 1. REQUIRES: num_free() > 0.
  BlockId allocate();
  // Drops one reference from each page of a sequence's table (given first page to last; null pages are skipped).
  void free(std::span<const BlockId> blocks);
  // Adds one reference to each page (a hit); free pages leave the queue.
  void touch(std::span<const BlockId> blocks);

  // Adds a page to the prefix cache: it holds the last tokens of the prefix that ends at `node`, for a group.
  // Returns whether no other page holds the same. REQUIRES: the page is referenced and not published yet.
  bool publish(BlockId block, NodeId node, int32_t group = 0);
  bool is_published(BlockId block) const { return tree_.node(block) != kNoNode; }
  // Whether the page, or a part of it (PrefixTree::add_part), can be hit.
  bool is_cached(BlockId block) const { return is_published(block) || tree_.has_parts(block); }
  // Takes an unused page out of the queue to be written after its first positions: only the parts up to `end` can be
  // hit from now on.
  void reopen(BlockId block, int64_t end);
  // Forgets what an unused page holds; it is the next to be allocated.
  void drop(BlockId block);
  PrefixTree& tree() { return tree_; }
  const PrefixTree& tree() const { return tree_; }
  // `forget` is called with each page before it gets other contents.
  void set_on_forget(std::function<void(BlockId)> forget) { on_forget_ = std::move(forget); }
  // Empties the prefix cache. Returns false and changes nothing unless all pages are free.
  [[nodiscard]] bool reset_prefix_cache();
  // From now on evictions are noted in this log, which must outlive the pool.
  void set_events(CacheEventLog* events) { events_ = events; }

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_usable() const { return num_blocks() - 1; }
  int32_t num_free() const { return num_free_; }  // includes cached pages that no sequence uses
  int32_t num_cached() const { return tree_.num_pages(); }
  int64_t num_evictions() const { return num_evictions_; }
  int32_t ref_count(BlockId block) const { return blocks_[index(block)].refs; }
  double usage() const;  // 1 - free/usable; 0 for a pool without usable pages
  // The free queue, from the page that is allocated next. O(num_free()); for tests.
  std::vector<BlockId> free_queue() const;

 private:
  struct Block {
    int32_t refs = 0;
    BlockId free_prev = kNullBlock;  // neighbours in the free queue; the null page is its sentinel
    BlockId free_next = kNullBlock;
  };

  size_t index(BlockId block) const;
  void queue_insert(BlockId block, BlockId before);  // before == kNullBlock: at the back
  void queue_remove(BlockId block);
  void evict(BlockId block, int64_t end);
  void forget(BlockId block);

  std::vector<Block> blocks_;
  PrefixTree tree_;
  std::function<void(BlockId)> on_forget_;
  CacheEventLog* events_ = nullptr;
  int32_t num_free_ = 0;
  int64_t num_evictions_ = 0;
};

}  // namespace quire::kv
