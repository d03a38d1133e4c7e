// SPDX-License-Identifier: Apache-2.0
// Productions: the rules of a grammar in the form that the parser reads, without what can never be used.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "grammar/grammar.h"

namespace quire::grammar {

class Vocabulary;

// What stands behind the dot of an item: a kind in the top two bits and an index below.
namespace code {
constexpr uint32_t kKindMask = 0xC0000000;
constexpr uint32_t kRule = 0;
constexpr uint32_t kLexeme = 0x40000000;
constexpr uint32_t kToken = 0x80000000;
constexpr uint32_t kEnd = 0xC0000000;  // the end of a production of the rule with this index, or of a bag's entry
constexpr uint32_t kind(uint32_t symbol) {
  return symbol & kKindMask;
}
constexpr uint32_t index(uint32_t symbol) {
  return symbol & ~kKindMask;
}
}  // namespace code

// Immutable once made. All productions lie in one array, each followed by its end; a dot is a position in it.
struct Productions {
  std::vector<uint32_t> symbols;     // by dot
  std::vector<uint32_t> rule_begin;  // by rule, and one more: its range in `starts`
  std::vector<uint32_t> starts;      // the first dots of productions that are not empty
  std::vector<bool> nullable_rule;
  std::vector<bool> nullable_lexeme;
  std::vector<Regex> lexemes;
  std::vector<TokenSet> token_sets;
  // An entry of a bag (see Grammar::bag). Its two productions end with kEnd and bag_base plus its index.
  struct BagEntry {
    static constexpr uint32_t kRepeats = 0xFFFFFFFF;
    uint32_t bag;
    uint32_t bit;    // in the set of entries that were there, or kRepeats
    uint32_t later;  // the first dot of its production behind other entries
  };
  struct Bag {
    uint32_t rule;
    uint32_t begin, end;             // in bag_entries
    std::vector<uint64_t> required;  // a set, of at least one word
  };
  std::vector<Bag> bags;
  std::vector<BagEntry> bag_entries;
  uint32_t bag_base = 0;
  uint32_t start_dot = 0;  // of the production of an extra rule that has the start symbol alone
  uint32_t start_end = 0;  // the end of that production: the text is complete

  bool nullable(uint32_t symbol) const {
    if (code::kind(symbol) == code::kRule) return nullable_rule[symbol];
    return code::kind(symbol) == code::kLexeme && nullable_lexeme[code::index(symbol)];
  }
  size_t bytes() const;

  // Leaves out rules that match no text and rules that the start does not lead to, and puts a symbol in the place of
  // each rule that is nothing but that symbol. Fails if the start matches no text.
  static Result<Productions> make(Grammar& grammar, const Vocabulary& vocabulary);
};

// Whether the set allows any token of the vocabulary, and whether it allows this one. An end token is allowed only by a
// set that names it.
bool matches_any(const TokenSet& set, const Vocabulary& vocabulary);
bool matches(const TokenSet& set, int32_t token, bool end_token);

}  // namespace quire::grammar
