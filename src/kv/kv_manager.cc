// SPDX-License-Identifier: Apache-2.0
// The KV cache as the scheduler sees it: tables over the pool, hits over the hash chain.
#include "kv/kv_manager.h"

#include <algorithm>

#include "base/check.h"

namespace quire::kv {

KvManager::KvManager(const KvManagerOptions& options, PrefixHasher hasher)
    : options_(options), hasher_(hasher), pool_(options.num_blocks) {
  QUIRE_CHECK(options.block_size > 0);
}

int64_t KvManager::blocks_for(int64_t num_tokens) const {
  return (num_tokens + options_.block_size - 1) / options_.block_size;
}

void KvManager::hash_full_pages(BlockTable& table, std::span<const int32_t> tokens, int64_t num_pages) const {
  const size_t size = static_cast<size_t>(options_.block_size);
  for (size_t page = table.hashes_.size(); page < static_cast<size_t>(num_pages); ++page) {
    const BlockHash parent = page == 0 ? BlockHash{} : table.hashes_.back();
    const std::string_view extra = page == 0 ? std::string_view(table.salt_) : std::string_view();
    table.hashes_.push_back(hasher_.hash(parent, tokens.subspan(page * size, size), extra));
  }
}

PageKey KvManager::page_key(const BlockTable& table, std::span<const int32_t> tokens, int64_t page,
                            ContentId parent) const {
  const size_t size = static_cast<size_t>(options_.block_size);
  const size_t p = static_cast<size_t>(page);
  return {.hash = table.hashes_[p],
          .parent = parent,
          .tokens = tokens.subspan(p * size, size),
          .extra = page == 0 ? std::string_view(table.salt_) : std::string_view()};
}

PrefixHit KvManager::find_prefix(BlockTable& table, std::span<const int32_t> tokens) {
  PrefixHit hit;
  if (!options_.enable_prefix_caching || tokens.empty()) return hit;
  const int64_t max_pages = (static_cast<int64_t>(tokens.size()) - 1) / options_.block_size;
  ContentId parent = kRootContent;
  for (int64_t page = 0; page < max_pages; ++page) {
    hash_full_pages(table, tokens, page + 1);  // only as far as it hits
    const BlockId block = pool_.find(page_key(table, tokens, page, parent));
    if (block == kNullBlock) break;
    hit.blocks.push_back(block);
    parent = pool_.content(block);
  }
  hit.num_tokens = static_cast<int64_t>(hit.blocks.size()) * options_.block_size;
  hit.queried_tokens = static_cast<int64_t>(tokens.size());
  return hit;
}

int64_t KvManager::pages_to_take(const BlockTable& table, int64_t num_tokens, const PrefixHit& hit) const {
  QUIRE_CHECK(hit.blocks.empty() || table.blocks_.empty(), "a hit starts a sequence, it can not extend one");
  const int64_t have = static_cast<int64_t>(table.blocks_.size() + hit.blocks.size());
  return std::max<int64_t>(0, blocks_for(num_tokens) - have);
}

bool KvManager::can_allocate(const BlockTable& table, int64_t num_tokens, const PrefixHit& hit,
                             int64_t watermark_blocks) const {
  // A page that is hit while nobody holds it is still in the free queue: it can not be taken a second time.
  const auto idle = std::ranges::count_if(hit.blocks, [this](BlockId id) { return pool_.ref_count(id) == 0; });
  return pages_to_take(table, num_tokens, hit) + idle + watermark_blocks <= pool_.num_free();
}

bool KvManager::allocate_slots(BlockTable& table, int64_t num_tokens, const PrefixHit& hit) {
  if (!can_allocate(table, num_tokens, hit)) return false;
  const int64_t n = pages_to_take(table, num_tokens, hit);
  if (!hit.blocks.empty()) {
    pool_.touch(hit.blocks);  // first, or the allocation below could evict them
    table.blocks_ = hit.blocks;
    table.num_published_ = static_cast<int64_t>(hit.blocks.size());
    table.last_content_ = pool_.content(hit.blocks.back());
    QUIRE_CHECK(table.last_content_ != kRootContent, "a stale hit: pages were taken since find_prefix");
  }
  QUIRE_CHECK(pool_.allocate(n, table.blocks_));
  if (hit.queried_tokens > 0 && hit.counted) {
    ++stats_.requests;
    stats_.queried_tokens += hit.queried_tokens;
    stats_.hit_tokens += hit.num_tokens;
  }
  return true;
}

void KvManager::slot_mapping(const BlockTable& table, int64_t begin, std::span<int64_t> slots) const {
  const int64_t size = options_.block_size;
  const int64_t end = begin + static_cast<int64_t>(slots.size());
  QUIRE_CHECK(begin >= table.num_published_ * size, "a published page must not be written");
  QUIRE_CHECK(end <= static_cast<int64_t>(table.blocks_.size()) * size, "the positions have no pages yet");
  for (int64_t pos = begin; pos < end; ++pos) {
    const int64_t page = table.blocks_[static_cast<size_t>(pos / size)];
    slots[static_cast<size_t>(pos - begin)] = page * size + pos % size;
  }
}

void KvManager::commit(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed) {
  QUIRE_CHECK(num_computed <= static_cast<int64_t>(tokens.size()));
  QUIRE_CHECK(num_computed <= static_cast<int64_t>(table.blocks_.size()) * options_.block_size);
  if (!options_.enable_prefix_caching) return;
  const int64_t full = num_computed / options_.block_size;
  hash_full_pages(table, tokens, full);
  for (int64_t page = table.num_published_; page < full; ++page) {
    const BlockId block = table.blocks_[static_cast<size_t>(page)];
    table.last_content_ = pool_.publish(block, page_key(table, tokens, page, table.last_content_));
    table.num_published_ = page + 1;
  }
}

void KvManager::free(BlockTable& table) {
  pool_.free(table.blocks_);
  table.blocks_.clear();
  table.num_published_ = 0;
  table.last_content_ = kRootContent;
}

}  // namespace quire::kv
