// SPDX-License-Identifier: Apache-2.0
// Hand-written scanners for the split patterns that most models share; each equals its regular expression.
#pragma once

#include <string_view>
#include <vector>

#include "text/pre_tokenizer.h"

namespace quire::text {

// Appends the pieces of `text` (valid UTF-8), shifted by `base`; they cover it.
using Scanner = void (*)(std::string_view text, size_t base, std::vector<Piece>& out);

// The scanner for a pattern, by its exact spelling; null when there is none.
Scanner scanner_for(std::string_view pattern);
// Every pattern that has one, for tests.
std::vector<std::string_view> scanned_patterns();

}  // namespace quire::text
