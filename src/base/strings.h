// SPDX-License-Identifier: Apache-2.0
// Small functions on text that several folders need.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace quire {

// The text with A to Z as a to z; other bytes stay, whatever the locale is.
inline std::string ascii_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// "a, b, c"
inline std::string joined(std::span<const std::string> words) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += ", ";
    out += word;
  }
  return out;
}

}  // namespace quire
