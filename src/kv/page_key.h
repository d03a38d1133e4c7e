// SPDX-License-Identifier: Apache-2.0
// PageKey: what a page of the tiers below the KV cache is found by.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/sha256.h"

namespace quire::kv {

// The digest of all tokens up to the end of the page (and of the salt), and the page's cache group. Whoever can choose
// the tokens cannot make two prefixes with the same digest, so tokens need not be compared. The model and all else that
// decides the page's bytes is not part of it: see OffloadOptions::identity.
struct PageKey {
  Sha256::Value prefix{};
  int32_t group = 0;
  bool operator==(const PageKey&) const = default;
};

struct PageKeyToSize {
  size_t operator()(const PageKey& key) const {
    return Sha256ToSize()(key.prefix) + static_cast<size_t>(key.group) * 0x9E3779B97F4A7C15ull;
  }
};

// The digest of a prefix that is one unit longer. `parent` is all zeros for the first unit, whose `extra` is the salt.
inline Sha256::Value extend_prefix(const Sha256::Value& parent, std::span<const int32_t> tokens,
                                   std::string_view extra) {
  const uint64_t sizes[] = {tokens.size(), extra.size()};
  return Sha256()
      .add(std::as_bytes(std::span(parent)))
      .add(std::as_bytes(std::span(sizes)))
      .add(std::as_bytes(tokens))
      .add(extra)
      .finish();
}

}  // namespace quire::kv
