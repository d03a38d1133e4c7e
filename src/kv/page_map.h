// SPDX-License-Identifier: Apache-2.0
// The pages of a pool as a map for people: which are free, cached, in use or shared, and what one page holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_manager.h"

namespace quire::kv {

enum class PageState : uint8_t {
  kFree,
  kCached,  // no sequence uses it, but it can be hit until it is evicted
  kUsed,    // by one sequence
  kShared,  // by several
};

// A sequence as the map sees it. `tokens` and `computed` are needed only to say what a page holds.
struct PageHolder {
  const BlockTable* table = nullptr;
  std::span<const int32_t> tokens = {};
  int64_t computed = 0;  // positions that are in the pages
};

struct PageCell {
  PageState state = PageState::kFree;
  uint8_t group = 0;   // of a page that is not free
  uint16_t owner = 0;  // 1 + the index of the first holder; 0: none, or one whose index is too large
  bool operator==(const PageCell&) const = default;
};

struct PageMap {
  struct Counts {
    int64_t cached = 0, used = 0, shared = 0;
  };
  int32_t num_pages = 0;        // the ids 1 to num_pages
  int32_t pages_per_cell = 1;   // cell i stands for this many pages from the id 1 + i * pages_per_cell on (cell_pages)
  std::vector<PageCell> cells;  // of several pages: the state that most of them have
  int64_t free = 0;             // without cached pages
  std::vector<Counts> groups;   // by cache group
};

// How many pages a cell stands for.
inline int32_t cell_pages(int32_t num_pages, int32_t max_cells) {
  return std::max(1, (num_pages + max_cells - 1) / max_cells);
}

// Has at most max_cells cells, whatever the size of the pool. REQUIRES: max_cells > 0; `holders` are all sequences.
PageMap map_pages(const KvManager& kv, std::span<const PageHolder> holders, int32_t max_cells);

struct PageView {
  PageState state = PageState::kFree;
  int32_t group = 0;
  // The positions that it holds. A page of a state group holds a summary of all positions before `end`.
  int64_t begin = 0, end = 0;
  std::vector<int32_t> tokens;  // at those positions; of many, the last kMaxTokens
  std::vector<size_t> holders;  // indices
  static constexpr int64_t kMaxTokens = 256;
};

// REQUIRES: 0 < page < kv.pool().num_blocks()
PageView view_page(const KvManager& kv, std::span<const PageHolder> holders, BlockId page);

}  // namespace quire::kv
