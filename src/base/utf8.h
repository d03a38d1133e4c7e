// SPDX-License-Identifier: Apache-2.0
// UTF-8 decoding and encoding; ill-formed input is replaced by U+FFFD, one for each maximal subpart (as Python, Rust
// and W3C do).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire::utf8 {

constexpr char32_t kReplacement = 0xFFFD;

struct Decoded {
  char32_t code_point = kReplacement;
  size_t size = 0;     // bytes consumed, at least 1
  bool valid = false;  // false: an ill-formed subpart of `size` bytes
};

// Decodes the character at `pos`, which must be inside the text.
Decoded decode(std::string_view text, size_t pos);
void append(std::string& out, char32_t code_point);
bool is_valid(std::string_view text);
// Appends `text` with every ill-formed subpart replaced by U+FFFD.
void append_valid(std::string& out, std::string_view text);
// How many bytes at the end of `text` are the beginning of a character that more bytes could complete (0 to 3).
size_t incomplete_suffix(std::string_view text);
// The longest beginning of `text` that has at most so many bytes and does not end inside a character.
std::string beginning(std::string_view text, size_t bytes);
// The text, or if it has more than so many bytes its beginning and its end with " ... " between them.
std::string without_middle(std::string_view text, size_t bytes);

}  // namespace quire::utf8
