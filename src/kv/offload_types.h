// SPDX-License-Identifier: Apache-2.0
// What the engine and the KV manager know of the tiers below the KV cache, without their threads and files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/page_key.h"
#include "kv/prefix_tree.h"

namespace quire {
class Backend;
}

namespace quire::kv {

class Offload;
class PeerPages;

// The tiers of the other ranks that compute a model: each rank keeps its own part of a page, and rank 0 tells the
// others what it does. Called on the engine's thread.
class RankTiers {
 public:
  virtual ~RankTiers() = default;
  virtual void store_page(const PageKey& key, BlockId page) = 0;
  virtual void overwrite_page(BlockId page) = 0;
  // Starts to fill the page on every other rank; settle_pages() must follow.
  virtual void load_page(const PageKey& key, BlockId page) = 0;
  // Waits until the loads of these pages have ended. For each, whether every other rank has its part.
  virtual std::vector<bool> settle_pages(std::span<const BlockId> pages) = 0;
};

struct OffloadOptions {
  std::filesystem::path folder;  // "": no disk tier
  int64_t folder_bytes = 0;
  int64_t host_bytes = 0;  // only for a backend whose memory the host does not see
  // Everything that decides the bytes of a page besides its tokens. It may take a while, so a thread of its own asks.
  std::function<std::string()> identity;
  std::shared_ptr<PeerPages> peers;  // the pages of all engines of this process; null: there is one engine

  bool has_tiers() const { return !folder.empty() || host_bytes > 0; }
  bool on() const { return has_tiers() || peers != nullptr; }
};

// The memory of the KV cache's pages.
struct PageMemory {
  std::byte* pages = nullptr;
  int64_t page_bytes = 0;            // from one page to the next
  int64_t num_pages = 0;             // page 0 included
  std::vector<int64_t> group_bytes;  // how much of a page its group uses
  Backend* device = nullptr;         // whose memory it is; null: the host's
};

struct DiskStoreStats {
  int64_t files = 0, bytes = 0;  // that are in the folder now
  int64_t evicted = 0;           // files deleted to make room
  int64_t refused = 0;           // files that were not trusted
};

struct OffloadStats {
  int64_t stored_pages = 0, stored_bytes = 0;  // written to disk
  int64_t loaded_pages = 0, loaded_bytes = 0;  // read from disk
  double store_seconds = 0, load_seconds = 0;  // of the threads that write and read
  int64_t dropped_pages = 0;                   // overwritten before the disk had them
  int64_t host_stored_pages = 0, host_loaded_pages = 0;
  int64_t host_pages = 0;  // in host memory now
  DiskStoreStats disk;
};

// The positions that a page in a tier holds, and their tokens as far as they are known. A page of a state group holds a
// summary of all positions before `end`.
struct TierPage {
  int64_t id = 0;  // counts up with the pages that were stored or asked for
  PageKey key;
  int64_t begin = 0, end = 0;
  std::vector<int32_t> tokens;  // of many, the last kMaxTokens
  bool on_disk = false, on_host = false;
  static constexpr size_t kMaxTokens = 64;
};

// The newest pages in the tiers, for people; see Offload::map().
struct TierMap {
  struct Cell {
    int64_t id = 0;
    uint8_t group = 0;
    bool on_disk = false, on_host = false;
  };
  std::vector<Cell> cells;  // at most Offload::kMaxKnown, by id
};

// One page on its way back. Shared by the engine thread and the thread that reads.
struct PageLoad {
  enum class State : uint8_t { kQueued, kReading, kDone, kFailed, kCancelled };
  PageKey key;
  BlockId page = kNullBlock;
  bool from_disk = false;
  bool from_peer = false;         // copied from the cache of another engine
  std::vector<std::byte> buffer;  // what was read, if the page is in a device's memory
  std::atomic<State> state = State::kQueued;

  bool ended() const {
    const State now = state.load(std::memory_order_acquire);
    return now != State::kQueued && now != State::kReading;
  }
};
using PageLoadPtr = std::shared_ptr<PageLoad>;

}  // namespace quire::kv
