// SPDX-License-Identifier: Apache-2.0
// A sequence's pages: moves, and the check that none leaks.
#include "kv/block_table.h"

#include "base/check.h"

namespace quire::kv {

BlockTable::~BlockTable() {
  QUIRE_CHECK(blocks_.empty(), "a sequence died with pages: KvManager::free was not called");
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : salt_(std::move(other.salt_)),
      blocks_(std::exchange(other.blocks_, {})),
      hashes_(std::exchange(other.hashes_, {})),
      num_published_(std::exchange(other.num_published_, 0)),
      last_content_(std::exchange(other.last_content_, kRootContent)) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  QUIRE_CHECK(blocks_.empty(), "a sequence was overwritten with pages: KvManager::free was not called");
  salt_ = std::move(other.salt_);
  blocks_ = std::exchange(other.blocks_, {});
  hashes_ = std::exchange(other.hashes_, {});
  num_published_ = std::exchange(other.num_published_, 0);
  last_content_ = std::exchange(other.last_content_, kRootContent);
  return *this;
}

}  // namespace quire::kv
