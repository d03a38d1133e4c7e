// SPDX-License-Identifier: Apache-2.0
// Offload: the tiers below the KV cache, to which published pages are copied and from which they come back.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kv/disk_store.h"
#include "kv/host_pages.h"
#include "kv/offload_types.h"
#include "kv/page_key.h"
#include "kv/peer_pages.h"

namespace quire::kv {

// Owned by the engine, on whose thread all methods are called; the files are written on another thread and read on a
// few.
//
// A page is stored when it is published, not when it is evicted, so that a process that is killed has lost nothing but
// the last moments. A published page does not change until it is evicted, so the writer copies it in its own time. If
// the page is evicted before that (overwrite()), the engine thread copies it, as long as there are few such copies;
// otherwise the page is not stored. On a device, a copy to host memory is queued behind the step that filled the page,
// and the disk tier takes the page from there.
//
// The caches of the other engines of this process (OffloadOptions::peers) are asked first; a page there is copied at
// once.
class Offload {
 public:
  Offload(OffloadOptions options, PageMemory memory);
  ~Offload();  // writes what is queued, for at most kLastSeconds
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  bool has_tiers() const { return options_.has_tiers(); }
  // From now on other ranks do what this one does. Set before the first page is stored.
  void set_ranks(RankTiers* ranks);
  // Whether a tier, or another engine, has the page. It may be gone, or turn out to be damaged, when it is loaded.
  bool has(const PageKey& key) const;
  // The page now has these contents until overwrite(). A page that a tier has is marked as used there.
  void store(const PageKey& key, BlockId page);
  // What a page holds that is stored or asked for, so that the map can say so. `tokens` are those before `end`; empty:
  // they are not known.
  void note(const PageKey& key, int64_t begin, int64_t end, std::span<const int32_t> tokens);
  // The pages that were noted last and are in a tier.
  TierMap map() const;
  std::optional<TierPage> page(int64_t id) const;
  static constexpr size_t kMaxKnown = 512;

  // A page that a tier has is used.
  void mark_used(const PageKey& key);
  // Must be called before a page that was stored gets other contents.
  void overwrite(BlockId page);

  // Starts to fill a page, which nobody else may use until the load has ended.
  PageLoadPtr load(const PageKey& key, BlockId page);
  // Gives up on a load. False if the page is being filled: it must stay unused until the load has ended.
  bool cancel(PageLoad& load);
  // Call when loads have ended, before complete(): one that failed on another rank has failed.
  void settle(std::span<const PageLoadPtr> loads);
  // Call when a load has ended with kDone, before the page is used.
  void complete(PageLoad& load);
  // Waits until no load is under way, but not for long.
  void wait_for_loads();

  // Call once per step: hands pages that have arrived in host memory to the disk tier.
  void after_step();
  // Waits until the folder is open and the identity known, at most so long. False if they are not.
  bool wait_until_open(double seconds);
  // For tests: waits until everything stored so far is written or given up.
  void flush();
  OffloadStats stats() const;  // any thread

 private:
  static constexpr double kLastSeconds = 5;
  static constexpr int64_t kMaxCopyBytes = int64_t{64} << 20;
  static constexpr int64_t kStagingBytes = int64_t{64} << 20;  // host memory of a disk tier without a host tier
  struct Store {
    enum class State : uint8_t { kQueued, kCopying, kTaken, kDropped };
    PageKey key;
    size_t place = 0;
    const std::byte* from = nullptr;
    std::vector<std::byte> copy;  // if the page was overwritten meanwhile
    State state = State::kQueued;
  };
  using StorePtr = std::shared_ptr<Store>;
  struct Arrival {
    PageKey key;
    int32_t place = 0;
    uint64_t mark = 0;
    uint64_t step = 0;
  };

  int64_t bytes_of(const PageKey& key) const { return memory_.group_bytes[static_cast<size_t>(key.group)]; }
  std::byte* address(BlockId page) const { return memory_.pages + page * memory_.page_bytes; }
  PageName name_of(const PageKey& key) const;
  bool open() const { return open_.load(std::memory_order_acquire); }
  void share(const PageKey& key, BlockId page);
  void unshare(BlockId page);
  void store_on_host(const PageKey& key, BlockId page);
  void queue_store(const PageKey& key, size_t place, const std::byte* from);
  void give_up_place(size_t place);
  void run_writer();
  void run_reader();

  const OffloadOptions options_;
  const PageMemory memory_;
  std::vector<std::vector<PageKey>> shared_;  // by page: what other engines find there
  RankTiers* ranks_ = nullptr;                // of the other ranks, if there are any
  std::vector<std::vector<PageKey>> told_;    // by page: what the other ranks store
  std::unique_ptr<HostPages> host_;           // if the pages are a device's
  std::deque<Arrival> arrivals_;              // copies to host memory that are queued on the device
  uint64_t step_ = 0;
  std::map<int64_t, TierPage> known_;  // the pages that were noted, the oldest first
  std::unordered_map<PageKey, int64_t, PageKeyToSize> known_ids_;
  int64_t last_id_ = 0;
  mutable std::vector<PageName> known_names_;  // of known_, made when the map is drawn
  mutable int64_t known_names_to_ = 0;
  std::vector<bool> maybe_queued_;  // places (pages, or those of host_) with a store that may not be copied yet

  // Set once, by the writer, before open_.
  Sha256::Value identity_{};
  std::shared_ptr<DiskStore> disk_;
  std::atomic<bool> open_ = false;

  mutable std::mutex mutex_;  // of all below
  std::condition_variable stores_filled_, store_copied_, stores_done_, loads_filled_, loads_ended_, opened_;
  std::deque<StorePtr> stores_;
  std::vector<std::vector<StorePtr>> stores_at_;          // by place: those that are not copied yet
  std::unordered_set<PageKey, PageKeyToSize> unwritten_;  // keys of stores that are queued or being written
  int64_t copy_bytes_ = 0;
  std::deque<PageLoadPtr> loads_;
  int64_t loads_under_way_ = 0;
  bool stopping_ = false;
  OffloadStats stats_;
  std::thread writer_;
  std::vector<std::thread> readers_;
};

}  // namespace quire::kv
