// SPDX-License-Identifier: Apache-2.0
// The regular expressions of tokenizer files: Oniguruma's syntax, our own Unicode tables, and PCRE2 as the matcher.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace quire::text {

struct CompiledRegex;

// A compiled pattern. PCRE2 in Debian 12 follows Unicode 14 and its own case rules, so it never gets a property: the
// characters and sets of the pattern divide the code points into a few classes, each class becomes one byte, and PCRE2
// matches these bytes (one per character of the text). A pattern with more than 250 classes, or with a back reference,
// runs in PCRE2's UTF mode instead, with its sets written as ranges. Immutable; any thread may match. A match that
// exceeds PCRE2's limits counts as no match: the rest of the text stays one piece.
class Regex {
 public:
  using Span = std::pair<size_t, size_t>;  // bytes [first, second)

  enum class Mode { kAuto, kUtf };
  // The error says what is wrong or not supported in the pattern.
  static Result<Regex> compile(std::string_view pattern, Mode mode = Mode::kAuto);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Appends all matches from left to right, including empty ones (but not one that touches the previous match).
  // REQUIRES: `text` is valid UTF-8.
  void find_all(std::string_view text, std::vector<Span>& out) const;

 private:
  explicit Regex(std::unique_ptr<const CompiledRegex> compiled);
  std::unique_ptr<const CompiledRegex> compiled_;
};

}  // namespace quire::text
