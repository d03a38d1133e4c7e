// SPDX-License-Identifier: Apache-2.0
// KvManager and the tiers: which pages of a prefix a tier can add, and how they become pages of the prefix cache.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_manager.h"
#include "kv/offload.h"

namespace quire::kv {

void KvManager::set_offload(Offload* offload) {
  QUIRE_CHECK(pool_.num_cached() == 0, "pages were published before there was a tier");
  offload_ = offload;
  pool_.set_on_forget([offload](BlockId page) { offload->overwrite(page); });
}

// The key of the page of a group that ends after `end` units. Digests are computed up to there and kept in the table.
PageKey KvManager::page_key(BlockTable& table, std::span<const int32_t> tokens, int64_t end, size_t group) const {
  const auto size = static_cast<size_t>(hash_unit_);
  for (size_t u = table.prefixes_.size(); u < static_cast<size_t>(end); ++u) {
    const Sha256::Value parent = u == 0 ? Sha256::Value{} : table.prefixes_.back();
    const std::string_view extra = u == 0 ? std::string_view(table.stored_salt_) : std::string_view();
    table.prefixes_.push_back(extend_prefix(parent, tokens.subspan(u * size, size), extra));
  }
  return {table.prefixes_[static_cast<size_t>(end) - 1], static_cast<int32_t>(group)};
}

// Calls use(end in units, group) for each page that a hit of num_tokens needs, by their ends.
template <class Use>
void KvManager::each_needed_page(int64_t num_tokens, Use use) const {
  for (int64_t end = 1; end <= num_tokens / hash_unit_; ++end) {
    const int64_t position = end * hash_unit_;
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      const CacheGroup& group = options_.groups[g];
      if (group.kind == CacheKind::kState) {
        if (position == num_tokens) use(end, g);
        continue;
      }
      const bool whole = position % group.block_size == 0;
      if (whole ? position / group.block_size > first_seen_page(group, num_tokens) : position == num_tokens)
        use(end, g);
    }
  }
}

// The pages of the hit with which a sequence began are marked as used in the tiers, and stored again where they are
// gone; but not a page that the sequence writes.
void KvManager::store_hit(BlockTable& table, std::span<const int32_t> tokens) const {
  each_needed_page(std::exchange(table.unmarked_hit_, 0), [&](int64_t end, size_t g) {
    const BlockTable::Group& mine = table.groups_[g];
    const CacheGroup& group = options_.groups[g];
    if (ends_inside(g, end * hash_unit_)) return offload_->mark_used(page_key(table, tokens, end, g));
    const bool is_state = group.kind == CacheKind::kState;
    const BlockId page =
        is_state ? mine.state : mine.blocks[static_cast<size_t>(end * hash_unit_ / group.block_size) - 1];
    offload_->store(page_key(table, tokens, end, g), page);
  });
}

bool KvManager::start_restore(BlockTable& table, std::span<const int32_t> tokens, const PrefixHit& hit) {
  if (offload_ == nullptr || !options_.enable_prefix_caching) return false;
  QUIRE_CHECK(table.empty() && !restoring(table));
  const PrefixTree& tree = pool_.tree();
  std::vector<NodeId> path = {kRootNode};  // by units; kNoNode where the cache has no such prefix
  const auto in_cache = [&](int64_t end, size_t g) {
    const NodeId node = path[static_cast<size_t>(end)];
    if (node == kNoNode) return kNullBlock;
    const auto group = static_cast<int32_t>(g);
    return ends_inside(g, end * hash_unit_) ? tree.part(node, group) : tree.page(node, group);
  };
  const auto available = [&](int64_t end, size_t g) {
    return in_cache(end, g) != kNullBlock || offload_->has(page_key(table, tokens, end, g));
  };
  // How far the cache and the tiers together have the pages of the full groups.
  const int64_t most = (static_cast<int64_t>(tokens.size()) - 1) / hash_unit_;
  for (int64_t end = 1; end <= most; ++end) {
    path.push_back(path.back() == kNoNode ? kNoNode : tree.find(path.back(), unit_key(table, tokens, end - 1)));
    bool all = true;
    for (size_t g = 0; all && g < options_.groups.size(); ++g) {
      const CacheGroup& group = options_.groups[g];
      if (group.kind == CacheKind::kFull && end * hash_unit_ % group.block_size == 0) all = available(end, g);
    }
    if (all) continue;
    path.pop_back();
    break;
  }
  // The longest hit for which all groups have what it needs.
  int64_t length = (static_cast<int64_t>(path.size()) - 1) * hash_unit_ / hit_unit_ * hit_unit_;
  for (; length > hit.num_tokens; length -= hit_unit_) {
    bool all = true;
    for (size_t g = 0; all && g < options_.groups.size(); ++g) {
      const CacheGroup& group = options_.groups[g];
      if (group.kind == CacheKind::kState || ends_inside(g, length)) all = available(length / hash_unit_, g);
      if (group.kind != CacheKind::kWindow) continue;
      for (int64_t page = length / group.block_size; all && page > first_seen_page(group, length); --page) {
        all = available(page * group.block_size / hash_unit_, g);
      }
    }
    if (all) break;
  }
  if (length <= hit.num_tokens) return false;

  BlockTable::Restore restore;
  std::vector<std::pair<int64_t, PageKey>> missing;
  each_needed_page(length, [&](int64_t end, size_t g) {
    if (const BlockId page = in_cache(end, g); page != kNullBlock) {
      restore.held.push_back(page);
    } else {
      missing.emplace_back(end, page_key(table, tokens, end, g));
    }
  });
  const auto idle = std::ranges::count_if(restore.held, [&](BlockId id) { return pool_.ref_count(id) == 0; });
  if (idle + static_cast<int64_t>(missing.size()) > pool_.num_free()) return false;
  pool_.touch(restore.held);
  for (const auto& [end, key] : missing) {
    const CacheGroup& group = options_.groups[static_cast<size_t>(key.group)];
    const int64_t last = end * hash_unit_;
    const bool is_state = group.kind == CacheKind::kState;
    offload_->note(key, is_state ? 0 : (last - 1) / group.block_size * group.block_size, last, tokens);
    restore.parts.push_back({end, offload_->load(key, pool_.allocate())});
  }
  // Pages of another engine are hits in the cache like those of this one.
  const bool tiers = std::ranges::any_of(restore.parts, [](const auto& part) { return !part.load->from_peer; });
  table.found_before_restore_ = tiers ? hit.num_tokens : -1;
  table.restored_from_disk_ = std::ranges::any_of(restore.parts, [](const auto& p) { return p.load->from_disk; });
  table.restore_ = std::move(restore);
  return true;
}

bool KvManager::restored(const BlockTable& table) const {
  return std::ranges::all_of(table.restore_->parts, [](const auto& part) { return part.load->ended(); });
}

void KvManager::finish_restore(BlockTable& table, std::span<const int32_t> tokens) {
  QUIRE_CHECK(restoring(table) && restored(table));
  const BlockTable::Restore restore = *std::exchange(table.restore_, std::nullopt);
  std::vector<PageLoadPtr> loads;
  for (const auto& part : restore.parts) loads.push_back(part.load);
  offload_->settle(loads);
  // What follows a page that could not be read was not restored, even if another sequence has computed it meanwhile.
  table.restored_to_ = std::ssize(tokens);
  for (const auto& [end, load] : restore.parts) {
    if (load->state == PageLoad::State::kDone) continue;
    const int64_t size = options_.groups[static_cast<size_t>(load->key.group)].block_size;
    table.restored_to_ = std::min(table.restored_to_, (end * hash_unit_ - 1) / size * size);
  }
  std::vector<NodeId> nodes;
  NodeId node = kRootNode;
  std::vector<BlockId> pages = restore.held;
  for (const auto& [end, load] : restore.parts) {
    for (auto unit = static_cast<int64_t>(nodes.size()); unit < end; ++unit) {
      node = pool_.tree().extend(node, unit_key(table, tokens, unit));
      nodes.push_back(node);
    }
    pages.push_back(load->page);
    if (load->state != PageLoad::State::kDone) continue;
    offload_->complete(*load);
    // Another sequence may have computed the same page meanwhile.
    const auto group = load->key.group;
    if (ends_inside(static_cast<size_t>(group), end * hash_unit_)) {
      if (pool_.tree().part(node, group) == kNullBlock)
        pool_.tree().add_part(load->page, node, group, end * hash_unit_);
      continue;
    }
    if (pool_.tree().page(node, group) != kNullBlock) continue;
    publish(table, tokens, static_cast<size_t>(group), load->page, node, end * hash_unit_);
  }
  pool_.free(pages);
  for (const NodeId one : nodes) pool_.tree().release(one);
}

void KvManager::cancel_restore(BlockTable& table) {
  QUIRE_CHECK(restoring(table));
  const BlockTable::Restore restore = *std::exchange(table.restore_, std::nullopt);
  for (const auto& [end, load] : restore.parts) {
    if (offload_->cancel(*load)) {
      pool_.free({&load->page, 1});
    } else {
      cancelled_.push_back(load);
    }
  }
  pool_.free(restore.held);
  table.found_before_restore_ = -1;
}

void KvManager::reap_cancelled() {
  std::erase_if(cancelled_, [&](const PageLoadPtr& load) {
    if (!load->ended()) return false;
    pool_.free({&load->page, 1});
    return true;
  });
}

}  // namespace quire::kv
