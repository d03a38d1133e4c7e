// SPDX-License-Identifier: Apache-2.0
// Moves of block tables, and the check that no page leaks.
#include "kv/block_table.h"

#include <algorithm>

#include "base/check.h"

namespace quire::kv {

bool BlockTable::empty() const {
  return node_ == kRootNode && !restore_ && std::ranges::all_of(groups_, [](const Group& group) {
           return group.blocks.empty() && group.state == kNullBlock && group.next_state == kNullBlock &&
                  group.draft_states.empty();
         });
}

BlockTable::~BlockTable() {
  QUIRE_CHECK(empty(), "a block table is destroyed with pages: KvManager::free was not called");
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : salt_(std::move(other.salt_)),
      stored_salt_(std::move(other.stored_salt_)),
      groups_(std::exchange(other.groups_, {})),
      hashes_(std::exchange(other.hashes_, {})),
      prefixes_(std::exchange(other.prefixes_, {})),
      restore_(std::exchange(other.restore_, std::nullopt)),
      found_before_restore_(std::exchange(other.found_before_restore_, -1)),
      restored_from_disk_(other.restored_from_disk_),
      unmarked_hit_(std::exchange(other.unmarked_hit_, 0)),
      first_draft_(other.first_draft_),
      num_units_(std::exchange(other.num_units_, 0)),
      node_(std::exchange(other.node_, kRootNode)),
      branch_(other.branch_),
      last_boundary_(other.last_boundary_) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  QUIRE_CHECK(empty(), "a sequence was overwritten with pages: KvManager::free was not called");
  salt_ = std::move(other.salt_);
  stored_salt_ = std::move(other.stored_salt_);
  groups_ = std::exchange(other.groups_, {});
  hashes_ = std::exchange(other.hashes_, {});
  prefixes_ = std::exchange(other.prefixes_, {});
  restore_ = std::exchange(other.restore_, std::nullopt);
  found_before_restore_ = std::exchange(other.found_before_restore_, -1);
  restored_from_disk_ = other.restored_from_disk_;
  unmarked_hit_ = std::exchange(other.unmarked_hit_, 0);
  first_draft_ = other.first_draft_;
  num_units_ = std::exchange(other.num_units_, 0);
  node_ = std::exchange(other.node_, kRootNode);
  branch_ = other.branch_;
  last_boundary_ = other.last_boundary_;
  return *this;
}

int32_t BlockTable::state_source(size_t group) const {
  const BlockId state = groups_[group].state;
  return state == kNullBlock ? -1 : state;
}

int32_t BlockTable::state_destination(size_t group, int64_t drafts) const {
  QUIRE_CHECK(groups_[group].next_state != kNullBlock, "allocate_slots was not called for this step");
  return drafts == 0 ? groups_[group].next_state : groups_[group].draft_states.at(static_cast<size_t>(drafts - 1));
}

}  // namespace quire::kv
