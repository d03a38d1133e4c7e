// SPDX-License-Identifier: Apache-2.0
// The pool of KV pages by id: reference counts, the free queue in eviction order, and the cache of full pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/prefix_tree.h"

namespace quire::kv {

// Hands out pages by id and remembers what full pages hold, by vLLM's rules:
//  - the free queue is a doubly linked list; allocation takes from its front;
//  - a page whose count falls to 0 goes to the back when it is cached (least recently used first out) and to the front
//    when it is not (nothing to lose); a request's pages are freed last page first, so a chain loses its tail before
//    its head;
//  - a hit takes the page out of the queue; a cached page that is popped leaves the tree of cached beginnings.
// Owned and used by the engine's thread alone. Invariant: each page but the null one is either in the free queue (count
// 0) or referenced (count > 0).
class BlockPool {
 public:
  // `num_blocks` counts the null page, so num_blocks - 1 are usable; at least 1. The tree has nodes of `unit` tokens.
  explicit BlockPool(int32_t num_blocks, int64_t unit = 1, int32_t num_groups = 1);

  // Appends n pages with count 1 to `out`, or does nothing and returns false when fewer are free.
  [[nodiscard]] bool allocate(int64_t n, std::vector<BlockId>& out);
  // One page with count 1; there must be one.
  BlockId allocate();
  // Drops one reference from each page of a sequence's table (given first page to last; null pages are skipped).
  void free(std::span<const BlockId> blocks);
  // Takes one more reference on each page (hits); free ones leave the queue.
  void touch(std::span<const BlockId> blocks);

  // Remembers what a referenced page holds: the text up to `node`, for a group. Once while it is held.
  void publish(BlockId block, NodeId node, int32_t group = 0);
  bool is_published(BlockId block) const { return tree_.node(block) != kNoNode; }
  PrefixTree& tree() { return tree_; }
  const PrefixTree& tree() const { return tree_; }
  // Forgets every cached page. Only if all pages are free; otherwise nothing changes and the answer is false.
  [[nodiscard]] bool reset_prefix_cache();

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_usable() const { return num_blocks() - 1; }
  int32_t num_free() const { return num_free_; }  // cached pages that nobody uses count as free
  int32_t num_cached() const { return tree_.num_pages(); }
  int64_t num_evictions() const { return num_evictions_; }
  int32_t ref_count(BlockId block) const { return blocks_[index(block)].refs; }
  double usage() const;  // 1 - free/usable; 0 for a pool without usable pages
  // The free queue from the next page to be taken to the last. O(free); for tests and dumps.
  std::vector<BlockId> free_queue() const;

 private:
  struct Block {
    int32_t refs = 0;
    BlockId free_prev = kNullBlock;  // neighbours in the free queue; the null page is its sentinel
    BlockId free_next = kNullBlock;
  };

  size_t index(BlockId block) const;
  void queue_insert(BlockId block, BlockId before);  // before the sentinel: at the back
  void queue_remove(BlockId block);

  std::vector<Block> blocks_;
  PrefixTree tree_;
  int32_t num_free_ = 0;
  int64_t num_evictions_ = 0;
};

}  // namespace quire::kv
