// SPDX-License-Identifier: Apache-2.0
// Where each layer finds its part of a page.
#include "model/kv_cache.h"

#include <algorithm>

namespace quire::model {

Result<std::unique_ptr<KvCache>> KvCache::make(Backend& backend, kv::CacheLayout layout) {
  QUIRE_ASSIGN(std::unique_ptr<Buffer> buffer,
               backend.allocate(std::max<size_t>(static_cast<size_t>(layout.page_bytes() * layout.num_pages), 1)));
  return std::unique_ptr<KvCache>(new KvCache(std::move(layout), std::move(buffer)));
}

std::unique_ptr<KvCache> KvCache::from_layer(int64_t first) const {
  kv::CacheLayout layout = layout_;
  layout.layers.erase(layout.layers.begin(), layout.layers.begin() + first);
  return std::unique_ptr<KvCache>(new KvCache(std::move(layout), buffer_));
}

// The layers of a page are adjacent, so that a page in use commits its own bytes and not a huge page per layer.
char* KvCache::slot(int64_t index) const {
  const kv::CacheLayout::Layer& place = layout_.layers[static_cast<size_t>(index)];
  QUIRE_CHECK(place.group >= 0 && place.slot >= 0 && place.slot < layout_.slots);
  return static_cast<char*>(buffer_->data()) + place.slot * layout_.slot_bytes;
}

KvLayer KvCache::layer(int64_t index) const {
  const KvPageShape& shape = layout_.layers[static_cast<size_t>(index)].shape;
  KvLayer out;
  out.pages = slot(index);
  out.page_stride = layout_.page_bytes();
  out.num_pages = layout_.num_pages;
  out.block_size = shape.block_size;
  out.num_kv_heads = shape.num_kv_heads;
  out.head_dim = shape.head_dim;
  out.v_head_dim = shape.v_head_dim;
  out.v_in_k = shape.v_in_k;
  out.dtype = shape.dtype;
  return out;
}

void KvCache::copy_page(Backend& backend, int64_t from, int64_t to, size_t group) const {
  auto* const pages = static_cast<std::byte*>(buffer_->data());
  backend.copy(pages + to * layout_.page_bytes(), pages + from * layout_.page_bytes(),
               static_cast<size_t>(layout_.groups[group].layers * layout_.slot_bytes));
}

kv::PageMemory KvCache::memory(Backend& backend) const {
  kv::PageMemory out;
  out.pages = static_cast<std::byte*>(buffer_->data());
  out.page_bytes = layout_.page_bytes();
  out.num_pages = layout_.num_pages;
  for (const kv::CacheLayout::Group& group : layout_.groups)
    out.group_bytes.push_back(group.layers * layout_.slot_bytes);
  out.device = backend.host_memory() ? nullptr : &backend;
  return out;
}

StateLayer KvCache::state(int64_t index) const {
  return {slot(index), layout_.page_bytes(), layout_.num_pages};
}

}  // namespace quire::model
