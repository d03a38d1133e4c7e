// SPDX-License-Identifier: Apache-2.0
// KvCache: the memory of all KV pages, as kv/cache_layout.h divides it.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "kv/cache_layout.h"
#include "kv/offload_types.h"

namespace quire::model {

// The pages of all layers, in the backend's memory. The system commits memory when a page is first written.
// Owned by the engine and used on its thread.
class KvCache {
 public:
  static Result<std::unique_ptr<KvCache>> make(Backend& backend, kv::CacheLayout layout);
  // The pages of one layer. REQUIRES: the layer keeps K and V (for layer) or a recurrent state (for state).
  KvLayer layer(int64_t index) const;
  StateLayer state(int64_t index) const;
  int32_t group(int64_t index) const { return layout_.layers[static_cast<size_t>(index)].group; }
  const kv::CacheLayout& layout() const { return layout_; }
  // The same pages for a model whose layer 0 is layer `first` of this cache: a draft model's layers come after the
  // target's.
  std::unique_ptr<KvCache> from_layer(int64_t first) const;
  // Copies what a page holds for a group to another page.
  void copy_page(Backend& backend, int64_t from, int64_t to, size_t group) const;
  // The memory as tiers see it.
  kv::PageMemory memory(Backend& backend) const;

 private:
  KvCache(kv::CacheLayout layout, std::shared_ptr<Buffer> buffer)
      : layout_(std::move(layout)), buffer_(std::move(buffer)) {}
  char* slot(int64_t index) const;

  kv::CacheLayout layout_;
  std::shared_ptr<Buffer> buffer_;
};

}  // namespace quire::model
