// SPDX-License-Identifier: Apache-2.0
// RegexTree: a parsed pattern before its anchors and look-aheads are resolved; private to parse_regex.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/regex.h"
#include "text/unicode.h"

namespace quire::grammar {

// Nodes refer to their parts by index; a part always stands before its whole, the root is the last node.
struct RegexTree {
  enum class Kind : uint8_t {
    kEmpty,     // the empty string
    kChars,     // one code point of sets[set]
    kSequence,  // the parts one after the other
    kChoice,    // one of the parts
    kRepeat,    // parts[0], min to max times
    kStart,     // ^: the text begins here
    kEnd,       // $: the text ends here
    kAhead,     // (?=...): parts[0] matches from here on, without moving on
    kNotAhead,  // (?!...): it does not
  };
  struct Node {
    Kind kind = Kind::kEmpty;
    bool has_anchor = false;  // a kStart or kEnd in it
    bool has_ahead = false;   // a kAhead or kNotAhead in it
    size_t offset = 0;        // in the pattern, for messages
    uint32_t set = 0;
    std::vector<uint32_t> parts = {};
    int64_t min = 0;
    std::optional<int64_t> max = {};
  };
  std::vector<Node> nodes;
  std::vector<text::CodeSet> sets;
};

Result<RegexTree> parse_regex_tree(std::string_view pattern, const RegexSyntax& syntax);
Result<Regex> lower_regex_tree(RegexStore& store, const RegexTree& tree, const RegexSyntax& syntax);

}  // namespace quire::grammar
