// SPDX-License-Identifier: Apache-2.0
// Patterns of JSON Schema before they become regular expressions.
#pragma once

#include <string>
#include <string_view>

namespace quire::grammar::schema {

// A pattern that is found in the same texts, with fewer repetitions at its ends. A search for "x[a-z]{1,255}" finds the
// same texts as one for "x[a-z]", and only the second has a small automaton. What the function does not understand
// stays as it is.
std::string shorter_search(std::string_view pattern);

}  // namespace quire::grammar::schema
