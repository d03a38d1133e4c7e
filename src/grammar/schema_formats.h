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
// `plain_host_names`: as up to draft 6, a host name is any sequence of letters, digits and hyphens; later drafts demand
// that labels such as "xn--..." are valid encodings, and no such label is accepted.
Result<std::optional<Regex>> format_regex(RegexStore& store, std::string_view name, bool plain_host_names);

}  // namespace quire::grammar::schema
