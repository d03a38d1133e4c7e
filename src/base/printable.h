// SPDX-License-Identifier: Apache-2.0
// Text from files and requests on terminals and in logs, where control characters could move the cursor or hide lines.
#pragma once

#include <string>
#include <string_view>

namespace quire {

// The text with control characters and bytes that are no UTF-8 as \x1b; line breaks and tabs stay.
std::string printable(std::string_view text);

}  // namespace quire
