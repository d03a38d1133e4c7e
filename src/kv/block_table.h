// SPDX-License-Identifier: Apache-2.0
// The pages of one sequence: for each cache group those of its positions, or its state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/block_pool.h"

namespace quire::kv {

// One sequence's pages. In a group of attention, page i holds the positions [i*block_size, (i+1)*block_size), and pages
// that a window left behind are kNullBlock; a group of states has the page with the sequence's state, and from the
// moment a step is given room until it is committed also the page that the step writes. Held by the request, filled by
// KvManager alone, used on the engine's thread. It must be given back (KvManager::free) before it dies: a table that
// dies with pages is a leak and a failed check. The hashes of the sequence's full units are kept with it (tokens are
// only ever appended), also over a preemption, so a request that waits is hashed once.
class BlockTable {
 public:
  // `salt` separates the prefix cache between users: equal tokens under another salt share nothing.
  explicit BlockTable(std::string salt = {}) : salt_(std::move(salt)) {}
  ~BlockTable();
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  std::span<const BlockId> blocks(size_t group = 0) const {
    return group < groups_.size() ? std::span<const BlockId>(groups_[group].blocks) : std::span<const BlockId>();
  }
  const std::string& salt() const { return salt_; }
  // How many leading pages are in the prefix cache (hits and published ones); they are never written again.
  int64_t num_published(size_t group = 0) const { return group < groups_.size() ? groups_[group].num_published : 0; }
  // The page that the next step reads a state from (-1: the sequence begins) and the one that it writes it to.
  int32_t state_source(size_t group) const;
  int32_t state_destination(size_t group) const;

 private:
  friend class KvManager;
  struct Group {
    std::vector<BlockId> blocks;
    int64_t num_published = 0;
    int64_t num_left = 0;  // leading pages that a window left behind
    BlockId state = kNullBlock;
    BlockId next_state = kNullBlock;  // where the step that has room writes; kNullBlock when none has
  };
  bool empty() const;

  std::string salt_;
  std::vector<Group> groups_;      // filled at the first use
  std::vector<BlockHash> hashes_;  // of the sequence's first full units, as far as known
  int64_t num_units_ = 0;          // committed to the tree
  NodeId node_ = kRootNode;        // where they end; referenced unless it is the root
  int64_t junction_ = 0;           // where others' texts leave this one's: a checkpoint is wanted
  int64_t last_boundary_ = 0;      // and at every boundary from here on
};

}  // namespace quire::kv
