// SPDX-License-Identifier: Apache-2.0
// The formats of JSON Schema as regular expressions.
#pragma once

#include <optional>
#include <string_view>

#include "base/result.h"
#include "grammar/regex.h"

namespace quire::grammar::schema {

// The strings of a format, by their contents. Nothing for a name that JSON Schema does not define: such a format says
// nothing. An error for a format that JSON Schema defines but no regular expression of a sensible size describes.
Result<std::optional<Regex>> format_regex(RegexStore& store, std::string_view name);

}  // namespace quire::grammar::schema
