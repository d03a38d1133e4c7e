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
  explicit BlockTable(std::string salt = {}) : salt_(std::move(salt)), stored_salt_(salt_), origin_{.salt = salt_} {}
  // `stored` takes its place in tiers that outlive the process.
  BlockTable(std::string salt, std::string stored)
      : salt_(std::move(salt)), stored_salt_(std::move(stored)), origin_{.salt = salt_} {}
  ~BlockTable();
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  std::span<const BlockId> blocks(size_t group = 0) const {
    return group < groups_.size() ? std::span<const BlockId>(groups_[group].blocks) : std::span<const BlockId>();
  }
  const std::string& salt() const { return salt_; }
  // What events say instead of the salt.
  void set_origin(CacheOrigin origin) { origin_ = std::move(origin); }
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
    for (const BlockId state : mine.next_states) {
      if (state != mine.state) use(state, size_t{0});
    }
  }
  // The page from which the next step reads its state (-1: it is the first step) and the page to which it writes it.
  int32_t state_source(size_t group) const;
  int32_t state_destination(size_t group) const { return state_after(group, state_ends_.size() - 1); }
  // The lengths of the sequence after which the step writes a state, ascending: where a checkpoint is made, before each
  // draft, and at the end. The first page may be the source; the others are not.
  std::span<const int64_t> state_ends() const { return state_ends_; }
  int32_t state_after(size_t group, size_t end) const;

 private:
  friend class KvManager;
  struct Group {
    std::vector<BlockId> blocks;
    int64_t num_published = 0;
    int64_t num_skipped = 0;  // leading pages that the window has passed; they are freed
    BlockId state = kNullBlock;
    std::vector<BlockId> next_states;  // that a step writes, from allocate_slots to commit; see state_ends()
  };
  // The pages of all state groups after the same token.
  struct Checkpoint {
    NodeId node = kNoNode;  // kNoNode: none
    int64_t end = 0;
    std::vector<BlockId> pages = {};
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
  CacheOrigin origin_;
  std::vector<Group> groups_;            // empty until allocate_slots
  std::vector<BlockHash> hashes_;        // of the first full units, as many as were needed so far
  std::vector<Sha256::Value> prefixes_;  // for the tiers: the digests of the first full units, as for hashes_
  std::optional<Restore> restore_;
  int64_t found_before_restore_ = -1;  // tokens in the cache when the last restore began; -1: there was none
  int64_t restored_to_ = 0;            // where the first page begins that it could not read, or its end
  bool restored_from_disk_ = false;
  int64_t unmarked_hit_ = 0;  // tokens of the hit with which it began, until the tiers know of its use
  std::vector<int64_t> state_ends_;
  int64_t num_computed_ = 0;  // at the last commit, or of the hit
  int64_t num_units_ = 0;     // units that are in the prefix tree
  NodeId node_ = kRootNode;   // where those units end; referenced unless it is the root
  // Where checkpoints are made (kv_checkpoints.cc), besides at the multiples of an interval and in decode.
  int64_t branch_ = 0;                   // where other cached sequences branch off
  int64_t last_boundary_ = 0;            // the last multiple of hit_unit in the prompt
  int64_t interval_ = 0;                 // 0: none
  Checkpoint newest_;                    // that decode has made; the next one replaces it
  std::vector<int64_t> unstored_parts_;  // checkpoints whose parts of pages a tier gets when the pages are complete
};

}  // namespace quire::kv
