// SPDX-License-Identifier: Apache-2.0
// KvManager and recurrent states: where checkpoints are made, which of them stay, and how a step writes them.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "kv/kv_manager.h"
#include "kv/offload.h"

namespace quire::kv {
namespace {

constexpr int64_t kLeastInterval = 64;  // tokens
constexpr int64_t kBudgetShare = 4;     // checkpoints at intervals have at most 1/4 of the pages,
constexpr int64_t kPromptShare = 2;     // and those of one prompt half of that
constexpr int64_t kReserveShare = 8;    // no step takes pages for checkpoints if fewer than 1/8 would be left
constexpr int64_t kReservePages = 4;    // per state group: if fewer are free, decode makes no checkpoints inside pages

// The distance of the checkpoints near a position: at most an eighth of it, so that what another prompt has in common
// with this one is lost by an eighth at most, or by one interval.
int64_t spacing(int64_t interval, int64_t position) {
  while (16 * interval <= position) interval *= 2;
  return interval;
}

}  // namespace

// The interval for a prompt of this length; 0: none.
int64_t KvManager::interval_for(int64_t prompt) const {
  if (num_states_ == 0 || options_.checkpoint_interval == 0) return 0;
  if (options_.checkpoint_interval != KvManagerOptions::kAutoInterval) {
    return round_up(options_.checkpoint_interval, hit_unit_);
  }
  const int64_t most = pool_.num_usable() / (kBudgetShare * kPromptShare * num_states_);
  if (most == 0) return 0;
  for (int64_t interval = round_up(kLeastInterval, hit_unit_);; interval *= 2) {
    int64_t count = 0;
    for (int64_t at = interval; at < prompt && count <= most; at += spacing(interval, at)) ++count;
    if (count <= most) return interval;
  }
}

bool KvManager::at_interval(int64_t interval, int64_t position) const {
  if (interval == 0) return false;
  const bool even = options_.checkpoint_interval != KvManagerOptions::kAutoInterval;
  return position % (even ? interval : spacing(interval, position)) == 0;
}

// Whether a checkpoint is made at this position of a prompt.
bool KvManager::is_stop(const BlockTable& table, int64_t position) const {
  if (position == table.last_boundary_ || position == table.branch_) return true;
  return position < table.last_boundary_ && at_interval(table.interval_, position);
}

// Gives the next step pages for its states: where checkpoints are made, as far as there is room, and at its end.
void KvManager::allocate_states(BlockTable& table, int64_t end) {
  std::vector<int64_t>& ends = table.state_ends_;
  if (options_.enable_prefix_caching) {
    const int64_t last = std::min(end - 1, table.last_boundary_);
    for (int64_t at = (table.num_computed_ / hit_unit_ + 1) * hit_unit_; at <= last; at += hit_unit_) {
      if (is_stop(table, at)) ends.push_back(at);
    }
    const int64_t room = (pool_.num_free() - pool_.num_usable() / kReserveShare) / num_states_ - 1;
    const auto most = static_cast<size_t>(std::max<int64_t>(0, room));
    if (ends.size() > most) ends.erase(ends.begin(), ends.end() - static_cast<std::ptrdiff_t>(most));
  }
  ends.push_back(end);
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    if (options_.groups[g].kind != CacheKind::kState) continue;
    BlockTable::Group& mine = table.groups_[g];
    const bool in_place = mine.state != kNullBlock && !pool_.is_published(mine.state);
    if (in_place) mine.next_states.push_back(mine.state);
    QUIRE_CHECK(pool_.allocate(std::ssize(ends) - std::ssize(mine.next_states), mine.next_states));
  }
}

// Moves on to a state that the step has written.
void KvManager::advance_states(BlockTable& table, size_t write) {
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    if (options_.groups[g].kind != CacheKind::kState) continue;
    BlockTable::Group& mine = table.groups_[g];
    const BlockId next = mine.next_states[write];
    if (mine.state != next) pool_.free({&mine.state, 1});  // a checkpoint stays in the prefix cache
    mine.state = next;
  }
}

void KvManager::commit_states(BlockTable& table, std::span<const int32_t> tokens, int64_t num_computed) {
  std::vector<int64_t>& ends = table.state_ends_;
  size_t done = 0;
  for (; done < ends.size() && ends[done] <= num_computed; ++done) {
    advance_states(table, done);
    if (options_.enable_prefix_caching) publish_units(table, tokens, ends[done]);
  }
  QUIRE_CHECK(done > 0 && ends[done - 1] == num_computed, "allocate_slots was not called for this step");
  for (BlockTable::Group& mine : table.groups_) {
    if (mine.next_states.empty()) continue;
    pool_.free(std::span(mine.next_states).subspan(done));  // after drafts that were rejected
    mine.next_states.clear();
  }
  ends.clear();
}

// Publishes the states at a multiple of the hit unit, if a checkpoint is wanted there: the states in the table are
// those after `position` tokens, and the table's node is there.
void KvManager::make_checkpoint(BlockTable& table, std::span<const int32_t> tokens, int64_t position) {
  const bool decode = position > table.last_boundary_;
  const bool kept = decode ? position % keep_unit_ == 0 : position == table.last_boundary_ || position == table.branch_;
  if (!decode && !kept && !is_stop(table, position)) return;
  if (decode && !kept && pool_.num_free() < kReservePages * num_states_) return;
  if (decode) drop_checkpoint(std::exchange(table.newest_, {}));

  BlockTable::Checkpoint made{table.node_, position, {}};
  const bool known = find_states(table.node_);
  bool inside = false;
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    BlockTable::Group& mine = table.groups_[g];
    const auto group = static_cast<int32_t>(g);
    if (ends_inside(g, position)) {
      inside = true;
      const auto page = static_cast<size_t>(position / options_.groups[g].block_size);
      pool_.tree().add_part(mine.blocks[page], table.node_, group, position);
    }
    if (options_.groups[g].kind != CacheKind::kState || known) continue;
    publish(table, tokens, g, mine.state, table.node_, position);
    made.pages.push_back(mine.state);
  }
  if (offload_ != nullptr && (kept || decode)) {
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      if (options_.groups[g].kind != CacheKind::kState) continue;
      const PageKey key = page_key(table, tokens, table.num_units_, g);
      if (!kept || known) continue;
      offload_->note(key, 0, position, tokens);
      offload_->store(key, table.groups_[g].state);
    }
    if (kept && inside) table.unstored_parts_.push_back(position);
  }
  if (kept || known) return;
  if (decode) {
    table.newest_ = std::move(made);
    return;
  }
  at_intervals_.push_back(std::move(made));
  while (std::ssize(at_intervals_) * num_states_ > pool_.num_usable() / kBudgetShare) {
    drop_checkpoint(at_intervals_.front());
    at_intervals_.pop_front();
  }
}

// Forgets a checkpoint that nobody uses, unless it is gone already.
void KvManager::drop_checkpoint(const BlockTable::Checkpoint& checkpoint) {
  const auto idle = [&](BlockId page) {
    return pool_.tree().node(page) == checkpoint.node && pool_.ref_count(page) == 0;
  };
  if (checkpoint.node == kNoNode || !std::ranges::all_of(checkpoint.pages, idle)) return;
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    if (options_.groups[g].kind != CacheKind::kState) {
      pool_.tree().drop_part(checkpoint.node, static_cast<int32_t>(g));
    }
  }
  for (const BlockId page : checkpoint.pages) pool_.drop(page);
}

// A page of the group is complete: a tier gets the parts of it that end at checkpoints. Before that it is being
// written.
void KvManager::store_parts(BlockTable& table, size_t group, int64_t page_end) {
  const int64_t size = options_.groups[group].block_size;
  for (const int64_t end : table.unstored_parts_) {
    if (end <= page_end - size || end >= page_end) continue;
    const PageKey key{table.prefixes_[static_cast<size_t>(end / hash_unit_) - 1], static_cast<int32_t>(group)};
    offload_->note(key, page_end - size, end, {});
    offload_->store(key, table.groups_[group].blocks[static_cast<size_t>(end / size)]);
  }
}

// The sequence has ended: a tier gets the last checkpoint of its answer, and the parts of pages that are not complete.
void KvManager::store_last_parts(BlockTable& table) {
  if (offload_ == nullptr || table.groups_.empty()) return;
  const BlockTable::Checkpoint& newest = table.newest_;
  const bool there = newest.node != kNoNode && std::ranges::all_of(newest.pages, [&](BlockId page) {
                       return pool_.tree().node(page) == newest.node;
                     });
  size_t state = 0;
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    const CacheGroup& group = options_.groups[g];
    const BlockTable::Group& mine = table.groups_[g];
    const auto store = [&](int64_t end, BlockId page) {
      if (page == kNullBlock) return;
      const PageKey key{table.prefixes_[static_cast<size_t>(end / hash_unit_) - 1], static_cast<int32_t>(g)};
      const int64_t begin = group.kind == CacheKind::kState ? 0 : end / group.block_size * group.block_size;
      offload_->note(key, begin, end, {});
      offload_->store(key, page);
    };
    if (group.kind == CacheKind::kState) {
      if (there) store(newest.end, newest.pages[state++]);
      continue;
    }
    if (there && ends_inside(g, newest.end))
      store(newest.end, mine.blocks[static_cast<size_t>(newest.end / group.block_size)]);
    for (const int64_t end : table.unstored_parts_) {
      if (ends_inside(g, end) && end / group.block_size >= mine.num_published)
        store(end, mine.blocks[static_cast<size_t>(end / group.block_size)]);
    }
  }
}

}  // namespace quire::kv
