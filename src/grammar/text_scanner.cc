// SPDX-License-Identifier: Apache-2.0
// The parts of grammar texts that EBNF and Lark write the same way.
#include "grammar/text_scanner.h"

#include <algorithm>

#include "base/utf8.h"

namespace quire::grammar {

namespace {

constexpr int64_t kMaxRepeats = 1'000'000;
constexpr int64_t kMaxTokenId = 0x7fffffff;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

}  // namespace

Status TextScanner::check() const {
  if (text_.size() > kMaxGrammarBytes) return invalid_argument("The grammar is longer than 1 MiB.");
  for (size_t pos = 0; pos < text_.size();) {
    const utf8::Decoded c = utf8::decode(text_, pos);
    if (!c.valid) return wrong_at(pos, "it is not valid UTF-8 there");
    pos += c.size;
  }
  return {};
}

bool TextScanner::take(std::string_view prefix) {
  if (!looking_at(prefix)) return false;
  pos_ += prefix.size();
  return true;
}

char32_t TextScanner::take_char() {
  const utf8::Decoded c = utf8::decode(text_, pos_);
  pos_ += c.size;
  return c.code_point;
}

int TextScanner::line_at(size_t pos) const {
  pos = std::min(pos, text_.size());
  if (pos < line_pos_) {
    line_pos_ = 0;
    line_ = 1;
  }
  line_ += static_cast<int>(std::count(text_.begin() + line_pos_, text_.begin() + pos, '\n'));
  line_pos_ = pos;
  return line_;
}

bool TextScanner::first_on_line() const {
  for (size_t p = pos_; p-- > 0 && text_[p] != '\n';) {
    if (text_[p] != ' ' && text_[p] != '\t' && text_[p] != '\r') return false;
  }
  return true;
}

Failure TextScanner::wrong_at(size_t pos, std::string_view what) const {
  return invalid_argument({"The grammar is wrong on line ", line_at(pos), ": ", what, "."});
}

std::string_view TextScanner::take_name(bool ebnf) {
  // Names that programs make from those of a schema's properties begin with a digit or with "-" for any other sign.
  const bool begins = is_letter(peek()) || (ebnf && (is_digit(peek()) || (peek() == '-' && peek(1) != '>')));
  if (!begins) return {};
  const size_t begin = pos_;
  while (is_letter(peek()) || is_digit(peek()) || (ebnf && peek() == '.') || (peek() == '-' && peek(1) != '>')) ++pos_;
  return text_.substr(begin, pos_ - begin);
}

Result<std::string> TextScanner::quoted() {
  const size_t begin = pos_++;
  std::string out;
  while (!at_end() && peek() != '"' && peek() != '\n') {
    if (!take("\\")) {
      out += text_[pos_++];
      continue;
    }
    QUIRE_ASSIGN(const char32_t c, escape());
    utf8::append(out, c);
  }
  if (!take("\"")) return wrong_at(begin, "the text in quotes is not closed on its line");
  return out;
}

Result<char32_t> TextScanner::escape() {
  if (at_end()) return wrong("the grammar ends in a backslash");
  const size_t begin = pos_;
  const char32_t c = take_char();
  size_t digits = 0;
  switch (c) {
    case 'n':
      return U'\n';
    case 'r':
      return U'\r';
    case 't':
      return U'\t';
    case 'b':
      return U'\b';
    case 'f':
      return U'\f';
    case 'a':
      return U'\a';
    case 'v':
      return U'\v';
    case 'e':
      return char32_t{0x1b};
    case '0':
      return char32_t{0};
    case 'x':
      digits = 2;
      break;
    case 'u':
      digits = 4;
      break;
    case 'U':
      digits = 8;
      break;
    default:
      break;
  }
  if (digits == 0) {
    const bool word = c < 0x80 && (is_letter(static_cast<char>(c)) || is_digit(static_cast<char>(c)));
    if ((c < 0x80 && !word) || c == '_') return c;
    std::string name = "\\";
    utf8::append(name, c);
    return wrong_at(begin, "the escape " + name + " has no meaning here");
  }
  QUIRE_ASSIGN(uint32_t value, hex_digits(begin, digits));
  if (value >= 0xd800 && value < 0xdc00 && c == 'u' && take("\\u")) {
    QUIRE_ASSIGN(const uint32_t low, hex_digits(begin, 4));
    if (low >= 0xdc00 && low <= 0xdfff) value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
  }
  if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return wrong_at(begin, "the escape is no character");
  return static_cast<char32_t>(value);
}

Result<uint32_t> TextScanner::hex_digits(size_t begin, size_t count) {
  uint32_t value = 0;
  for (; count > 0; --count, ++pos_) {
    const char c = peek();
    const bool lower = c >= 'a' && c <= 'f';
    const bool upper = c >= 'A' && c <= 'F';
    if (!is_digit(c) && !lower && !upper) {
      return wrong_at(begin, "an escape \\x, \\u or \\U needs 2, 4 or 8 hexadecimal digits");
    }
    value = value * 16 + static_cast<uint32_t>(is_digit(c) ? c - '0' : lower ? c - 'a' + 10 : c - 'A' + 10);
  }
  return value;
}

Result<int64_t> TextScanner::number(int64_t max) {
  if (!is_digit(peek())) return wrong("a number is missing");
  const size_t begin = pos_;
  int64_t value = 0;
  for (; is_digit(peek()); ++pos_) {
    value = value * 10 + (peek() - '0');
    if (value > max) return wrong_at(begin, "the number is larger than " + std::to_string(max));
  }
  return value;
}

Result<RepeatBounds> TextScanner::braces(bool open_start) {
  const size_t begin = pos_++;
  const auto blanks = [&] {
    while (peek() == ' ' || peek() == '\t') ++pos_;
  };
  RepeatBounds out;
  blanks();
  if (!(open_start && peek() == ',')) {
    QUIRE_ASSIGN(out.min, number(kMaxRepeats));
  }
  blanks();
  out.max = out.min;
  if (take(",")) {
    out.max.reset();
    blanks();
    if (is_digit(peek())) {
      QUIRE_ASSIGN(out.max, number(kMaxRepeats));
    }
    blanks();
  }
  if (!take("}")) return wrong_at(begin, "a repetition is written {n}, {n,} or {m,n}");
  if (out.max && *out.max < out.min)
    return wrong_at(begin, "the repetition's upper bound is less than its lower bound");
  return out;
}

Status TextScanner::token_ranges(TokenSet& out) {
  do {
    while (peek() == ' ') ++pos_;
    QUIRE_ASSIGN(const int64_t first, number(kMaxTokenId));
    int64_t last = first;
    if (take("-")) {
      QUIRE_ASSIGN(last, number(kMaxTokenId));
    }
    if (last < first) return wrong("the range of token ids is out of order");
    out.ranges.emplace_back(static_cast<int32_t>(first), static_cast<int32_t>(last));
    while (peek() == ' ') ++pos_;
  } while (take(","));
  return {};
}

Result<TokenSet> TextScanner::token_set() {
  const size_t begin = pos_++;
  TokenSet out;
  if (take("[")) {
    if (take("*")) {
      out.inverted = true;
    } else {
      out.inverted = take("^");
      QUIRE_TRY(token_ranges(out));
    }
    if (!take("]>")) return wrong_at(begin, "a set of tokens is written <[1,3-8]>, <[^1]> or <[*]>");
    return out;
  }
  const size_t end = text_.find('>', pos_);
  const size_t line_end = text_.find('\n', pos_);
  if (end == std::string_view::npos || end > line_end) return wrong_at(begin, "a token's name is not closed by \">\"");
  const std::string_view name = text_.substr(begin, end + 1 - begin);
  pos_ = end + 1;
  const std::optional<int32_t> id = special_.find(name);
  if (!id) return wrong_at(begin, "the model has no special token " + utf8::beginning(name, 100));
  out.ranges.emplace_back(*id, *id);
  return out;
}

Result<std::string_view> TextScanner::json_text() {
  const size_t begin = pos_;
  int depth = 0;
  bool in_string = false;
  for (; !at_end(); ++pos_) {
    const char c = peek();
    if (in_string) {
      if (c == '\\') ++pos_;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) {
      ++pos_;
      return text_.substr(begin, pos_ - begin);
    }
  }
  pos_ = text_.size();
  return wrong_at(begin, "the JSON value is not closed");
}

}  // namespace quire::grammar
