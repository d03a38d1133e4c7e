// SPDX-License-Identifier: Apache-2.0
// Patterns of JSON Schema before they become regular expressions.
#include "grammar/schema_patterns.h"

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace quire::grammar::schema {

namespace {

// One part of a sequence: what is repeated, and how often at least.
struct Piece {
  std::string_view atom;
  std::string_view whole;  // with its quantifier
  int64_t least = 1;
  bool fixed = false;  // an anchor, or a group that may have one: what stands around it matters
};

// The end of a class that begins at `at`, or npos.
size_t end_of_class(std::string_view text, size_t at) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == ']') {
      // "[]a]" and "[^]a]" are read in several ways.
      return i == at + 1 || (i == at + 2 && text[at + 1] == '^') ? std::string_view::npos : i + 1;
    }
  }
  return std::string_view::npos;
}

size_t end_of_group(std::string_view text, size_t at) {
  int depth = 0;
  for (size_t i = at; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '[') {
      const size_t end = end_of_class(text, i);
      if (end == std::string_view::npos) return end;
      i = end - 1;
    } else if (text[i] == '(') {
      ++depth;
    } else if (text[i] == ')' && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// The end of the atom at `at`; npos for what stands for itself in no simple way.
size_t end_of_atom(std::string_view text, size_t at) {
  switch (text[at]) {
    case '[':
      return end_of_class(text, at);
    case '(':
      return end_of_group(text, at);
    case '\\':
      if (at + 1 == text.size() ||
          std::string_view("dDwWsS.-/_\\[](){}*+?^$|:@#&=!, ").find(text[at + 1]) == std::string_view::npos)
        return std::string_view::npos;
      return at + 2;
    case '|':
    case ')':
    case '*':
    case '+':
    case '?':
    case '{':
    case '}':
    case ']':
      return std::string_view::npos;
    default:
      // A character may have several bytes.
      do ++at;
      while (at < text.size() && (text[at] & 0xC0) == 0x80);
      return at;
  }
}

// Reads the quantifier at `at`, if there is one, and moves behind it. False: it is none of the usual ones.
bool read_quantifier(std::string_view text, size_t& at, int64_t& least) {
  if (at == text.size()) return true;
  const char c = text[at];
  if (c == '*' || c == '?' || c == '+') {
    least = c == '+' ? 1 : 0;
    ++at;
  } else if (c == '{') {
    const size_t close = text.find('}', at);
    if (close == std::string_view::npos) return false;
    const char* const begin = text.data() + at + 1;
    const auto [end, error] = std::from_chars(begin, text.data() + close, least);
    if (error != std::errc() || least < 0) return false;
    for (const char* rest = end; rest != text.data() + close; ++rest) {
      if (*rest != ',' && (*rest < '0' || *rest > '9')) return false;
    }
    at = close + 1;
  } else {
    return true;
  }
  if (at < text.size() && text[at] == '?') ++at;  // as few as possible
  return at == text.size() || (text[at] != '*' && text[at] != '+' && text[at] != '?' && text[at] != '{');
}

std::optional<std::vector<Piece>> pieces_of(std::string_view pattern) {
  std::vector<Piece> out;
  for (size_t at = 0; at < pattern.size();) {
    const size_t begin = at;
    at = end_of_atom(pattern, begin);
    if (at == std::string_view::npos) return std::nullopt;
    Piece piece;
    piece.atom = pattern.substr(begin, at - begin);
    const bool group = piece.atom[0] == '(';
    piece.fixed = piece.atom == "^" || piece.atom == "$" ||
                  (group && (piece.atom.find_first_of("^$") != std::string_view::npos ||
                             (piece.atom.starts_with("(?") && !piece.atom.starts_with("(?:"))));
    if (group && piece.atom.find("(?", 1) != std::string_view::npos) piece.fixed = true;
    if (group && piece.atom.find('\\') != std::string_view::npos) piece.fixed = true;  // perhaps \b or \1
    if (!read_quantifier(pattern, at, piece.least)) return std::nullopt;
    piece.whole = pattern.substr(begin, at - begin);
    out.push_back(piece);
  }
  return out;
}

}  // namespace

std::string shorter_search(std::string_view pattern) {
  const std::optional<std::vector<Piece>> pieces = pieces_of(pattern);
  if (!pieces) return std::string(pattern);
  std::vector<std::string> texts;
  for (const Piece& piece : *pieces) texts.emplace_back(piece.whole);
  // At either end of what is searched for, as few repetitions as possible leave the most texts.
  auto shorten = [&](size_t i) {
    const Piece& piece = (*pieces)[i];
    if (piece.fixed) return false;
    if (piece.least == 0) {
      texts[i].clear();
      return true;
    }
    texts[i] = piece.atom;
    if (piece.least > 1) texts[i] += "{" + std::to_string(piece.least) + "}";
    return false;
  };
  size_t last = pieces->size();
  while (last > 0 && shorten(last - 1)) --last;
  size_t first = 0;
  while (first < last && shorten(first)) ++first;
  std::string out;
  for (const std::string& text : texts) out += text;
  return out;
}

}  // namespace quire::grammar::schema
