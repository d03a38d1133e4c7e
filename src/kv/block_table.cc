// SPDX-License-Identifier: Apache-2.0
// Moves of block tables, and the check that no page leaks.
#include "kv/block_table.h"

#include <algorithm>

#include "base/check.h"

namespace quire::kv {

bool BlockTable::empty() const {
  return node_ == kRootNode && !restore_ && std::ranges::all_of(groups_, [](const Group& group) {
           return group.blocks.empty() && group.state == kNullBlock && group.next_states.empty();
         });
}

BlockTable::~BlockTable() {
  QUIRE_CHECK(empty(), "a block table is destroyed with pages: KvManager::free was not called");
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : salt_(std::move(other.salt_)),
      stored_salt_(std::move(other.stored_salt_)),
      origin_(std::move(other.origin_)),
      groups_(std::exchange(other.groups_, {})),
      hashes_(std::exchange(other.hashes_, {})),
      prefixes_(std::exchange(other.prefixes_, {})),
      restore_(std::exchange(other.restore_, std::nullopt)),
      found_before_restore_(std::exchange(other.found_before_restore_, -1)),
      restored_to_(other.restored_to_),
      restored_from_disk_(other.restored_from_disk_),
      unmarked_hit_(std::exchange(other.unmarked_hit_, 0)),
      state_ends_(std::exchange(other.state_ends_, {})),
      num_computed_(std::exchange(other.num_computed_, 0)),
      num_units_(std::exchange(other.num_units_, 0)),
      node_(std::exchange(other.node_, kRootNode)),
      branch_(other.branch_),
      last_boundary_(other.last_boundary_),
      interval_(other.interval_),
      newest_(std::exchange(other.newest_, {})),
      unstored_parts_(std::exchange(other.unstored_parts_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  QUIRE_CHECK(empty(), "a sequence was overwritten with pages: KvManager::free was not called");
  salt_ = std::move(other.salt_);
  stored_salt_ = std::move(other.stored_salt_);
  origin_ = std::move(other.origin_);
  groups_ = std::exchange(other.groups_, {});
  hashes_ = std::exchange(other.hashes_, {});
  prefixes_ = std::exchange(other.prefixes_, {});
  restore_ = std::exchange(other.restore_, std::nullopt);
  found_before_restore_ = std::exchange(other.found_before_restore_, -1);
  restored_to_ = other.restored_to_;
  restored_from_disk_ = other.restored_from_disk_;
  unmarked_hit_ = std::exchange(other.unmarked_hit_, 0);
  state_ends_ = std::exchange(other.state_ends_, {});
  num_computed_ = std::exchange(other.num_computed_, 0);
  num_units_ = std::exchange(other.num_units_, 0);
  node_ = std::exchange(other.node_, kRootNode);
  branch_ = other.branch_;
  last_boundary_ = other.last_boundary_;
  interval_ = other.interval_;
  newest_ = std::exchange(other.newest_, {});
  unstored_parts_ = std::exchange(other.unstored_parts_, {});
  return *this;
}

int32_t BlockTable::state_source(size_t group) const {
  const BlockId state = groups_[group].state;
  return state == kNullBlock ? -1 : state;
}

int32_t BlockTable::state_after(size_t group, size_t end) const {
  QUIRE_CHECK(end < state_ends_.size(), "allocate_slots was not called for this step");
  return groups_[group].next_states[end];
}

}  // namespace quire::kv
