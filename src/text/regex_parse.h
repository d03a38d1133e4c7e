// SPDX-License-Identifier: Apache-2.0
// The tree of a pattern: Oniguruma's syntax with every character and class resolved to a set of code points.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/unicode.h"

namespace quire::text {

// One node of a pattern. Sets are leaves; everything else is written to the PCRE2 pattern unchanged.
struct RegexNode {
  enum class Kind {
    kSet,          // one character of `set`
    kSequence,     // children one after another
    kAlternation,  // the first child that matches
    kGroup,        // `text` + child + ")": a group or a look-around
    kRepeat,       // child + `text` ("*", "+?", "{1,3}")
    kAssertion,    // `text` unchanged: \A, \z, a back reference
  };
  Kind kind = Kind::kSequence;
  CodeSet set;
  std::string text;
  std::vector<RegexNode> children;
};

struct ParsedRegex {
  RegexNode root;
  bool has_back_reference = false;
};

Result<ParsedRegex> parse_regex(std::string_view pattern);

}  // namespace quire::text
