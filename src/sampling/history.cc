// SPDX-License-Identifier: Apache-2.0
// Token counts of one sequence, kept token by token.
#include "base/check.h"
#include "sampling/sampler.h"

namespace quire::sampling {

History::Seen& History::entry(int32_t token) {
  const auto [it, added] = where_.try_emplace(token, static_cast<int32_t>(seen_.size()));
  if (added) seen_.push_back({.token = token});
  return seen_[static_cast<size_t>(it->second)];
}

void History::add_prompt(std::span<const int32_t> prompt) {
  for (const int32_t token : prompt) entry(token).in_prompt = true;
}

void History::push_output(int32_t token) {
  entry(token).output_count += 1;
  output_.push_back(token);
}

void History::pop_output() {
  QUIRE_CHECK(!output_.empty());
  entry(output_.back()).output_count -= 1;
  output_.pop_back();
}

}  // namespace quire::sampling
