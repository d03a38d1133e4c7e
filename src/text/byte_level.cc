// SPDX-License-Identifier: Apache-2.0
// The byte-level alphabet of GPT-2, and base64.
#include "text/byte_level.h"

#include <array>

#include "text/unicode.h"

namespace quire::text {

namespace {

// Printable Latin-1 bytes stand for themselves; the others are the characters from U+0100 on, in order.
constexpr bool stands_for_itself(int b) {
  return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

struct Alphabet {
  std::array<std::string, 256> chars;
  std::array<int, 0x180> bytes;  // by code point; -1 outside

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const char32_t cp = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
      utf8::append(chars[static_cast<size_t>(b)], cp);
      bytes[cp] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

std::string_view byte_char(unsigned char byte) {
  return alphabet().chars[byte];
}

std::optional<unsigned char> char_byte(char32_t cp) {
  const auto& bytes = alphabet().bytes;
  if (cp >= bytes.size() || bytes[cp] < 0) return std::nullopt;
  return static_cast<unsigned char>(bytes[cp]);
}

void append_byte_level(std::string& out, std::string_view bytes) {
  const Alphabet& a = alphabet();
  for (const char c : bytes) out += a.chars[static_cast<unsigned char>(c)];
}

bool append_from_byte_level(std::string& out, std::string_view piece) {
  const auto& bytes = alphabet().bytes;
  const size_t before = out.size();
  const char* p = piece.data();
  const char* end = p + piece.size();
  while (p < end) {
    const char32_t cp = next_code_point(p);
    if (cp >= bytes.size() || bytes[cp] < 0) {
      out.resize(before);
      return false;
    }
    out += static_cast<char>(bytes[cp]);
  }
  return true;
}

bool decode_base64(std::string_view text, std::string& out) {
  out.clear();
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  if (text.size() % 4 == 1) return false;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = base64_value(c);
    if (value < 0) return false;
    bits = (bits << 6 | static_cast<uint32_t>(value)) & 0xffffff;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>(bits >> count & 0xff));
  }
  return true;
}

}  // namespace quire::text
