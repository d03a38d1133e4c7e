// SPDX-License-Identifier: Apache-2.0
// Sets of strings for JSON Schema, and how JSON writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/regex.h"

namespace quire::grammar::schema {

// A set of strings, by their contents (what a JSON parser gives, in UTF-8), not by their spelling.
struct StringSet {
  enum class Form : uint8_t { kLength, kValues, kRegex };
  Form form = Form::kLength;
  int64_t min = 0;                  // kLength: in code points
  std::optional<int64_t> max;       // kLength
  std::vector<std::string> values;  // kValues: sorted, unique; may be empty: no string at all
  Regex regex;                      // kRegex
};

// Makes, combines and spells sets of strings. Not thread-safe, as the store is not.
class StringSets {
 public:
  explicit StringSets(RegexStore& store);

  static StringSet all() { return {}; }
  static StringSet none() { return of_values({}); }
  static StringSet of_values(std::vector<std::string> values);
  static StringSet of_length(int64_t min, std::optional<int64_t> max);
  // REQUIRES: the expression matches only valid UTF-8.
  static StringSet of_regex(Regex regex);
  StringSet both(const StringSet& a, const StringSet& b);
  StringSet either(const StringSet& a, const StringSet& b);
  StringSet complement(const StringSet& a);
  bool is_none(const StringSet& a);
  static bool is_all(const StringSet& a) { return a.form == StringSet::Form::kLength && a.min == 0 && !a.max; }
  Regex regex(const StringSet& a);
  bool has(const StringSet& a, std::string_view value);

  // The JSON texts of a set, with their quotes. A set that is known by its lengths or its values has every spelling
  // that JSON allows but lone surrogates; in any other set, a character is written as itself where JSON allows that,
  // else as an escape.
  Regex text(const StringSet& a);
  // The JSON texts of one string, with their quotes, in every spelling but escapes of printable ASCII.
  Regex text_of_value(std::string_view value);
  // Every JSON string but the spellings of these.
  Regex text_except(const std::vector<std::string>& values);
  // The values of a set that has at most `limit` of them; nothing if there may be more.
  std::optional<std::vector<std::string>> values(const StringSet& a, size_t limit);

 private:
  Regex escape(uint32_t code_point);
  Regex every_spelling(std::string_view value);

  RegexStore& store_;
  Regex quote_;
  Regex character_;  // one character of a JSON string, in any spelling
};

// The alternation of many literals: sorted and factored by their common prefixes, in time linear in their bytes.
// REQUIRES: values is sorted and unique.
Regex either_of_literals(RegexStore& store, const std::vector<std::string>& values);

}  // namespace quire::grammar::schema
