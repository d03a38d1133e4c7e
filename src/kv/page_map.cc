// SPDX-License-Identifier: Apache-2.0
// Draws the map of a pool's pages, and finds out what one page holds.
#include "kv/page_map.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"

namespace quire::kv {
namespace {

PageState state_of(const BlockPool& pool, BlockId page) {
  const int32_t refs = pool.ref_count(page);
  if (refs > 0) return refs > 1 ? PageState::kShared : PageState::kUsed;
  return pool.is_cached(page) ? PageState::kCached : PageState::kFree;
}

// What the pages of a cell have in common: the first of those in the state that most have. A tie goes to the state that
// is more in use.
PageCell merged(std::span<const PageCell> pages) {
  std::array<int64_t, 4> counts{};
  for (const PageCell& page : pages) ++counts[static_cast<size_t>(page.state)];
  size_t best = 3;
  for (size_t state = 3; state-- > 0;) best = counts[state] > counts[best] ? state : best;
  return *std::ranges::find_if(pages, [&](const PageCell& page) { return static_cast<size_t>(page.state) == best; });
}

void keep_last(std::vector<int32_t>& tokens, std::span<const int32_t> from) {
  const size_t most = static_cast<size_t>(PageView::kMaxTokens);
  from = from.last(std::min(from.size(), most));
  tokens.assign(from.begin(), from.end());
}

}  // namespace

PageMap map_pages(const KvManager& kv, std::span<const PageHolder> holders, int32_t max_cells) {
  QUIRE_CHECK(max_cells > 0);
  const BlockPool& pool = kv.pool();
  PageMap map;
  map.num_pages = pool.num_usable();
  map.pages_per_cell = cell_pages(map.num_pages, max_cells);
  map.groups.resize(kv.groups().size());
  std::vector<PageCell> pages(static_cast<size_t>(pool.num_blocks()));
  for (BlockId id = 1; id < pool.num_blocks(); ++id) {
    PageCell& page = pages[static_cast<size_t>(id)];
    page.state = state_of(pool, id);
    if (pool.is_cached(id)) page.group = static_cast<uint8_t>(pool.tree().group(id));
  }
  for (size_t i = 0; i < holders.size(); ++i) {
    const auto owner = static_cast<uint16_t>(i < std::numeric_limits<uint16_t>::max() ? i + 1 : 0);
    for (size_t g = 0; g < kv.groups().size(); ++g) {
      holders[i].table->each_page(g, [&](BlockId id, size_t) {
        PageCell& page = pages[static_cast<size_t>(id)];
        page.group = static_cast<uint8_t>(g);
        if (page.owner == 0) page.owner = owner;
      });
    }
  }
  for (const PageCell& page : std::span(pages).subspan(1)) {
    PageMap::Counts& counts = map.groups[page.group];
    map.free += page.state == PageState::kFree ? 1 : 0;
    counts.cached += page.state == PageState::kCached ? 1 : 0;
    counts.used += page.state == PageState::kUsed ? 1 : 0;
    counts.shared += page.state == PageState::kShared ? 1 : 0;
  }
  const auto per = static_cast<size_t>(map.pages_per_cell);
  for (size_t at = 1; at < pages.size(); at += per) {
    map.cells.push_back(merged(std::span(pages).subspan(at, std::min(per, pages.size() - at))));
  }
  return map;
}

PageView view_page(const KvManager& kv, std::span<const PageHolder> holders, BlockId page) {
  const BlockPool& pool = kv.pool();
  PageView view;
  view.state = state_of(pool, page);
  for (size_t i = 0; i < holders.size(); ++i) {
    const PageHolder& holder = holders[i];
    for (size_t g = 0; g < kv.groups().size(); ++g) {
      const CacheGroup& group = kv.groups()[g];
      holder.table->each_page(g, [&](BlockId id, size_t index) {
        if (id != page) return;
        view.holders.push_back(i);
        if (view.holders.size() > 1) return;
        const bool is_state = group.kind == CacheKind::kState;
        const int64_t begin = is_state ? 0 : static_cast<int64_t>(index) * group.block_size;
        const int64_t end = is_state ? holder.computed : std::min(begin + group.block_size, holder.computed);
        view.group = static_cast<int32_t>(g);
        view.begin = begin;
        view.end = std::max(begin, std::min(end, static_cast<int64_t>(holder.tokens.size())));
        if (view.end == begin) return;  // nothing is computed yet
        keep_last(view.tokens,
                  holder.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(view.end - begin)));
      });
    }
  }
  if (!view.holders.empty() || !pool.is_cached(page)) return view;
  view.group = pool.tree().group(page);
  const CacheGroup& group = kv.groups()[static_cast<size_t>(view.group)];
  const bool is_state = group.kind == CacheKind::kState;
  const NodeId node = pool.is_published(page) ? pool.tree().node(page) : pool.tree().last_part(page).first;
  const int64_t length = pool.tree().end_of(node, 0).length;
  view.begin = is_state ? 0 : (length - 1) / group.block_size * group.block_size;
  PrefixTree::End end = pool.tree().end_of(node, std::min(length - view.begin, PageView::kMaxTokens));
  view.end = end.length;
  view.tokens = std::move(end.last);
  return view;
}

}  // namespace quire::kv
