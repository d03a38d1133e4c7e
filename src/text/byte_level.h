// SPDX-License-Identifier: Apache-2.0
// The byte-level alphabet: 256 printable characters that stand for the 256 bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire::text {

// The character that stands for a byte, as UTF-8.
std::string_view byte_char(unsigned char byte);
// The byte that a character stands for; nothing if the character is not in the alphabet.
std::optional<unsigned char> char_byte(char32_t cp);
void append_byte_level(std::string& out, std::string_view bytes);
// Appends the bytes of a piece in the alphabet; false, with nothing appended, if it has another character.
bool append_from_byte_level(std::string& out, std::string_view piece);

}  // namespace quire::text
