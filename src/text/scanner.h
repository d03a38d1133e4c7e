// SPDX-License-Identifier: Apache-2.0
// Hand-written scanners for common split patterns; each finds the same pieces as its regular expression.
#pragma once

#include <string_view>
#include <vector>

#include "text/pre_tokenizer.h"

namespace quire::text {

// Appends the pieces of `text` (valid UTF-8), shifted by `base`; together they cover the text.
using Scanner = void (*)(std::string_view text, size_t base, std::vector<Piece>& out);

// The scanner for exactly this pattern; null if there is none.
Scanner scanner_for(std::string_view pattern);
// All patterns with a scanner, for tests.
std::vector<std::string_view> scanned_patterns();

}  // namespace quire::text
