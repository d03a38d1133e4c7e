// SPDX-License-Identifier: Apache-2.0
// The tokens of a Vocabulary as flat tries, one for each slice; private to vocabulary.cc and the matcher.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "grammar/matcher.h"

namespace quire::grammar {

// A node of a trie in depth-first order: its children follow it, and `next` is the node after its whole subtree.
struct TrieNode {
  static constexpr uint32_t kNoToken = 0xFFFFFFFF;
  uint32_t token = kNoToken;  // the token that ends here
  uint32_t next = 0;
  uint16_t depth = 0;  // the number of bytes up to and including this one
  uint8_t byte = 0;
};

// Tokens that are whole characters of plain text are grouped by their length: where a terminal allows any text of that
// length, the mask of the whole group is taken and its trie is not walked. "Plain" leaves out what a JSON string must
// escape, and DEL.
struct TokenSlice {
  // Tokens of this slice have at most so many characters; 0: these tokens are not (only) plain text.
  int max_chars = 0;
  std::vector<TrieNode> nodes;
  std::vector<uint32_t> rank;  // by node, and one more: the number of tokens that end before it
  std::vector<uint32_t> mask;  // one bit per token
};

// Follows plain text in UTF-8 byte by byte. State 0 is between two characters; -1: not plain text.
int plain_text_step(int state, uint8_t byte);
constexpr int kPlainTextStates = 8;
// More characters than any bounded slice has.
constexpr int kAnyChars = 1 << 30;

struct Vocabulary::Parts {
  int64_t size = 0;
  std::vector<Token> tokens;
  std::array<TokenSlice, 4> slices;
  std::vector<uint32_t> present;                          // one bit per id that has a token
  std::vector<std::pair<uint32_t, uint32_t>> duplicates;  // (token, the token in the trie that has the same bytes)
  int max_depth = 0;
};

}  // namespace quire::grammar
