// SPDX-License-Identifier: Apache-2.0
// CacheEventLog: what entered and left the prefix cache, for routers that want to know which server has which prefix.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quire::kv {

// What a sequence's K and V depend on besides its tokens, as subscribers are told.
struct CacheOrigin {
  std::string salt = {};
  std::string adapter_name = {};
  uint64_t adapter_id = 0;  // 0: no adapter
};

// A block is a page of one cache group: the tokens of its positions after a certain prefix. Its hash is that of the
// whole prefix that ends with it, so blocks of different groups that end at the same token have the same hash.
struct CacheEvent {
  enum class Kind : uint8_t {
    kStored,   // the blocks can be hit from now on
    kRemoved,  // the last page with each block was evicted
    kCleared,  // the whole cache was emptied
  };
  Kind kind = Kind::kStored;
  int32_t group = 0;
  std::vector<uint64_t> hashes = {};  // of kStored: each block follows the one before it

  // Of kStored only
  std::optional<uint64_t> parent = {};  // the hash of the block before the first one; none if the sequence begins here
  std::vector<int32_t> tokens = {};     // of all blocks, in order
  CacheOrigin origin = {};              // with the salt only if the sequence begins here
};

// Collects events until they are taken. Neighbours are joined: blocks that follow each other, and removals in a row.
// Owned by KvManager; engine thread. A page that holds what another one holds already is no event, neither when it is
// stored nor when it is evicted: the log describes a set of blocks.
class CacheEventLog {
 public:
  void stored(int32_t group, uint64_t hash, std::optional<uint64_t> parent, std::span<const int32_t> tokens,
              const CacheOrigin& origin);
  void removed(int32_t group, uint64_t hash);
  void cleared();
  std::vector<CacheEvent> take();

 private:
  std::vector<CacheEvent> events_;
  size_t joinable_ = 0;  // stored blocks may join events from here on; a removal in between would change its meaning
};

}  // namespace quire::kv
