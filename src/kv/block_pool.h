// SPDX-License-Identifier: Apache-2.0
// The pool of KV pages by id: reference counts, the free queue in eviction order, and the cache of full pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/prefix_hash.h"

namespace quire::kv {

using BlockId = int32_t;
// Page 0 stands for "no page" in block tables: it is never handed out, and never freed.
inline constexpr BlockId kNullBlock = 0;

// Names one content: the token ids of a full page together with everything before it. Two pages that hold the same
// content carry the same id; a number is never used again, so a stale parent can not be mistaken for a live one.
using ContentId = uint64_t;
inline constexpr ContentId kRootContent = 0;  // the parent of a sequence's first page

// What a full page holds, as publish() and find() take it. The views need to live only for the call.
struct PageKey {
  BlockHash hash = {};                   // of all that follows
  ContentId parent = kRootContent;       // content of the page before
  std::span<const int32_t> tokens = {};  // the page's token ids
  std::string_view extra = {};           // salt and other keys; first page only
};

// Hands out pages by id and remembers what full pages hold, by vLLM's rules:
//  - the free queue is a doubly linked list; allocation takes from its front;
//  - a page whose count falls to 0 goes to the back when it is cached (least recently used first out) and to the front
//    when it is not (nothing to lose); a request's pages are freed last page first, so a chain loses its tail before
//    its head;
//  - a hit takes the page out of the queue; a cached page that is popped forgets its content.
// A hash only finds candidates: a hit compares token ids, extra keys and the parent's content, so a collision can cost
// a hit and never serve a wrong page.
// Owned and used by the engine's thread alone. Invariant: each page but the null one is either in the free queue (count
// 0) or referenced (count > 0).
class BlockPool {
 public:
  // `num_blocks` counts the null page, so num_blocks - 1 are usable; at least 1.
  explicit BlockPool(int32_t num_blocks);

  // Appends n pages with count 1 to `out`, or does nothing and returns false when fewer are free.
  [[nodiscard]] bool allocate(int64_t n, std::vector<BlockId>& out);
  // Drops one reference from each page of a sequence's table (given first page to last; null pages are skipped).
  void free(std::span<const BlockId> blocks);
  // Takes one more reference on each page (hits); free ones leave the queue.
  void touch(std::span<const BlockId> blocks);

  // The cached page with this content, or kNullBlock. The reference count does not change.
  BlockId find(const PageKey& key) const;
  // Remembers what a referenced page holds; returns its content. A page is published once while it is held.
  ContentId publish(BlockId block, const PageKey& key);
  // The content of a cached page; kRootContent when it is not cached.
  ContentId content(BlockId block) const { return blocks_[index(block)].content; }
  // Forgets every cached page. Only if all pages are free; otherwise nothing changes and the answer is false.
  [[nodiscard]] bool reset_prefix_cache();

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_usable() const { return num_blocks() - 1; }
  int32_t num_free() const { return num_free_; }  // cached pages that nobody uses count as free
  int32_t num_cached() const { return num_cached_; }
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
    BlockId same_prev = kNullBlock;  // neighbours among the cached pages of one hash, oldest first
    BlockId same_next = kNullBlock;
    ContentId content = kRootContent;  // not root: cached
    ContentId parent = kRootContent;
    BlockHash hash;
    std::vector<int32_t> tokens;
    std::string extra;
  };
  struct Bucket {
    BlockId first = kNullBlock;
    BlockId last = kNullBlock;
  };

  size_t index(BlockId block) const;
  bool holds(const Block& block, const PageKey& key) const;
  void queue_insert(BlockId block, BlockId before);  // before the sentinel: at the back
  void queue_remove(BlockId block);
  void forget(BlockId block);

  std::vector<Block> blocks_;
  std::unordered_map<BlockHash, Bucket, BlockHashToSize> cached_;
  int32_t num_free_ = 0;
  int32_t num_cached_ = 0;
  int64_t num_evictions_ = 0;
  ContentId next_content_ = kRootContent + 1;
};

}  // namespace quire::kv
