// SPDX-License-Identifier: Apache-2.0
// Remembers the prefixes of engines, and orders engines by them and by load.
#include "llm/engine_router.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/check.h"

namespace quire::llm {

EngineRouter::EngineRouter(size_t engines, int64_t block_size, size_t capacity)
    : block_size_(block_size), capacity_(capacity), known_(engines) {
  QUIRE_CHECK(engines > 0 && (capacity == 0 || block_size > 0));
}

EngineRouter::Chain EngineRouter::hashes(std::span<const int32_t> prompt, std::string_view key) const {
  Chain chain;
  if (capacity_ == 0) return chain;
  const size_t blocks = std::min(prompt.size() / static_cast<size_t>(block_size_), capacity_);
  chain.reserve(blocks);
  kv::BlockHash parent;
  for (size_t i = 0; i < blocks; ++i) {
    const auto tokens = prompt.subspan(i * static_cast<size_t>(block_size_), static_cast<size_t>(block_size_));
    parent = hasher_.hash(parent, tokens, i == 0 ? key : std::string_view());
    chain.push_back(parent);
  }
  return chain;
}

int64_t EngineRouter::known_tokens(size_t engine, std::span<const Chain> prompts) const {
  int64_t blocks = 0;
  for (const Chain& chain : prompts) {
    const auto unknown =
        std::ranges::find_if(chain, [&](const kv::BlockHash& hash) { return !known_[engine].places.contains(hash); });
    blocks += unknown - chain.begin();
  }
  return blocks * block_size_;
}

int64_t EngineRouter::computed_tokens(std::span<const Chain> prompts) const {
  const auto is_computed = [&](const kv::BlockHash& hash) {
    return std::ranges::any_of(known_, [&](const Known& known) {
      const auto at = known.places.find(hash);
      return at != known.places.end() && at->second->is_computed();
    });
  };
  int64_t blocks = 0;
  for (const Chain& chain : prompts) blocks += std::ranges::find_if_not(chain, is_computed) - chain.begin();
  return blocks * block_size_;
}

std::vector<size_t> EngineRouter::rank(std::span<const Chain> prompts, std::span<const int64_t> loads) {
  QUIRE_CHECK(loads.size() == known_.size());
  const size_t count = known_.size();
  std::vector<std::tuple<int64_t, int64_t, int64_t, size_t>> keys(count);  // less is better
  const int64_t copied = computed_tokens(prompts) * kCopiedEighths / 8;
  for (size_t e = 0; e < count; ++e) {
    const int64_t known = known_tokens(e, prompts);
    const int64_t score = std::max(known, copied) - kLoadTokens * loads[e];
    keys[e] = {-score, loads[e], -known, (e + count - turn_) % count};
  }
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t e) { return keys[e]; });
  turn_ = (order[0] + 1) % count;
  return order;
}

// From the last block to the first: the beginning of a prompt, which most others share, is forgotten last.
void EngineRouter::record(size_t engine, std::span<const Chain> prompts, const Computed& computed) {
  Known& known = known_[engine];
  for (const Chain& chain : prompts) {
    for (size_t i = chain.size(); i-- > 0;) {
      const auto [it, is_new] = known.places.try_emplace(chain[i]);
      if (is_new) {
        it->second = known.blocks.insert(known.blocks.begin(), {chain[i], computed});
      } else {
        if (!it->second->is_computed()) it->second->computed = computed;
        known.blocks.splice(known.blocks.begin(), known.blocks, it->second);
      }
    }
    while (known.blocks.size() > capacity_) {
      known.places.erase(known.blocks.back().hash);
      known.blocks.pop_back();
    }
  }
}

void EngineRouter::forget() {
  for (Known& known : known_) known = {};
}

}  // namespace quire::llm
