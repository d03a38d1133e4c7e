// SPDX-License-Identifier: Apache-2.0
// Grammar: context-free rules over regular expressions and special tokens, which every front end builds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "grammar/regex.h"

namespace quire::grammar {

// A rule, an expression that matches bytes, or a set of special tokens.
struct Symbol {
  uint32_t index = 0;
  bool operator==(const Symbol&) const = default;
};

// What a special token in a grammar may be: any id of these ranges (both ends included), or any but these.
struct TokenSet {
  std::vector<std::pair<int32_t, int32_t>> ranges;
  bool inverted = false;
  bool operator==(const TokenSet&) const = default;
};

struct GrammarLimits {
  size_t max_symbols = 500'000;  // rules and terminals
  size_t max_items = 2'000'000;  // symbols in all productions together
  size_t max_regex_nodes = 1'000'000;
};

// A grammar while it is built. Its language is exact: a text belongs to it if there is any way to divide the text into
// matches of terminals that the rules allow; no terminal is greedier than another, and nothing is skipped between them
// (front ends write white space out). Not thread-safe. Makers never fail: once a limit is exceeded they return a symbol
// that matches nothing, and status() is the error.
//
// What is fast: a list as left recursion (list ::= item | list "," item), which is what repeat() makes, costs the same
// for every item, while right recursion costs a step more for each item before it. A terminal should be a whole token
// of the language (a string, a number, a key with its quotes and its colon): bytes inside of a terminal cost one table
// lookup, its end costs a step of the parser. Use the same terminal for the same thing everywhere, such as one for all
// strings, and do not fold it into its neighbours: what is computed for it once then serves every place.
class Grammar {
 public:
  explicit Grammar(const GrammarLimits& limits = {});
  Grammar(Grammar&&) = default;
  Grammar& operator=(Grammar&&) = default;

  RegexStore& regexes() { return regexes_; }
  // Matches the bytes of this expression. Equal expressions give equal symbols.
  Symbol terminal(Regex regex);
  Symbol literal(std::string_view bytes) { return terminal(regexes_.literal(bytes)); }
  // One token of this set. Special tokens are no text: their bytes match no terminal, only such a symbol matches them.
  Symbol token(TokenSet tokens);

  // A rule without productions, to be referred to before it is defined; without productions it matches nothing.
  Symbol rule(std::string_view name);
  void add_production(Symbol rule, std::span<const Symbol> right_side);
  void add_production(Symbol rule, std::initializer_list<Symbol> right_side) {
    add_production(rule, std::span(right_side.begin(), right_side.size()));
  }

  // Combinations, each a new rule or, where that is the same, an existing symbol or one terminal: terminals that are
  // plain (see RegexStore::plain) are folded into one.
  Symbol empty();
  Symbol nothing();
  Symbol sequence(std::span<const Symbol> parts);
  Symbol sequence(std::initializer_list<Symbol> parts) { return sequence(std::span(parts.begin(), parts.size())); }
  Symbol choice(std::span<const Symbol> options);
  Symbol choice(std::initializer_list<Symbol> options) { return choice(std::span(options.begin(), options.size())); }
  Symbol optional(Symbol symbol);
  // Large bounds cost O(log max) rules, not O(max).
  Symbol repeat(Symbol symbol, int64_t min, std::optional<int64_t> max = std::nullopt);

  // Several of these entries in any order, at least one. An entry is written as `first` if it is the first and as
  // `later` behind another; it may stand there once, or any number of times if it `repeats`. All that are required are
  // there. Costs O(entries) rules; which ones were there is tracked by the parser. REQUIRES: no entry matches the empty
  // text; one that is required does not repeat.
  struct BagEntry {
    Symbol first, later;
    bool required = false, repeats = false;
  };
  Symbol bag(std::vector<BagEntry> entries);

  void set_start(Symbol start) { start_ = start; }
  Symbol start() const { return start_; }
  // The first limit that was exceeded, as an error for the user.
  Status status() const;

  // The regular expression of a symbol if it is a terminal, so that front ends can fold regular parts into one.
  std::optional<Regex> regex_of(Symbol symbol) const;

  struct Production {
    uint32_t rule;
    uint32_t begin, end;  // into items()
  };
  enum class Kind : uint8_t { kRule, kTerminal, kToken };
  struct SymbolInfo {
    Kind kind;
    uint32_t value;  // kTerminal: Regex::index; kToken: index into token_sets()
    std::string name;
  };
  const std::vector<SymbolInfo>& symbols() const { return symbols_; }
  const std::vector<Production>& productions() const { return productions_; }
  const std::vector<Symbol>& items() const { return items_; }
  const std::vector<TokenSet>& token_sets() const { return token_sets_; }
  // By the index of their rule. Such a rule also has productions, which say from what it follows that it matches a
  // text.
  const std::unordered_map<uint32_t, std::vector<BagEntry>>& bags() const { return bags_; }
  // For whoever takes the expressions over; the grammar is of no use afterwards.
  RegexStore take_regexes() { return std::move(regexes_); }

 private:
  Symbol add_symbol(Kind kind, uint32_t value, std::string_view name);
  bool plain(Symbol symbol) const;
  // Exactly `count` times the symbol, and at most `count` times; powers[i] is 2^i times.
  Symbol exactly(std::vector<Symbol>& powers, int64_t count);
  Symbol at_most(std::vector<Symbol>& powers, int64_t count);

  GrammarLimits limits_;
  std::string error_;
  std::unordered_map<uint32_t, Symbol> terminal_index_;  // by Regex::index
  RegexStore regexes_;
  std::vector<SymbolInfo> symbols_;
  std::vector<Production> productions_;
  std::vector<Symbol> items_;
  std::vector<TokenSet> token_sets_;
  std::unordered_map<uint32_t, std::vector<BagEntry>> bags_;
  Symbol start_;
};

}  // namespace quire::grammar
