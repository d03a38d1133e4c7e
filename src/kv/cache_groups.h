// SPDX-License-Identifier: Apache-2.0
// Divides the layers of a model into cache groups whose pages all have the same size.
//
// Layers that keep the same data have the same type, and each type is divided into groups with the same number of
// layers: that of the rarest type, or that of the most frequent type if it is less than a quarter larger. A page
// belongs to one group at a time and has one slot per layer of the group, so all slots have the same size:
//  - The attention type with the most bytes per token sets the size. If a state does not fit into --block-size tokens
//    of that type, its block size is raised to the next multiple of 32 whose page holds a state; the memory plan shows
//    the result.
//  - Each of the other attention types gets the largest multiple of that block size that fits into a slot.
//  - The rest of a slot is padding, and so are the slots without a layer in the last group of a type.
// docs/kv-cache.md has an example.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/cache_layout.h"
#include "kv/kv_spec.h"

namespace quire::kv {

using CacheGroup = CacheLayout::Group;

// Backend::kv_page_bytes of the backend that will hold the pages.
using PageBytes = std::function<int64_t(const KvPageShape&)>;

// The layout without num_pages, or an Error if no page size can hold what the layers keep. If there are states, prefix
// hits may end at the multiples of match_unit (0: block_size) at which a page can be cut.
Result<CacheLayout> group_layers(std::span<const LayerCache> layers, DType dtype, int64_t block_size,
                                 const PageBytes& page_bytes, int64_t match_unit = 0);

// Positions per page of the attention type that set the slot size; without attention, those between hits.
int64_t main_block_size(const CacheLayout& layout);
// For a model whose layers keep nothing (an encoder): no groups, and pages without bytes.
CacheLayout layout_without_pages(size_t layers);
// The same groups with pages that hold only the layers [first, first + count), and as many of the `last` ones.
CacheLayout some_layers(const CacheLayout& layout, int64_t first, int64_t count, int64_t last = 0);
// Prefix cache hits end at multiples of this: with states the block size of those, because a hit may end inside a page,
// otherwise the least common multiple of the block sizes.
int64_t hit_unit(std::span<const CacheGroup> groups);
// The first page that a token at `position` attends to; those before it are no longer needed.
inline int64_t first_seen_page(const CacheGroup& group, int64_t position) {
  return group.kind == CacheKind::kWindow ? std::max<int64_t>(0, position - group.window + 1) / group.block_size : 0;
}
bool has_states(std::span<const CacheGroup> groups);
// The groups and their padding, for the start-up line; empty if there is one group with K and V of every position.
std::string describe(const CacheLayout& layout);

// What the number of pages per sequence depends on, besides its length.
struct CachePolicy {
  int64_t max_step_tokens = 0;  // of one sequence in one step; 0: unlimited
  bool prefix_caching = true;   // a step that starts at a checkpoint needs two state pages
};
// The most pages that a sequence holds at once until its first num_tokens positions are computed: of one group, and of
// all groups.
int64_t max_pages(const CacheGroup& group, int64_t hit_unit, int64_t num_tokens, const CachePolicy& policy);
int64_t max_pages(std::span<const CacheGroup> groups, int64_t num_tokens, const CachePolicy& policy);

}  // namespace quire::kv
