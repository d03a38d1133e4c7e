// SPDX-License-Identifier: Apache-2.0
// RegexStore: regular expressions over bytes, hash-consed, with complement, intersection and derivatives.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace quire::grammar {

// A set of byte values.
class ByteSet {
 public:
  static ByteSet all();
  static ByteSet of(std::string_view bytes);
  static ByteSet range(uint8_t first, uint8_t last);

  void add(uint8_t byte) { words_[byte / 64] |= uint64_t{1} << (byte % 64); }
  bool has(uint8_t byte) const { return (words_[byte / 64] >> (byte % 64)) & 1; }
  bool empty() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  ByteSet operator~() const;
  ByteSet operator|(const ByteSet& other) const;
  ByteSet operator&(const ByteSet& other) const;
  bool operator==(const ByteSet& other) const = default;
  const std::array<uint64_t, 4>& words() const { return words_; }

 private:
  std::array<uint64_t, 4> words_{};
};

// An expression in a RegexStore. Equal expressions of one store have equal references (up to the store's
// simplifications).
struct Regex {
  uint32_t index = 0;
  bool operator==(const Regex&) const = default;
};

// Code points, both ends included. Surrogates (U+D800 to U+DFFF) have no bytes and are left out.
struct CodePointRange {
  uint32_t first = 0;
  uint32_t last = 0;
};

// Owns expressions and simplifies them as they are made: alternatives are sorted and unique, nothing() and the empty
// string disappear where they have no effect, sequences associate to the right. Every expression matches byte strings
// as a whole (there are no anchors). Not thread-safe. Expressions are never freed before the store. To join many
// expressions use the makers that take a span: n calls of the binary ones cost O(n^2).
class RegexStore {
 public:
  // `max_nodes` bounds the memory. When the store is full, makers return nothing() and full() is true: whoever builds
  // or derives expressions checks full() at the end and reports an error.
  explicit RegexStore(size_t max_nodes = 1'000'000);
  ~RegexStore();
  RegexStore(RegexStore&& other) noexcept;
  RegexStore& operator=(RegexStore&& other) noexcept;
  // Whether the limit was hit, or an expression was nested more than a thousand levels deep.
  bool full() const;
  // Nodes at present, and steps of work so far: whoever bounds its time compares work() before and after a call.
  size_t size() const;
  int64_t work() const;
  size_t memory() const;

  Regex nothing() const;                                       // matches no string
  Regex empty() const;                                         // matches the empty string
  Regex anything() const;                                      // matches every byte string, valid UTF-8 or not
  Regex any_char() const;                                      // one code point in UTF-8
  Regex any_text() const;                                      // zero or more code points: valid UTF-8
  Regex bytes(const ByteSet& set);                             // one byte of the set
  Regex literal(std::string_view bytes);                       // these bytes
  Regex literal_ignoring_case(std::string_view text);          // ASCII letters in either case
  Regex chars(std::span<const CodePointRange> ranges);         // one code point of these, in UTF-8
  Regex chars_except(std::span<const CodePointRange> ranges);  // one code point, but none of these
  Regex concat(Regex a, Regex b);
  Regex concat(std::span<const Regex> parts);
  Regex either(Regex a, Regex b);
  Regex either(std::span<const Regex> parts);
  Regex both(Regex a, Regex b);  // intersection
  Regex complement(Regex a);     // over all byte strings; intersect with any_text() to stay in UTF-8
  Regex repeat(Regex a, int64_t min, std::optional<int64_t> max = std::nullopt);
  Regex optional(Regex a) { return repeat(a, 0, 1); }
  // Strings of decimal digits that, read as one integer, are a multiple of the divisor; points between them are
  // ignored, and the empty string is zero. Derivatives are remainders, so large divisors cost nothing until
  // they are used.
  Regex digits_multiple_of(uint32_t divisor);
  // The same expression with each of these bytes replaced by what another expression matches: the texts that spell the
  // strings of `a`. REQUIRES: the images and the bytes that stay as they are can be told apart from left to right: none
  // begins with another; no digits_multiple_of() with an image for a digit or the point.
  Regex replace_bytes(Regex a, std::span<const std::pair<uint8_t, Regex>> images);
  // Valid UTF-8 text in which none of these strings (not empty) occurs.
  Regex text_without(std::span<const std::string> strings);

  // Whether the empty string matches. O(1).
  bool nullable(Regex a) const;
  // Whether a is made of single bytes, sequences and alternatives alone: a literal or a finite set of them. Such
  // expressions stay small when they are joined to others. O(1).
  bool plain(Regex a) const;
  // True only if a matches strings without end. O(1); false may also mean that this is not known.
  bool infinite(Regex a) const;
  // If a is, or begins with, "x but none of finitely many strings": x. Then every beginning of a string of x is one of
  // a string of a, too, wherever what x allows to follow is infinite.
  std::optional<Regex> without_exceptions(Regex a);
  // If a is `body` repeated at most `max` times, with `rest` after it: these.
  struct LeadingRepeat {
    Regex body;
    uint32_t max;
    Regex rest;
  };
  std::optional<LeadingRepeat> leading_repeat(Regex a) const;
  // What must follow `byte`: the Brzozowski derivative.
  Regex derivative(Regex a, uint8_t byte);
  // Byte values that this expression cannot tell apart have the same class; classes are numbered from 0 in the order of
  // their first byte.
  struct ByteClasses {
    std::array<uint8_t, 256> of{};
    int count = 1;
  };
  ByteClasses classes(Regex a);
  // The sets of bytes that these expressions look at first: bytes that are in the same sets have the same derivatives.
  // The pointers hold until a new expression is made.
  std::vector<const ByteSet*> first_sets(std::span<const Regex> expressions);
  // Classes that none of these expressions nor any of their derivatives can tell apart.
  ByteClasses all_classes(std::span<const Regex> expressions) const;

  // Whether a matches no string at all, and whether every string of a is one of b. Both explore at most `fuel`
  // derivatives; nothing is returned if that was not enough. What is_nothing finds is remembered.
  std::optional<bool> is_nothing(Regex a, int64_t fuel = 10'000);
  std::optional<bool> contained(Regex a, Regex b, int64_t fuel = 10'000);
  // Whether the whole of `text` matches; for tests and small checks.
  bool matches(Regex a, std::string_view text);

  struct State;  // in regex_state.h, for this class's own files

 private:
  std::optional<bool> is_nothing_in_parts(Regex a, int64_t fuel, int depth);
  std::optional<bool> explore_nothing(Regex a, int64_t fuel);

  std::unique_ptr<State> state_;
};

struct RegexSyntax {
  bool ignore_case = false;  // (?i)
  bool dot_all = false;      // (?s): . matches a line break, too
  // JSON Schema's `pattern` is not anchored: the match may lie anywhere unless ^ and $ say otherwise. Without this, the
  // whole text must match.
  bool search = false;
};
// The expression of a pattern in the common syntax of ECMA-262, Python's re and Rust's regex: literals, escapes
// (\n \xHH \uHHHH \u{...} \cX \d \w \s \D \W \S \p{L} ...), classes, groups ((?:...), (...), (?<name>...),
// (?P<name>...), (?i:...)), alternation, greedy and lazy quantifiers (the same language), and, anywhere, the anchors
// ^ $ \A \z \Z and look-aheads (?=...) (?!...). \d, \w and \s are those of ECMA-262: digits and words are ASCII, white
// space is not. A dot matches all but \n, and with `search` all but ECMA-262's four line terminators.
//
// Refused with an error that names the construct and its offset in the pattern: look-behind, backreferences, \b,
// possessive quantifiers, atomic groups, an unbounded repetition of a look-ahead, flags other than i and s, and what
// the three dialects read differently, such as []a] or {,3}.
Result<Regex> parse_regex(RegexStore& store, std::string_view pattern, const RegexSyntax& syntax = {});

}  // namespace quire::grammar
