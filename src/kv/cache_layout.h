// SPDX-License-Identifier: Apache-2.0
// What each layer of a model keeps per sequence, and where it is stored: cache groups, slots and pages.
//
// Layers that keep the same kind of data form a group, and each sequence has one block table per group. All groups
// allocate from one pool, so a page has the same size in each of them: `slots` layers side by side, slot_bytes each.
// Layer i of a group is stored in slot i of that group's pages. kv/cache_groups.h computes the layout.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention.h"

namespace quire::kv {

enum class CacheKind : uint8_t {
  kNone,    // nothing (a layer without a mixer)
  kFull,    // K and V (or MLA's latent vector) of every position
  kWindow,  // K and V of the last `window` positions
  kState,   // one recurrent state
};

// What one layer keeps per sequence.
struct LayerCache {
  CacheKind kind = CacheKind::kFull;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;      // of K
  int64_t v_head_dim = 0;    // of V
  bool v_in_k = false;       // MLA: V is the first v_head_dim elements of K
  int64_t window = 0;        // kWindow
  int64_t state_bytes = 0;   // kState
  int64_t shared_with = -1;  // >= 0: the layer reads the pages of this earlier layer, and the other fields are unused
};

struct CacheLayout {
  struct Group {
    CacheKind kind = CacheKind::kFull;
    int64_t block_size = 0;  // positions per page; kState: checkpoints are at multiples of it
    int64_t window = 0;
    int64_t layers = 0;      // the number of slots that are in use
    int64_t used_bytes = 0;  // per slot; the rest is padding

    bool same_type(const Group& other) const {
      return kind == other.kind && block_size == other.block_size && window == other.window &&
             used_bytes == other.used_bytes;
    }
  };
  struct Layer {
    int32_t group = -1;  // -1: the layer keeps nothing
    int32_t slot = -1;
    KvPageShape shape;  // unused for kState
  };
  std::vector<Group> groups;
  std::vector<Layer> layers;
  int64_t slots = 0;
  int64_t slot_bytes = 0;
  int64_t num_pages = 0;  // includes page 0, which belongs to no sequence

  int64_t page_bytes() const { return slots * slot_bytes; }
};

}  // namespace quire::kv
