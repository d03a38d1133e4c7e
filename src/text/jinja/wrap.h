// SPDX-License-Identifier: Apache-2.0
// Python's textwrap.wrap for one line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text::jinja {

std::vector<std::string> wrap_line(std::string_view line, int64_t width, bool break_long_words, bool break_on_hyphens);

}  // namespace quire::text::jinja
