// SPDX-License-Identifier: Apache-2.0
// The pages of one sequence, in order of position.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/block_pool.h"

namespace quire::kv {

// One sequence's pages: page i holds the positions [i*block_size, (i+1)*block_size). Held by the request, filled by
// KvManager alone, used on the engine's thread. It must be given back (KvManager::free) before it dies: a table that
// dies with pages is a leak and a failed check. The hashes of the sequence's full pages are kept with it (tokens are
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

  std::span<const BlockId> blocks() const { return blocks_; }
  const std::string& salt() const { return salt_; }
  // How many leading pages are in the prefix cache (hits and published ones); they are never written again.
  int64_t num_published() const { return num_published_; }

 private:
  friend class KvManager;
  std::string salt_;
  std::vector<BlockId> blocks_;
  std::vector<BlockHash> hashes_;  // of the sequence's first full pages, as far as known
  int64_t num_published_ = 0;
  ContentId last_content_ = kRootContent;  // of page num_published_ - 1
};

}  // namespace quire::kv
