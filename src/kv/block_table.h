// SPDX-License-Identifier: Apache-2.0
// BlockTable: the pages of one sequence in each cache group.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/block_pool.h"
#include "kv/offload_types.h"

namespace quire::kv {

// The pages of one sequence. In an attention group, page i holds the positions [i*block_size, (i+1)*block_size); pages
// before a sliding window are kNullBlock. A state group has the page with the sequence's state and, between
// KvManager::allocate_slots and commit, the pages that the step writes. The hashes of the sequence's full units are
// kept too (tokens are only ever appended), also during a preemption, so that a waiting request is hashed once. Owned
// by the sequence, filled by KvManager, used on the engine's thread. REQUIRES: KvManager::free is called before the
// destructor, which checks that the table has no pages.
class BlockTable {
 public:
  // `salt` separates users in the prefix cache: equal tokens with different salts share no pages.
  explicit BlockTable(std::string salt = {}) : salt_(std::move(salt)), stored_salt_(salt_) {}
  // `stored` takes its place in tiers that outlive the process.
  BlockTable(std::string salt, std::string stored) : salt_(std::move(salt)), stored_salt_(std::move(stored)) {}
  ~BlockTable();
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  std::span<const BlockId> blocks(size_t group = 0) const {
    return group < groups_.size() ? std::span<const BlockId>(groups_[group].blocks) : std::span<const BlockId>();
  }
  const std::string& salt() const { return salt_; }
  // The number of leading pages that are in the prefix cache; they are never written again.
  int64_t num_published(size_t group = 0) const { return group < groups_.size() ? groups_[group].num_published : 0; }
  // Calls use(page, i) for each page of a group: page i of blocks(), or a state that is kept or being written (i is 0).
  template <class Use>
  void each_page(size_t group, Use use) const {
    if (group >= groups_.size()) return;
    const Group& mine = groups_[group];
    for (size_t i = static_cast<size_t>(mine.num_skipped); i < mine.blocks.size(); ++i) {
      if (mine.blocks[i] != kNullBlock) use(mine.blocks[i], i);
    }
    if (mine.state != kNullBlock) use(mine.state, size_t{0});
    if (mine.next_state != kNullBlock && mine.next_state != mine.state) use(mine.next_state, size_t{0});
    for (const BlockId state : mine.draft_states) use(state, size_t{0});
  }
  // The page from which the next step reads its state (-1: it is the first step) and the page to which it writes it:
  // after the tokens of the sequence, or after so many drafts.
  int32_t state_source(size_t group) const;
  int32_t state_destination(size_t group, int64_t drafts = 0) const;

 private:
  friend class KvManager;
  struct Group {
    std::vector<BlockId> blocks;
    int64_t num_published = 0;
    int64_t num_skipped = 0;  // leading pages that the window has passed; they are freed
    BlockId state = kNullBlock;
    BlockId next_state = kNullBlock;    // that a step writes, from allocate_slots to commit
    std::vector<BlockId> draft_states;  // likewise, after each draft
  };
  bool empty() const;
  // Pages that come back from a tier; see KvManager::start_restore.
  struct Restore {
    struct Part {
      int64_t end = 0;  // where the page ends, in units
      PageLoadPtr load;
    };
    std::vector<Part> parts;    // by their ends
    std::vector<BlockId> held;  // pages of the prefix that are in the cache, so that they stay there
  };

  std::string salt_;
  std::string stored_salt_;
  std::vector<Group> groups_;            // empty until allocate_slots
  std::vector<BlockHash> hashes_;        // of the first full units, as many as were needed so far
  std::vector<Sha256::Value> prefixes_;  // for the tiers: the digests of the first full units, as for hashes_
  std::optional<Restore> restore_;
  int64_t found_before_restore_ = -1;  // tokens in the cache when the last restore began; -1: there was none
  bool restored_from_disk_ = false;
  int64_t unmarked_hit_ = 0;   // tokens of the hit with which it began, until the tiers know of its use
  int64_t first_draft_ = 0;    // the position of the first draft, if there are draft states
  int64_t num_units_ = 0;      // units that are in the prefix tree
  NodeId node_ = kRootNode;    // where those units end; referenced unless it is the root
  int64_t branch_ = 0;         // where other cached sequences branch off: a checkpoint is made here
  int64_t last_boundary_ = 0;  // and at every multiple of hit_unit from here on
};

}  // namespace quire::kv
