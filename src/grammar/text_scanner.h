// SPDX-License-Identifier: Apache-2.0
// TextScanner: what the readers of EBNF and Lark texts have in common: characters, lines, literals, tokens, counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/grammar.h"
#include "grammar/special_tokens.h"

namespace quire::grammar {

constexpr size_t kMaxGrammarBytes = size_t{1} << 20;
constexpr int kMaxGrammarDepth = 200;  // of nested groups

// How often something is repeated; no max: any number of times.
struct RepeatBounds {
  int64_t min = 0;
  std::optional<int64_t> max;
};

// A position in the text of a grammar, with its line for messages. Not thread-safe.
class TextScanner {
 public:
  TextScanner(std::string_view text, const SpecialTokens& special) : text_(text), special_(special) {}
  // Refuses texts that are too long or not UTF-8.
  Status check() const;

  size_t pos() const { return pos_; }
  void set_pos(size_t pos) { pos_ = pos < text_.size() ? pos : text_.size(); }
  bool at_end() const { return pos_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0'; }
  bool looking_at(std::string_view prefix) const { return text_.substr(pos_).starts_with(prefix); }
  bool take(std::string_view prefix);
  // REQUIRES: !at_end() and check() succeeded.
  char32_t take_char();
  std::string_view rest() const { return text_.substr(pos_); }
  std::string_view text() const { return text_; }
  int line() const { return line_at(pos_); }
  int line_at(size_t pos) const;
  // True if only blanks stand before the position on its line.
  bool first_on_line() const;

  Failure wrong(std::string_view what) const { return wrong_at(pos_, what); }
  Failure wrong_at(size_t pos, std::string_view what) const;

  // Letters, digits, '_' and '-', and in EBNF also '.'; empty if there is no name here. It does not begin with '.', and
  // only in EBNF with a digit or '-'.
  std::string_view take_name(bool ebnf);
  // A string in double quotes, with escapes. REQUIRES: peek() == '"'
  Result<std::string> quoted();
  // What follows a backslash.
  Result<char32_t> escape();
  // <[1,3-8]>, <[^1]>, <[*]> or <text of a special token>. REQUIRES: peek() == '<'
  Result<TokenSet> token_set();
  // {n}, {n,}, {m,n} and, if `open_start`, {,n}. REQUIRES: peek() == '{'
  Result<RepeatBounds> braces(bool open_start);
  Result<int64_t> number(int64_t max);
  // A JSON value that begins here. REQUIRES: peek() == '{' or '['
  Result<std::string_view> json_text();

 private:
  Status token_ranges(TokenSet& out);
  Result<uint32_t> hex_digits(size_t begin, size_t count);

  std::string_view text_;
  const SpecialTokens& special_;
  size_t pos_ = 0;
  // Lines are counted on from the last place that was asked for.
  mutable size_t line_pos_ = 0;
  mutable int line_ = 1;
};

}  // namespace quire::grammar
