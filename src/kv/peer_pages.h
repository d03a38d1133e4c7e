// SPDX-License-Identifier: Apache-2.0
// PeerPages: the published pages of engines that share a process, so that one copies what another has computed.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/page_key.h"

namespace quire::kv {

// The engines have the same model and the same layout of pages in the host's memory. Any thread may call.
class PeerPages {
 public:
  // The page has these contents and keeps them until remove().
  void add(const PageKey& key, const std::byte* page);
  // From now on nobody reads the page; waits for a copy that is being made.
  void remove(const PageKey& key, const std::byte* page);
  bool has(const PageKey& key) const;
  // False, and nothing is copied, if no engine has the page any more.
  bool copy(const PageKey& key, std::span<std::byte> to);

 private:
  struct Page {
    const std::byte* data = nullptr;
    int readers = 0;
    bool leaves = false;
  };
  Page* find(const PageKey& key, const std::byte* page);

  mutable std::mutex mutex_;
  std::condition_variable copied_;
  std::unordered_map<PageKey, std::vector<Page>, PageKeyToSize> pages_;  // guarded by mutex_; of different engines
};

}  // namespace quire::kv
