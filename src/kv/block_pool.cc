// SPDX-License-Identifier: Apache-2.0
// The block pool: the free queue is a doubly linked list whose links are in the blocks.
#include "kv/block_pool.h"

#include "base/check.h"

namespace quire::kv {

BlockPool::BlockPool(int32_t num_blocks, int64_t unit, int32_t num_groups) : tree_(unit, num_groups, num_blocks) {
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

void BlockPool::forget(BlockId block) {
  if (is_published(block)) tree_.detach(block);
  tree_.drop_parts(block);
  if (on_forget_) on_forget_(block);
}

bool BlockPool::allocate(int64_t n, std::vector<BlockId>& out) {
  QUIRE_CHECK(n >= 0);
  if (n > num_free_) return false;
  for (int64_t i = 0; i < n; ++i) out.push_back(allocate());
  return true;
}

BlockId BlockPool::allocate() {
  QUIRE_CHECK(num_free_ > 0, "the pool is empty");
  const BlockId id = blocks_[kNullBlock].free_next;
  queue_remove(id);
  if (is_cached(id)) {
    evict(id, 0);
  } else if (on_forget_) {
    on_forget_(id);
  }
  blocks_[index(id)].refs = 1;
  return id;
}

// Takes a page out of the cache, except for its parts up to `end`.
void BlockPool::evict(BlockId block, int64_t end) {
  if (is_published(block)) {
    const int32_t group = tree_.group(block);
    const BlockHash hash = tree_.hash(tree_.node(block));
    const bool last = tree_.detach(block);
    if (last && events_ != nullptr) events_->removed(group, hash.lo);
    ++num_evictions_;
  }
  tree_.drop_parts(block, end);
  if (on_forget_) on_forget_(block);
}

void BlockPool::reopen(BlockId block, int64_t end) {
  touch({&block, 1});
  QUIRE_CHECK(ref_count(block) == 1, "a page in use cannot be written by others");
  evict(block, end);
}

void BlockPool::drop(BlockId block) {
  QUIRE_CHECK(ref_count(block) == 0);
  queue_remove(block);
  evict(block, 0);
  queue_insert(block, blocks_[kNullBlock].free_next);
}

void BlockPool::free(std::span<const BlockId> blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    if (*it == kNullBlock) continue;
    Block& b = blocks_[index(*it)];
    QUIRE_CHECK(b.refs > 0, "a page was freed more often than it was taken");
    if (--b.refs > 0) continue;
    queue_insert(*it, is_cached(*it) ? kNullBlock : blocks_[kNullBlock].free_next);
  }
}

void BlockPool::touch(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    QUIRE_CHECK(id != kNullBlock, "the null page cannot be shared");
    Block& b = blocks_[index(id)];
    if (b.refs == 0) queue_remove(id);
    ++b.refs;
  }
}

bool BlockPool::publish(BlockId block, NodeId node, int32_t group) {
  QUIRE_CHECK(block != kNullBlock && ref_count(block) > 0, "only a page in use can be published");
  return tree_.attach(block, node, group);
}

bool BlockPool::reset_prefix_cache() {
  if (num_free_ != num_usable()) return false;
  for (BlockId id = 1; id < num_blocks(); ++id) {
    if (is_cached(id)) forget(id);
  }
  if (events_ != nullptr) events_->cleared();
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
