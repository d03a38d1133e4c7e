// SPDX-License-Identifier: Apache-2.0
// From what the layers keep to cache groups whose pages all have the same bytes.
//
// Layers that keep the same thing are of one type, and a type is cut into groups of equally many layers: as many as the
// rarest type has, or as the most frequent one has where that is less than a quarter more. A page belongs to one group
// at a time and has a slot for each of its layers, so all slots have the same bytes:
//  - the attention type with the most bytes a token sets them. Where a state does not fit into --block-size tokens of
//    it, that block size is raised to the next multiple of 32 whose page holds one (seen by the user in the plan);
//  - the other attention types get as many times its block size as fit into the same bytes;
//  - what then is left in a slot is padding, and so are the slots of a type's last group that have no layer.
// The worked example is in docs/kv-cache.md.
#pragma once

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

// The layout (without num_pages), or an Error when no pages can hold what the layers keep.
Result<CacheLayout> group_layers(std::span<const LayerCache> layers, DType dtype, int64_t block_size,
                                 const PageBytes& page_bytes);

// The positions in a page of attention (the type that set the bytes), or between checkpoints where there is none.
int64_t main_block_size(const CacheLayout& layout);
// Where hits may end and checkpoints lie: the least common multiple of the groups' block sizes.
int64_t hit_unit(std::span<const CacheGroup> groups);
bool has_states(std::span<const CacheGroup> groups);
// The groups and their padding, for the start-up line; empty where all layers keep K and V of every position in one
// group.
std::string describe(const CacheLayout& layout);

// How a sequence comes by its pages.
struct StepRules {
  int64_t max_step_tokens = 0;  // of one sequence in one step; 0: no bound
  bool checkpoints = true;      // prefix caching: a step behind a checkpoint has two state pages
};
// The most pages that a sequence holds at once until its first num_tokens positions are computed: of one group, or of
// all.
int64_t most_pages(const CacheGroup& group, int64_t hit_unit, int64_t num_tokens, const StepRules& rules);
int64_t most_pages(std::span<const CacheGroup> groups, int64_t num_tokens, const StepRules& rules);

}  // namespace quire::kv
