// SPDX-License-Identifier: Apache-2.0
// KvManager: hits in the prefix tree, pages from the pool, and what each kind of group does with them.
#include "kv/kv_manager.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kv/offload.h"

namespace quire::kv {
namespace {

KvManagerOptions with_groups(KvManagerOptions options) {
  QUIRE_CHECK(options.block_size > 0);
  if (options.groups.empty() && !options.keeps_nothing) options.groups = {{CacheKind::kFull, options.block_size, 0}};
  return options;
}

int64_t common_unit(std::span<const CacheGroup> groups) {
  int64_t unit = 0;
  for (const CacheGroup& group : groups) unit = std::gcd(unit, group.block_size);
  return std::max<int64_t>(unit, 1);
}

// Positions at which pages of all attention groups end.
int64_t page_unit(std::span<const CacheGroup> groups) {
  constexpr int64_t kStatesAlone = 512;
  int64_t unit = 1;
  for (const CacheGroup& group : groups) {
    if (group.kind != CacheKind::kState) unit = std::lcm(unit, group.block_size);
  }
  return unit == 1 ? kStatesAlone : unit;
}

int64_t blocks_for(const CacheGroup& group, int64_t num_tokens) {
  return (num_tokens + group.block_size - 1) / group.block_size;
}

}  // namespace

KvManager::KvManager(const KvManagerOptions& options, PrefixHasher hasher)
    : options_(with_groups(options)),
      policy_{options.max_step_tokens, options.enable_prefix_caching},
      hash_unit_(common_unit(options_.groups)),
      hit_unit_(kv::hit_unit(options_.groups)),
      num_states_(std::ranges::count(options_.groups, CacheKind::kState, &CacheGroup::kind)),
      keep_unit_(page_unit(options_.groups)),
      hasher_(hasher),
      pool_(options.num_blocks, hash_unit_, static_cast<int32_t>(std::max<size_t>(options_.groups.size(), 1))) {}

// The key of a unit. Hashes are computed up to the unit and kept in the table.
UnitKey KvManager::unit_key(BlockTable& table, std::span<const int32_t> tokens, int64_t unit) const {
  const size_t size = static_cast<size_t>(hash_unit_);
  const auto extra = [&](size_t u) { return u == 0 ? std::string_view(table.salt_) : std::string_view(); };
  for (size_t u = table.hashes_.size(); u <= static_cast<size_t>(unit); ++u) {
    const BlockHash parent = u == 0 ? BlockHash{} : table.hashes_.back();
    table.hashes_.push_back(hasher_.hash(parent, tokens.subspan(u * size, size), extra(u)));
  }
  const size_t u = static_cast<size_t>(unit);
  return {.hash = table.hashes_[u], .tokens = tokens.subspan(u * size, size), .extra = extra(u)};
}

// The number of leading units of `tokens` that are in the tree with pages of all full groups. Sets path_.
int64_t KvManager::walk(BlockTable& table, std::span<const int32_t> tokens) {
  const int64_t most = (static_cast<int64_t>(tokens.size()) - 1) / hash_unit_;
  path_.assign(1, kRootNode);
  for (int64_t unit = 0; unit < most; ++unit) {
    const NodeId node = pool_.tree().find(path_.back(), unit_key(table, tokens, unit));
    if (node == kNoNode) return unit;
    const int64_t end = (unit + 1) * hash_unit_;
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      const CacheGroup& group = options_.groups[g];
      if (group.kind != CacheKind::kFull || end % group.block_size != 0) continue;
      if (pool_.tree().page(node, static_cast<int32_t>(g)) == kNullBlock) return unit;
    }
    path_.push_back(node);
  }
  return most;
}

bool KvManager::find_states(NodeId node) const {
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    if (options_.groups[g].kind != CacheKind::kState) continue;
    if (pool_.tree().page(node, static_cast<int32_t>(g)) == kNullBlock) return false;
  }
  return true;
}

// Whether a prefix of this length ends inside a page of the group.
bool KvManager::ends_inside(size_t group, int64_t position) const {
  const CacheGroup& g = options_.groups[group];
  return g.kind != CacheKind::kState && position % g.block_size != 0;
}

bool KvManager::find_parts(NodeId node, int64_t num_tokens) const {
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    if (ends_inside(g, num_tokens) && pool_.tree().part(node, static_cast<int32_t>(g)) == kNullBlock) return false;
  }
  return true;
}

// A hit of num_tokens needs some pages of the window groups. Returns the position at which the last missing one begins,
// or num_tokens if none is missing. Longer hits lack that page too, until the window has passed it.
int64_t KvManager::missing_in_windows(int64_t num_tokens) const {
  int64_t begin = num_tokens;
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    const CacheGroup& group = options_.groups[g];
    if (group.kind != CacheKind::kWindow) continue;
    for (int64_t page = num_tokens / group.block_size - 1; page >= first_seen_page(group, num_tokens); --page) {
      const NodeId node = path_[static_cast<size_t>((page + 1) * group.block_size / hash_unit_)];
      if (pool_.tree().page(node, static_cast<int32_t>(g)) != kNullBlock) continue;
      begin = std::min(begin, page * group.block_size);
      break;
    }
  }
  return begin;
}

// Fills in the pages of a hit of hit.num_tokens along path_.
void KvManager::collect(PrefixHit& hit) const {
  hit.node = path_[static_cast<size_t>(hit.num_tokens / hash_unit_)];
  hit.groups.resize(options_.groups.size());
  hit.parts.resize(options_.groups.size(), kNullBlock);
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    const CacheGroup& group = options_.groups[g];
    std::vector<BlockId>& blocks = hit.groups[g];
    if (group.kind == CacheKind::kState) {
      blocks.assign(1, pool_.tree().page(hit.node, static_cast<int32_t>(g)));
      continue;
    }
    if (ends_inside(g, hit.num_tokens)) hit.parts[g] = pool_.tree().part(hit.node, static_cast<int32_t>(g));
    blocks.assign(static_cast<size_t>(hit.num_tokens / group.block_size), kNullBlock);
    for (int64_t page = first_seen_page(group, hit.num_tokens); page < static_cast<int64_t>(blocks.size()); ++page) {
      const NodeId node = path_[static_cast<size_t>((page + 1) * group.block_size / hash_unit_)];
      blocks[static_cast<size_t>(page)] = pool_.tree().page(node, static_cast<int32_t>(g));
    }
  }
}

PrefixHit KvManager::find_prefix(BlockTable& table, std::span<const int32_t> tokens, bool read) {
  PrefixHit hit;
  if (!options_.enable_prefix_caching || tokens.empty()) return hit;
  table.last_boundary_ = (static_cast<int64_t>(tokens.size()) - 1) / hit_unit_ * hit_unit_;
  table.branch_ = 0;
  table.interval_ = interval_for(static_cast<int64_t>(tokens.size()));
  if (!read) return hit;
  hit.queried_tokens = static_cast<int64_t>(tokens.size());
  const int64_t known = walk(table, tokens) * hash_unit_ / hit_unit_ * hit_unit_;
  int64_t length = known;
  while (length > 0) {
    const int64_t begin = missing_in_windows(length);
    const NodeId node = path_[static_cast<size_t>(length / hash_unit_)];
    if (begin == length && find_states(node) && find_parts(node, length)) break;
    length = std::min(begin, length - 1) / hit_unit_ * hit_unit_;
  }
  if (length < known) table.branch_ = known;
  hit.num_tokens = length;
  if (length > 0) collect(hit);
  if (table.found_before_restore_ >= 0) {
    hit.restored_tokens = std::max<int64_t>(0, std::min(length, table.restored_to_) - table.found_before_restore_);
    hit.from_disk = table.restored_from_disk_;
  }
  return hit;
}

// Pages of a hit that no sequence holds are still in the free queue, but cannot be allocated to anything else.
int64_t KvManager::idle_pages(const PrefixHit& hit) const {
  int64_t idle = 0;
  for (const auto& blocks : hit.groups) {
    idle += std::ranges::count_if(blocks, [&](BlockId id) { return id != kNullBlock && pool_.ref_count(id) == 0; });
  }
  return idle;
}

bool KvManager::can_admit(int64_t num_tokens, const PrefixHit& hit) const {
  int64_t pages = idle_pages(hit);
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    const auto have = std::ranges::count_if(hit.blocks(g), [](BlockId id) { return id != kNullBlock; });
    pages += std::max<int64_t>(0, max_pages(options_.groups[g], hit_unit_, num_tokens, policy_) - have);
  }
  return pages <= pool_.num_free();
}

int64_t KvManager::pages_to_take(const BlockTable& table, int64_t num_tokens, const PrefixHit& hit) const {
  QUIRE_CHECK(hit.num_tokens == 0 || table.empty(), "a hit starts a sequence, it cannot extend one");
  int64_t pages = 0;
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    const CacheGroup& group = options_.groups[g];
    if (group.kind == CacheKind::kState) {
      // A state is overwritten in place unless it is published.
      const BlockTable::Group* have = g < table.groups_.size() ? &table.groups_[g] : nullptr;
      const bool ready = have != nullptr && (!have->next_states.empty() ||
                                             (have->state != kNullBlock && !pool_.is_published(have->state)));
      pages += ready ? 0 : 1;
      continue;
    }
    const auto have = static_cast<int64_t>(table.blocks(g).size() + hit.blocks(g).size());
    pages += std::max<int64_t>(0, blocks_for(group, num_tokens) - have);
  }
  return pages;
}

bool KvManager::can_allocate(const BlockTable& table, int64_t num_tokens, const PrefixHit& hit) const {
  return pages_to_take(table, num_tokens, hit) + idle_pages(hit) <= pool_.num_free();
}

// The pages in which the hit ends: each is taken if nobody uses it and nothing else of it can be hit, or if there is no
// page to spare; otherwise it is copied.
void KvManager::start_parts(BlockTable& table, const PrefixHit& hit, int64_t spare_pages) {
  std::vector<BlockId> held;
  std::vector<size_t> copied;
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    const BlockId page = hit.parts[g];
    if (page == kNullBlock) continue;
    if (pool_.ref_count(page) > 0) {
      copied.push_back(g);
      continue;
    }
    const bool more = pool_.is_published(page) || pool_.tree().last_part(page).second > hit.num_tokens;
    if (!more || spare_pages <= 0) {
      pool_.reopen(page, hit.num_tokens);
      table.groups_[g].blocks.push_back(page);
      continue;
    }
    pool_.touch({&page, 1});  // so that no allocation takes it before it is copied
    held.push_back(page);
    --spare_pages;
    copied.push_back(g);
  }
  for (const size_t g : copied) {
    const BlockId page = pool_.allocate();
    if (copy_page_) copy_page_(hit.parts[g], page, g);
    pool_.tree().move_parts(hit.parts[g], page, hit.num_tokens);
    table.groups_[g].blocks.push_back(page);
  }
  pool_.free(held);
}

// Takes the hit's pages into the table.
void KvManager::start(BlockTable& table, const PrefixHit& hit, int64_t spare_pages) {
  if (hit.num_tokens > 0) {
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      BlockTable::Group& mine = table.groups_[g];
      const std::vector<BlockId>& blocks = hit.groups[g];
      const int64_t left = first_seen_page(options_.groups[g], hit.num_tokens);
      for (const BlockId id : blocks) {
        QUIRE_CHECK(id == kNullBlock || pool_.is_published(id), "a stale hit: pages were allocated since find_prefix");
      }
      if (options_.groups[g].kind == CacheKind::kState) {
        pool_.touch(blocks);
        mine.state = blocks.front();
        continue;
      }
      pool_.touch(std::span(blocks).subspan(static_cast<size_t>(left)));
      mine.blocks = blocks;
      mine.num_published = static_cast<int64_t>(blocks.size());
      mine.num_skipped = left;
    }
    pool_.tree().retain(hit.node);
    table.node_ = hit.node;
    table.num_units_ = hit.num_tokens / hash_unit_;
    table.num_computed_ = hit.num_tokens;
    start_parts(table, hit, spare_pages);
    // A checkpoint that was of use stays until it is evicted.
    std::erase_if(at_intervals_, [&](const auto& checkpoint) { return checkpoint.node == hit.node; });
  }
  if (hit.queried_tokens > 0 && hit.counted) {
    ++stats_.requests;
    stats_.queried_tokens += hit.queried_tokens;
    stats_.hit_tokens += hit.num_tokens - hit.restored_tokens;
    if (offload_ != nullptr && offload_->has_tiers()) {
      stats_.offload_queried_tokens += hit.queried_tokens - (hit.num_tokens - hit.restored_tokens);
      stats_.offload_hit_tokens += hit.restored_tokens;
    }
  }
  table.found_before_restore_ = -1;
  table.unmarked_hit_ = hit.num_tokens;
}

bool KvManager::allocate_slots(BlockTable& table, int64_t num_tokens, const PrefixHit& hit) {
  const int64_t spare = pool_.num_free() - pages_to_take(table, num_tokens, hit) - idle_pages(hit);
  if (spare < 0) return false;
  table.groups_.resize(options_.groups.size());
  start(table, hit, spare);  // first, so that the allocation below cannot evict the hit's pages
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    const CacheGroup& group = options_.groups[g];
    BlockTable::Group& mine = table.groups_[g];
    if (group.kind == CacheKind::kState) continue;
    const int64_t more = blocks_for(group, num_tokens) - static_cast<int64_t>(mine.blocks.size());
    if (more > 0) QUIRE_CHECK(pool_.allocate(more, mine.blocks));
  }
  if (num_states_ > 0 && table.state_ends_.empty()) allocate_states(table, num_tokens);
  return true;
}

bool KvManager::allocate_drafts(BlockTable& table, int64_t num_tokens, int64_t drafts) {
  const int64_t pages = pages_to_take(table, num_tokens + drafts, {}) + drafts * num_states_;
  if (pages > pool_.num_free()) return false;
  QUIRE_CHECK(allocate_slots(table, num_tokens + drafts));
  if (num_states_ == 0) return true;
  QUIRE_CHECK(table.state_ends_.back() == num_tokens);
  for (int64_t i = 1; i <= drafts; ++i) table.state_ends_.push_back(num_tokens + i);
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    if (options_.groups[g].kind == CacheKind::kState) QUIRE_CHECK(pool_.allocate(drafts, table.groups_[g].next_states));
  }
  return true;
}

void KvManager::slot_mapping(const BlockTable& table, size_t group, int64_t begin, std::span<int64_t> slots) const {
  const int64_t size = options_.groups[group].block_size;
  const int64_t end = begin + static_cast<int64_t>(slots.size());
  const std::span<const BlockId> blocks = table.blocks(group);
  QUIRE_CHECK(begin >= table.num_published(group) * size, "a published page must not be written");
  QUIRE_CHECK(end <= static_cast<int64_t>(blocks.size()) * size, "the positions have no pages yet");
  for (int64_t pos = begin; pos < end; ++pos) {
    const int64_t page = blocks[static_cast<size_t>(pos / size)];
    slots[static_cast<size_t>(pos - begin)] = page * size + pos % size;
  }
}

void KvManager::record_events() {
  records_events_ = true;
  pool_.set_events(&events_);
}

// Publishes a page of the table that ends at the position `end`, where the table's node is.
void KvManager::publish(const BlockTable& table, std::span<const int32_t> tokens, size_t group, BlockId block,
                        NodeId node, int64_t end) {
  const bool first = pool_.publish(block, node, static_cast<int32_t>(group));
  if (!first || !records_events_) return;
  const int64_t begin = end - options_.groups[group].block_size;
  const auto hash_at = [&](int64_t position) {
    return table.hashes_[static_cast<size_t>(position / hash_unit_ - 1)].lo;
  };
  events_.stored(static_cast<int32_t>(group), hash_at(end), begin > 0 ? std::optional(hash_at(begin)) : std::nullopt,
                 tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), table.origin_);
}

// Adds the units that are full now to the tree, and publishes the pages that end there.
void KvManager::publish_units(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed) {
  for (; (table.num_units_ + 1) * hash_unit_ <= num_computed; ++table.num_units_) {
    const NodeId node = pool_.tree().extend(table.node_, unit_key(table, tokens, table.num_units_));
    if (table.node_ != kRootNode) pool_.tree().release(table.node_);
    table.node_ = node;
    const int64_t end = (table.num_units_ + 1) * hash_unit_;
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      const CacheGroup& group = options_.groups[g];
      if (group.kind == CacheKind::kState || end % group.block_size != 0) continue;
      BlockTable::Group& mine = table.groups_[g];
      const BlockId block = mine.blocks[static_cast<size_t>(mine.num_published)];
      publish(table, tokens, g, block, node, end);
      if (offload_ != nullptr) {
        const PageKey key = page_key(table, tokens, table.num_units_ + 1, g);
        offload_->note(key, end - group.block_size, end, tokens);
        offload_->store(key, block);
      }
      ++mine.num_published;
      store_parts(table, g, end);
    }
  }
  if (num_states_ > 0 && num_computed % hit_unit_ == 0) make_checkpoint(table, tokens, num_computed);
}

// Frees the pages that no later token attends to.
void KvManager::free_skipped(BlockTable& table, int64_t num_computed) {
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    BlockTable::Group& mine = table.groups_[g];
    const int64_t seen = first_seen_page(options_.groups[g], num_computed);
    for (; mine.num_skipped < std::min(seen, static_cast<int64_t>(mine.blocks.size())); ++mine.num_skipped) {
      BlockId& block = mine.blocks[static_cast<size_t>(mine.num_skipped)];
      pool_.free({&block, 1});
      block = kNullBlock;
    }
  }
}

void KvManager::commit(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed) {
  QUIRE_CHECK(num_computed <= static_cast<int64_t>(tokens.size()));
  if (offload_ != nullptr && table.unmarked_hit_ > 0) store_hit(table, tokens);
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    if (options_.groups[g].kind == CacheKind::kState) continue;
    QUIRE_CHECK(num_computed <= static_cast<int64_t>(table.blocks(g).size()) * options_.groups[g].block_size);
  }
  if (num_states_ > 0) {
    commit_states(table, tokens, num_computed);
  } else if (options_.enable_prefix_caching) {
    publish_units(table, tokens, num_computed);
  }
  table.num_computed_ = num_computed;
  free_skipped(table, num_computed);
}

void KvManager::trim(BlockTable& table, int64_t num_tokens) {
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    if (options_.groups[g].kind == CacheKind::kState) continue;
    BlockTable::Group& mine = table.groups_[g];
    const auto keep = static_cast<size_t>(blocks_for(options_.groups[g], num_tokens));
    if (keep >= mine.blocks.size()) continue;
    QUIRE_CHECK(mine.num_published <= static_cast<int64_t>(keep), "a published page holds accepted tokens");
    pool_.free(std::span(mine.blocks).subspan(keep));
    mine.blocks.resize(keep);
  }
}

void KvManager::free(BlockTable& table, bool preempted) {
  if (restoring(table)) cancel_restore(table);
  if (!preempted) store_last_parts(table);
  for (BlockTable::Group& mine : table.groups_) {
    if (!mine.next_states.empty() && mine.next_states.front() == mine.state) mine.next_states.front() = kNullBlock;
    pool_.free({&mine.state, 1});
    pool_.free(mine.next_states);
    pool_.free(mine.blocks);
    mine.blocks.clear();
    mine.next_states.clear();
    mine.num_published = mine.num_skipped = 0;
    mine.state = kNullBlock;
  }
  table.state_ends_.clear();
  table.unstored_parts_.clear();
  table.newest_ = {};
  table.num_computed_ = 0;
  if (table.node_ != kRootNode) pool_.tree().release(table.node_);
  table.node_ = kRootNode;
  table.num_units_ = 0;
}

}  // namespace quire::kv
