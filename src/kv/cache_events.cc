// SPDX-License-Identifier: Apache-2.0
// The log of cache events, and which of them are joined.
#include "kv/cache_events.h"

#include <utility>

namespace quire::kv {

void CacheEventLog::stored(int32_t group, uint64_t hash, std::optional<uint64_t> parent,
                           std::span<const int32_t> tokens, const CacheOrigin& origin) {
  using enum CacheEvent::Kind;
  for (size_t i = events_.size(); parent && i-- > joinable_;) {
    CacheEvent& event = events_[i];
    if (event.group != group) continue;
    if (event.hashes.back() != *parent) break;
    event.hashes.push_back(hash);
    event.tokens.insert(event.tokens.end(), tokens.begin(), tokens.end());
    return;
  }
  events_.push_back({.kind = kStored,
                     .group = group,
                     .hashes = {hash},
                     .parent = parent,
                     .tokens = {tokens.begin(), tokens.end()},
                     .origin = origin});
  if (parent) events_.back().origin.salt.clear();
}

void CacheEventLog::removed(int32_t group, uint64_t hash) {
  using enum CacheEvent::Kind;
  if (!events_.empty() && events_.back().kind == kRemoved && events_.back().group == group) {
    events_.back().hashes.push_back(hash);
    return;
  }
  events_.push_back({.kind = kRemoved, .group = group, .hashes = {hash}});
  joinable_ = events_.size();
}

void CacheEventLog::cleared() {
  events_.push_back({.kind = CacheEvent::Kind::kCleared});
  joinable_ = events_.size();
}

std::vector<CacheEvent> CacheEventLog::take() {
  joinable_ = 0;
  return std::exchange(events_, {});
}

}  // namespace quire::kv
