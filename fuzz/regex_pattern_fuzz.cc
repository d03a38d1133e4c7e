// SPDX-License-Identifier: Apache-2.0
// Fuzzes the parser of regular expressions: the first byte has the options, the rest is the pattern.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "grammar/regex.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  if (size == 0) return 0;
  grammar::RegexSyntax syntax;
  syntax.ignore_case = (data[0] & 1) != 0;
  syntax.dot_all = (data[0] & 2) != 0;
  syntax.search = (data[0] & 4) != 0;
  const std::string_view pattern(reinterpret_cast<const char*>(data) + 1, size - 1);
  grammar::RegexStore store(100'000);
  const auto regex = grammar::parse_regex(store, pattern, syntax);
  if (!regex.ok()) return 0;
  // Follow the expression along some texts: only UTF-8 can match.
  for (const std::string_view text : {std::string_view("a"), std::string_view("\xff"), pattern}) {
    const bool matches = store.matches(*regex, text.substr(0, 64));
    QUIRE_CHECK(!matches || utf8::is_valid(text.substr(0, 64)), "a pattern matches valid UTF-8 only");
  }
  return 0;
}
