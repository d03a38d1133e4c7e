// SPDX-License-Identifier: Apache-2.0
// SpecialTokens: the texts of a model's special tokens, so that markers in a constraint become tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::grammar {

// The special tokens of a model by their texts ("<|im_end|>"). These are the tokens that Vocabulary matches by id alone
// (Vocabulary::Token::special). Immutable after construction: any thread may use it.
class SpecialTokens {
 public:
  SpecialTokens() = default;
  // Empty texts are left out; of equal texts the lowest id is kept.
  explicit SpecialTokens(std::vector<std::pair<std::string, int32_t>> tokens);

  // The token with exactly this text.
  std::optional<int32_t> find(std::string_view text) const;

  struct Match {
    int32_t id = 0;
    size_t size = 0;  // bytes of its text
  };
  // The token with the longest text that begins at `pos`. O(size of the longest text * log of their number).
  std::optional<Match> find_longest_at(std::string_view text, size_t pos) const;

  // Sorted by text.
  const std::vector<std::pair<std::string, int32_t>>& tokens() const { return tokens_; }

 private:
  std::vector<std::pair<std::string, int32_t>> tokens_;
  size_t longest_ = 0;
};

}  // namespace quire::grammar
