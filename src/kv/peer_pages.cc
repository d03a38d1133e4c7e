// SPDX-License-Identifier: Apache-2.0
// Which engine has which page, and copies of them.
#include "kv/peer_pages.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace quire::kv {

PeerPages::Page* PeerPages::find(const PageKey& key, const std::byte* page) {
  const auto at = pages_.find(key);
  if (at == pages_.end()) return nullptr;
  const auto found = std::ranges::find(at->second, page, &Page::data);
  return found == at->second.end() ? nullptr : &*found;
}

void PeerPages::add(const PageKey& key, const std::byte* page) {
  const std::lock_guard lock(mutex_);
  if (find(key, page) == nullptr) pages_[key].push_back({page});
}

void PeerPages::remove(const PageKey& key, const std::byte* page) {
  std::unique_lock lock(mutex_);
  Page* found = find(key, page);
  if (found == nullptr) return;
  found->leaves = true;
  copied_.wait(lock, [&] { return find(key, page)->readers == 0; });
  std::vector<Page>& all = pages_[key];
  std::erase_if(all, [&](const Page& one) { return one.data == page; });
  if (all.empty()) pages_.erase(key);
}

bool PeerPages::has(const PageKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto at = pages_.find(key);
  return at != pages_.end() && !std::ranges::all_of(at->second, &Page::leaves);
}

bool PeerPages::copy(const PageKey& key, std::span<std::byte> to) {
  std::unique_lock lock(mutex_);
  const auto at = pages_.find(key);
  if (at == pages_.end()) return false;
  const auto staying = std::ranges::find(at->second, false, &Page::leaves);
  if (staying == at->second.end()) return false;
  const std::byte* from = staying->data;
  ++staying->readers;
  lock.unlock();
  std::memcpy(to.data(), from, to.size());
  lock.lock();
  if (--find(key, from)->readers == 0) copied_.notify_all();
  return true;
}

}  // namespace quire::kv
