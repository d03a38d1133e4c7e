// SPDX-License-Identifier: Apache-2.0
// Takes the snapshots of an engine that the server's live view shows.
#include "engine/live.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "engine/engine.h"
#include "kv/offload.h"

namespace quire::engine {
namespace {

LiveState state_of(const Sequence& sequence) {
  if (sequence.waiting) return sequence.num_preemptions > 0 ? LiveState::kPreempted : LiveState::kWaiting;
  return sequence.num_computed < sequence.prompt_size ? LiveState::kPrefill : LiveState::kDecode;
}

// Without the drafts and the token that are in flight.
int64_t computed_of(const Sequence& sequence) {
  return std::min(sequence.num_computed, sequence.num_tokens());
}

LiveSequence describe(const Sequence& sequence, size_t num_groups) {
  LiveSequence out;
  out.id = sequence.id;
  out.child = sequence.child;
  out.label = sequence.submission->label;
  out.caller = sequence.submission->caller;
  out.state = state_of(sequence);
  out.prompt = sequence.prompt_size;
  out.tokens = sequence.num_tokens();
  out.computed = computed_of(sequence);
  out.cached = sequence.cached_tokens;
  out.preemptions = sequence.num_preemptions;
  for (size_t g = 0; g < num_groups; ++g) sequence.table.each_page(g, [&](kv::BlockId, size_t) { ++out.pages; });
  return out;
}

kv::PageHolder holder_of(const Sequence& sequence) {
  return {&sequence.table, sequence.tokens, computed_of(sequence)};
}

}  // namespace

const char* name(LiveState state) {
  constexpr const char* kNames[] = {"waiting", "prefill", "decode", "preempted"};
  return kNames[static_cast<size_t>(state)];
}

void LiveView::append(LiveView next) {
  const size_t before = sequences.size();
  for (kv::PageCell cell : next.map.cells) {
    if (cell.owner > 0) {
      const size_t owner = cell.owner + before;
      cell.owner = owner <= std::numeric_limits<uint16_t>::max() ? static_cast<uint16_t>(owner) : 0;
    }
    map.cells.push_back(cell);
  }
  map.num_pages += next.map.num_pages;
  map.free += next.map.free;
  for (size_t g = 0; g < map.groups.size(); ++g) {
    map.groups[g].cached += next.map.groups[g].cached;
    map.groups[g].used += next.map.groups[g].used;
    map.groups[g].shared += next.map.groups[g].shared;
  }
  std::ranges::move(next.sequences, std::back_inserter(sequences));
  unlisted += next.unlisted;
}

LiveView Engine::live(int32_t max_cells) const {
  LiveView view;
  std::vector<const Sequence*> sequences;
  for (const bool waiting : {false, true}) {
    for (const auto& [key, sequence] : sequences_) {
      if (sequence->waiting == waiting) sequences.push_back(sequence.get());
    }
  }
  std::vector<kv::PageHolder> holders;
  for (const Sequence* sequence : sequences) {
    holders.push_back(holder_of(*sequence));
    if (view.sequences.size() < LiveView::kMaxSequences) {
      view.sequences.push_back(describe(*sequence, kv_.groups().size()));
    } else {
      ++view.unlisted;
    }
  }
  view.map = kv::map_pages(kv_, holders, max_cells);
  for (kv::PageCell& cell : view.map.cells) {
    if (cell.owner > view.sequences.size()) cell.owner = 0;
  }
  if (offload_ != nullptr) view.tiers = offload_->map();
  for (const auto& [id, pending] : pending_) {
    if (pending.left() == 0) continue;
    const bool listed = view.sequences.size() < LiveView::kMaxSequences;
    view.unlisted += pending.left() - (listed ? 1 : 0);
    if (!listed) continue;
    LiveSequence& one = view.sequences.emplace_back();
    one.id = id;
    one.child = pending.next_child;
    one.label = pending.submission->label;
    one.caller = pending.submission->caller;
    one.prompt = one.tokens = static_cast<int64_t>(pending.request->prompt.size());
  }
  return view;
}

std::optional<LivePage> Engine::live_page(kv::BlockId page) const {
  if (page <= kv::kNullBlock || page >= kv_.pool().num_blocks()) return std::nullopt;
  std::vector<const Sequence*> sequences;
  std::vector<kv::PageHolder> holders;
  for (const auto& [key, sequence] : sequences_) {
    sequences.push_back(sequence.get());
    holders.push_back(holder_of(*sequence));
  }
  LivePage out;
  out.view = kv::view_page(kv_, holders, page);
  for (const size_t holder : out.view.holders) {
    if (out.holders.size() == LiveView::kMaxSequences) break;
    out.holders.push_back(describe(*sequences[holder], kv_.groups().size()));
  }
  return out;
}

}  // namespace quire::engine
