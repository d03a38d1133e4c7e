// SPDX-License-Identifier: Apache-2.0
// Which place of the host's memory holds which page.
#include "kv/host_pages.h"

#include "base/check.h"
#include "base/log.h"

namespace quire::kv {

int32_t HostPages::find(const PageKey& key) {
  const auto at = places_.find(key);
  if (at == places_.end()) return -1;
  order_.splice(order_.end(), order_, entries_[static_cast<size_t>(at->second)].order);
  return at->second;
}

std::byte* HostPages::address(int32_t place) const {
  const int64_t per = chunk_places();
  return static_cast<std::byte*>(chunks_[static_cast<size_t>(place / per)]->data()) + place % per * page_bytes_;
}

bool HostPages::grow() {
  const auto used = static_cast<int64_t>(entries_.size());
  if (used >= max_places_) return false;
  if (used == static_cast<int64_t>(chunks_.size()) * chunk_places()) {
    auto chunk = backend_.allocate_host(static_cast<size_t>(chunk_places() * page_bytes_));
    if (!chunk.ok()) {
      log_warn("KV offload: the tier in host memory ends at {} pages: {}", used, chunk.error().message);
      max_places_ = used;
      return false;
    }
    chunks_.push_back(std::move(*chunk));
  }
  return true;
}

int32_t HostPages::take(const PageKey& key) {
  QUIRE_CHECK(!places_.contains(key), "the page has a place already");
  int32_t place = -1;
  if (grow()) {
    place = static_cast<int32_t>(entries_.size());
    entries_.push_back({key, order_.insert(order_.end(), place)});
  } else if (!order_.empty()) {
    place = order_.front();
    Entry& entry = entries_[static_cast<size_t>(place)];
    places_.erase(entry.key);
    entry.key = key;
    order_.splice(order_.end(), order_, entry.order);
  } else {
    return -1;
  }
  places_.emplace(key, place);
  return place;
}

}  // namespace quire::kv
