// SPDX-License-Identifier: Apache-2.0
// History: the token counts of one sequence.
#include <algorithm>

#include "sampling/sampler.h"

namespace quire::sampling {

// The slot of the token, or the empty slot where it belongs.
size_t History::slot_of(int32_t token) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = (static_cast<uint32_t>(token) * 0x9E3779B1u >> 7) & mask;
  while (slots_[slot] != 0 && seen_[static_cast<size_t>(slots_[slot] - 1)].token != token) slot = (slot + 1) & mask;
  return slot;
}

void History::grow() {
  slots_.assign(std::max<size_t>(16, 2 * slots_.size()), 0);
  for (size_t i = 0; i < seen_.size(); ++i) slots_[slot_of(seen_[i].token)] = static_cast<int32_t>(i + 1);
}

History::Seen& History::entry(int32_t token) {
  if (2 * (seen_.size() + 1) > slots_.size()) grow();
  int32_t& slot = slots_[slot_of(token)];
  if (slot == 0) {
    seen_.push_back({.token = token});
    slot = static_cast<int32_t>(seen_.size());
  }
  return seen_[static_cast<size_t>(slot - 1)];
}

void History::add_prompt(std::span<const int32_t> prompt) {
  for (const int32_t token : prompt) entry(token).in_prompt = true;
}

void History::push_output(int32_t token) {
  entry(token).output_count += 1;
  output_.push_back(token);
}

void History::pop_output() {
  entry(output_.back()).output_count -= 1;
  output_.pop_back();
}

}  // namespace quire::sampling
