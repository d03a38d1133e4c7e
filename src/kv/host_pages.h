// SPDX-License-Identifier: Apache-2.0
// HostPages: the host's copies of pages that a GPU computed, bounded in size, least recently used ones replaced first.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "kv/page_key.h"

namespace quire::kv {

// Places for pages in memory of Backend::allocate_host(), taken in chunks as they are needed. Knows which page each
// place holds and moves no bytes. Engine thread.
class HostPages {
 public:
  HostPages(Backend& backend, int64_t page_bytes, int64_t max_bytes)
      : backend_(backend), page_bytes_(page_bytes), max_places_(std::max<int64_t>(max_bytes / page_bytes, 1)) {}

  // The place of a page, which counts as used now; -1: it is not there.
  int32_t find(const PageKey& key);
  bool has(const PageKey& key) const { return places_.contains(key); }
  // A place for a new page: an unused one, or that of the page that was used longest ago. -1: the system has no memory.
  int32_t take(const PageKey& key);
  std::byte* address(int32_t place) const;
  const PageKey& key(int32_t place) const { return entries_[static_cast<size_t>(place)].key; }
  int64_t size() const { return static_cast<int64_t>(places_.size()); }
  int64_t page_bytes() const { return page_bytes_; }
  // The most places that there will be.
  int64_t capacity() const { return max_places_; }

 private:
  static constexpr int64_t kChunkBytes = int64_t{64} << 20;
  struct Entry {
    PageKey key;
    std::list<int32_t>::iterator order;
  };
  bool grow();
  int64_t chunk_places() const { return std::clamp<int64_t>(kChunkBytes / page_bytes_, 1, max_places_); }

  Backend& backend_;
  const int64_t page_bytes_;
  int64_t max_places_;
  std::vector<std::unique_ptr<Buffer>> chunks_;
  std::vector<Entry> entries_;  // by place
  std::list<int32_t> order_;    // the least recently used first
  std::unordered_map<PageKey, int32_t, PageKeyToSize> places_;
};

}  // namespace quire::kv
