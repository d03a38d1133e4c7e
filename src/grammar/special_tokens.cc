// SPDX-License-Identifier: Apache-2.0
// Look-ups in a sorted list of special tokens.
#include "grammar/special_tokens.h"

#include <algorithm>

namespace quire::grammar {

SpecialTokens::SpecialTokens(std::vector<std::pair<std::string, int32_t>> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const auto& token) { return token.first.empty(); });
  std::sort(tokens_.begin(), tokens_.end());
  const auto end =
      std::unique(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  tokens_.erase(end, tokens_.end());
  for (const auto& [text, id] : tokens_) longest_ = std::max(longest_, text.size());
}

std::optional<int32_t> SpecialTokens::find(std::string_view text) const {
  const auto it = std::lower_bound(tokens_.begin(), tokens_.end(), text,
                                   [](const auto& token, std::string_view wanted) { return token.first < wanted; });
  if (it == tokens_.end() || it->first != text) return std::nullopt;
  return it->second;
}

std::optional<SpecialTokens::Match> SpecialTokens::find_longest_at(std::string_view text, size_t pos) const {
  if (pos >= text.size()) return std::nullopt;
  for (size_t size = std::min(longest_, text.size() - pos); size > 0; --size) {
    if (const auto id = find(text.substr(pos, size))) return Match{*id, size};
  }
  return std::nullopt;
}

}  // namespace quire::grammar
