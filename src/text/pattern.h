// SPDX-License-Identifier: Apache-2.0
// A literal or a regular expression to search for, and the ways to split a text around its matches.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/regex.h"

namespace quire::text {

// A literal text or a regular expression. Immutable.
class Pattern {
 public:
  explicit Pattern(std::string literal) : literal_(std::move(literal)) {}
  explicit Pattern(Regex regex) : regex_(std::move(regex)) {}

  // {"String": "..."} or {"Regex": "..."}; `field` names it in errors.
  static Result<Pattern> from_json(const json::Value* value, std::string_view field);
  void find_all(std::string_view text, std::vector<Regex::Span>& out) const;
  // The text with every match replaced.
  std::string replaced(std::string_view text, std::string_view with) const;
  // How many times as long that may be.
  double growth(std::string_view with) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

// Keeps count of how much a chain of replacements may lengthen a text: twenty that double it make a million bytes of
// one.
class Growth {
 public:
  Status replace(const Pattern& pattern, std::string_view with, std::string_view field);

 private:
  double times_ = 1;
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
Result<SplitBehavior> split_behavior(std::string_view name);

// Splits [0, size) around sorted, disjoint matches; `invert` swaps the matches and the text between them. Appends the
// pieces that remain, none of them empty.
void split_around(size_t size, const std::vector<Regex::Span>& matches, SplitBehavior behavior, bool invert,
                  std::vector<Regex::Span>& pieces);

}  // namespace quire::text
