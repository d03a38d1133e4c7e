// SPDX-License-Identifier: Apache-2.0
// The pool of KV pages: a doubly linked free queue through the pages themselves, and cached pages by hash.
#include "kv/block_pool.h"

#include <algorithm>

#include "base/check.h"

namespace quire::kv {

BlockPool::BlockPool(int32_t num_blocks) {
  QUIRE_CHECK(num_blocks >= 1, "a pool has at least the null page");
  blocks_.resize(static_cast<size_t>(num_blocks));
  blocks_[kNullBlock].refs = 1;  // never free
  for (BlockId id = 1; id < num_blocks; ++id) queue_insert(id, kNullBlock);
}

size_t BlockPool::index(BlockId block) const {
  QUIRE_CHECK(block >= 0 && block < num_blocks(), "not a page of this pool");
  return static_cast<size_t>(block);
}

void BlockPool::queue_insert(BlockId block, BlockId before) {
  Block& b = blocks_[index(block)];
  Block& next = blocks_[index(before)];
  b.free_prev = next.free_prev;
  b.free_next = before;
  blocks_[index(b.free_prev)].free_next = block;
  next.free_prev = block;
  ++num_free_;
}

void BlockPool::queue_remove(BlockId block) {
  Block& b = blocks_[index(block)];
  blocks_[index(b.free_prev)].free_next = b.free_next;
  blocks_[index(b.free_next)].free_prev = b.free_prev;
  b.free_prev = b.free_next = kNullBlock;
  --num_free_;
}

bool BlockPool::allocate(int64_t n, std::vector<BlockId>& out) {
  QUIRE_CHECK(n >= 0);
  if (n > num_free_) return false;
  for (int64_t i = 0; i < n; ++i) {
    const BlockId id = blocks_[kNullBlock].free_next;
    queue_remove(id);
    if (blocks_[index(id)].content != kRootContent) {
      forget(id);
      ++num_evictions_;
    }
    blocks_[index(id)].refs = 1;
    out.push_back(id);
  }
  return true;
}

void BlockPool::free(std::span<const BlockId> blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    if (*it == kNullBlock) continue;
    Block& b = blocks_[index(*it)];
    QUIRE_CHECK(b.refs > 0, "a page was freed more often than it was taken");
    if (--b.refs > 0) continue;
    const bool cached = b.content != kRootContent;
    queue_insert(*it, cached ? kNullBlock : blocks_[kNullBlock].free_next);
  }
}

void BlockPool::touch(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    QUIRE_CHECK(id != kNullBlock, "the null page can not be shared");
    Block& b = blocks_[index(id)];
    if (b.refs == 0) queue_remove(id);
    ++b.refs;
  }
}

bool BlockPool::holds(const Block& block, const PageKey& key) const {
  return block.parent == key.parent && block.extra == key.extra && std::ranges::equal(block.tokens, key.tokens);
}

BlockId BlockPool::find(const PageKey& key) const {
  const auto it = cached_.find(key.hash);
  if (it == cached_.end()) return kNullBlock;
  for (BlockId id = it->second.first; id != kNullBlock; id = blocks_[index(id)].same_next) {
    if (holds(blocks_[index(id)], key)) return id;
  }
  return kNullBlock;
}

ContentId BlockPool::publish(BlockId block, const PageKey& key) {
  Block& b = blocks_[index(block)];
  QUIRE_CHECK(block != kNullBlock && b.refs > 0, "only a page in use can be published");
  QUIRE_CHECK(b.content == kRootContent, "the page is published already");
  // Another page with the same content (two requests computed the same prompt at once) lends its id, so that pages
  // behind either are found behind both.
  const BlockId same = find(key);
  b.content = same != kNullBlock ? blocks_[index(same)].content : next_content_++;
  b.parent = key.parent;
  b.hash = key.hash;
  b.tokens.assign(key.tokens.begin(), key.tokens.end());
  b.extra = key.extra;
  Bucket& bucket = cached_[key.hash];
  b.same_prev = bucket.last;
  b.same_next = kNullBlock;
  if (bucket.last != kNullBlock) {
    blocks_[index(bucket.last)].same_next = block;
  } else {
    bucket.first = block;
  }
  bucket.last = block;
  ++num_cached_;
  return b.content;
}

void BlockPool::forget(BlockId block) {
  Block& b = blocks_[index(block)];
  const auto it = cached_.find(b.hash);
  QUIRE_CHECK(it != cached_.end());
  Bucket& bucket = it->second;
  (b.same_prev != kNullBlock ? blocks_[index(b.same_prev)].same_next : bucket.first) = b.same_next;
  (b.same_next != kNullBlock ? blocks_[index(b.same_next)].same_prev : bucket.last) = b.same_prev;
  if (bucket.first == kNullBlock) cached_.erase(it);
  b.same_prev = b.same_next = kNullBlock;
  b.content = b.parent = kRootContent;
  b.tokens.clear();
  b.extra.clear();
  --num_cached_;
}

bool BlockPool::reset_prefix_cache() {
  if (num_free_ != num_usable()) return false;
  for (BlockId id = 1; id < num_blocks(); ++id) {
    if (blocks_[index(id)].content != kRootContent) forget(id);
  }
  return true;
}

double BlockPool::usage() const {
  return num_usable() == 0 ? 0.0 : 1.0 - static_cast<double>(num_free_) / num_usable();
}

std::vector<BlockId> BlockPool::free_queue() const {
  std::vector<BlockId> queue;
  queue.reserve(static_cast<size_t>(num_free_));
  for (BlockId id = blocks_[kNullBlock].free_next; id != kNullBlock; id = blocks_[index(id)].free_next) {
    queue.push_back(id);
  }
  return queue;
}

}  // namespace quire::kv
