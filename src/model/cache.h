// SPDX-License-Identifier: Apache-2.0
// What the layers of a model keep of each sequence, and where it lies: cache groups, slots and pages.
//
// Layers that keep the same kind of thing form a group, and a group has one table of pages a sequence. All groups draw
// on one pool, so a page has the same bytes in each: `slots` layers side by side, slot_bytes each. Layer i of a group
// lives in slot i of that group's pages. kv/cache_groups.h makes the layout; nothing here decides.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace quire::model {

enum class CacheKind : uint8_t {
  kNone,    // keeps nothing (a layer that is an MLP alone)
  kFull,    // K and V (or MLA's latent) of every position
  kWindow,  // of the last `window` positions
  kState,   // one recurrent state
};

// One layer's wants.
struct LayerCache {
  CacheKind kind = CacheKind::kFull;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;    // of K
  int64_t v_head_dim = 0;  // of V
  bool v_in_k = false;     // MLA
  int64_t window = 0;
  int64_t state_bytes = 0;   // kState
  int64_t shared_with = -1;  // an earlier layer whose pages it reads; it writes none and the rest counts for nothing
};

struct CacheLayout {
  struct Group {
    CacheKind kind = CacheKind::kFull;
    int64_t block_size = 0;  // positions in a page; kState: positions between checkpoints
    int64_t window = 0;
    int64_t layers = 0;      // how many of the slots it uses
    int64_t used_bytes = 0;  // of a slot; the rest is padding

    bool same_type(const Group& other) const {
      return kind == other.kind && block_size == other.block_size && window == other.window &&
             used_bytes == other.used_bytes;
    }
  };
  struct Layer {
    int32_t group = -1;  // -1: keeps nothing
    int32_t slot = -1;
    KvPageShape shape;  // but for kState
  };
  std::vector<Group> groups;
  std::vector<Layer> layers;
  int64_t slots = 0;
  int64_t slot_bytes = 0;
  int64_t num_pages = 0;  // page 0 among them, which no sequence has

  int64_t page_bytes() const { return slots * slot_bytes; }
};

// The pages of all layers, in the backend's memory, committed as they are first written. Owned by the engine.
class KvCache {
 public:
  static Result<std::unique_ptr<KvCache>> make(Backend& backend, CacheLayout layout);
  KvLayer layer(int64_t index) const;
  StateLayer state(int64_t index) const;
  int32_t group(int64_t index) const { return layout_.layers[static_cast<size_t>(index)].group; }
  const CacheLayout& layout() const { return layout_; }

 private:
  KvCache(CacheLayout layout, std::unique_ptr<Buffer> buffer)
      : layout_(std::move(layout)), buffer_(std::move(buffer)) {}
  char* slot(int64_t index) const;

  CacheLayout layout_;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace quire::model
