// SPDX-License-Identifier: Apache-2.0
// Bytes as text: the byte-level alphabet, whose 256 printable characters stand for the 256 bytes, and base64.
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
// Decodes base64 with or without padding; false if it is not base64.
bool decode_base64(std::string_view text, std::string& out);

}  // namespace quire::text
