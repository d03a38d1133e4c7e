// SPDX-License-Identifier: Apache-2.0
// Prompt lookup by an index of n-grams, and the pace of drafts.
#include "engine/proposer.h"

#include <algorithm>

namespace quire::engine {

NgramProposer::NgramProposer(const SpeculationOptions& options) {
  for (int64_t n = options.prompt_lookup_max; n >= options.prompt_lookup_min; --n) {
    tables_.push_back({.n = static_cast<size_t>(n), .slots = std::vector<uint32_t>(64)});
  }
}

// The slot of the n-gram that ends at `end`, or the empty slot where it belongs; null if there is none.
// REQUIRES: end >= table.n
uint32_t* NgramProposer::slot_of(Table& table, std::span<const int32_t> tokens, size_t end) {
  const std::span<const int32_t> gram = tokens.subspan(end - table.n, table.n);
  uint64_t hash = 0;
  for (const int32_t token : gram) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  const size_t mask = table.slots.size() - 1;
  for (size_t probe = 0; probe < kMaxProbes; ++probe) {
    uint32_t& slot = table.slots[(hash + probe) & mask];
    if (slot == 0 || std::ranges::equal(gram, tokens.subspan(slot - table.n, table.n))) return &slot;
  }
  return nullptr;
}

void NgramProposer::grow(Table& table, std::span<const int32_t> tokens) {
  std::vector<uint32_t> old(2 * table.slots.size());
  old.swap(table.slots);
  for (const uint32_t end : old) {
    if (end == 0) continue;
    if (uint32_t* slot = slot_of(table, tokens, end)) *slot = end;
  }
}

void NgramProposer::propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>& drafts) {
  // The last n-gram itself is left out: something must follow the place that is found.
  while (num_indexed_ + 1 < tokens.size()) {
    const size_t end = ++num_indexed_;
    for (Table& table : tables_) {
      if (end < table.n) continue;
      uint32_t* slot = slot_of(table, tokens, end);
      if (slot == nullptr || *slot != 0) continue;
      *slot = static_cast<uint32_t>(end);
      if (2 * ++table.count > table.slots.size()) grow(table, tokens);
    }
  }
  for (Table& table : tables_) {
    const uint32_t* slot = tokens.size() < table.n ? nullptr : slot_of(table, tokens, tokens.size());
    if (slot == nullptr || *slot == 0) continue;
    const size_t end = *slot;
    const auto follow = tokens.subspan(end, std::min(static_cast<size_t>(most), tokens.size() - end));
    drafts.assign(follow.begin(), follow.end());
    return;
  }
}

void SuffixProposer::propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>& drafts) {
  while (own_.size() < tokens.size()) own_.append(tokens[own_.size()]);
  Guess best;
  own_.guess(tokens, options_, most, best);
  if (const SuffixIndex* answers = answers_.find(salt_)) answers->guess(tokens, options_, most, best);
  drafts = std::move(best.tokens);
}

int64_t DraftPace::next(int64_t most, double least_probability) {
  if (pause_ > 0) {
    --pause_;
    return 0;
  }
  most = std::min(most, length_);
  int64_t worth = 0;
  for (double all_right = right_; worth < most && all_right >= least_probability; all_right *= right_) ++worth;
  if (worth > 0) {
    not_worth_ = 0;
    return worth;
  }
  if (not_worth_++ % kProbe != 0) return 0;
  return std::min<int64_t>(most, 1);
}

void DraftPace::note(int64_t drafted, int64_t accepted) {
  for (int64_t i = 0; i < std::min(accepted + 1, drafted); ++i) {  // those after the first wrong one say nothing
    seen_ = std::min(10.0, seen_ + 1);                             // so that old drafts fade
    right_ += ((i < accepted ? 1 : 0) - right_) / seen_;
  }
  if (accepted > 0) not_worth_ = 0;
  if (accepted == drafted) {
    length_ = std::min(SpeculationOptions::kMaxTokens, 2 * std::max(length_, drafted));
  } else {
    length_ = accepted + 1;
  }
  if (accepted > 0) {
    misses_ = 0;
    next_pause_ = kPause;
  } else if (++misses_ == kMisses) {
    misses_ = 0;
    pause_ = next_pause_;
    next_pause_ = std::min(kMaxPause, 2 * next_pause_);
  }
}

}  // namespace quire::engine
