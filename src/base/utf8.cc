// SPDX-License-Identifier: Apache-2.0
// UTF-8 as in the table of well-formed byte sequences (Unicode chapter 3, table 3-7).
#include "base/utf8.h"

namespace quire::utf8 {
namespace {

struct Lead {
  int length = 0;  // 0: no character starts with this byte
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
};

Lead lead_of(unsigned char c) {
  if (c < 0x80) return {1};
  if (c < 0xC2) return {};
  if (c < 0xE0) return {2};
  if (c == 0xE0) return {3, 0xA0, 0xBF};
  if (c == 0xED) return {3, 0x80, 0x9F};
  if (c < 0xF0) return {3};
  if (c == 0xF0) return {4, 0x90, 0xBF};
  if (c < 0xF4) return {4};
  if (c == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

}  // namespace

Decoded decode(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(pos);
  const Lead lead = lead_of(first);
  if (lead.length == 1) return {first, 1, true};
  if (lead.length == 0) return {kReplacement, 1, false};
  char32_t c = first & (0x7F >> lead.length);
  for (int i = 1; i < lead.length; ++i) {
    const size_t at = pos + static_cast<size_t>(i);
    if (at >= text.size()) return {kReplacement, static_cast<size_t>(i), false};
    const unsigned char b = byte(at);
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (b < low || b > high) return {kReplacement, static_cast<size_t>(i), false};
    c = (c << 6) | (b & 0x3F);
  }
  return {c, static_cast<size_t>(lead.length), true};
}

void append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool is_valid(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Decoded d = decode(text, pos);
    if (!d.valid) return false;
    pos += d.size;
  }
  return true;
}

void append_valid(std::string& out, std::string_view text) {
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const Decoded d = decode(text, pos);
    if (!d.valid) {
      out.append(text.substr(begin, pos - begin));
      append(out, kReplacement);
      begin = pos + d.size;
    }
    pos += d.size;
  }
  out.append(text.substr(begin));
}

size_t incomplete_suffix(std::string_view text) {
  const size_t limit = text.size() < 3 ? text.size() : 3;
  for (size_t back = 1; back <= limit; ++back) {
    const size_t pos = text.size() - back;
    const unsigned char c = static_cast<unsigned char>(text[pos]);
    if (c < 0x80) return 0;
    if (c >= 0xC0) {
      const Decoded d = decode(text, pos);
      return !d.valid && d.size == back && lead_of(c).length > static_cast<int>(back) ? back : 0;
    }
  }
  return 0;
}

std::string beginning(std::string_view text, size_t bytes) {
  if (text.size() > bytes) {
    text = text.substr(0, bytes);
    text.remove_suffix(incomplete_suffix(text));
  }
  return std::string(text);
}

std::string without_middle(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  size_t tail = text.size() - bytes / 3;
  while (tail < text.size() && (static_cast<unsigned char>(text[tail]) & 0xC0) == 0x80) ++tail;
  return beginning(text, bytes - bytes / 3) + " ... " + std::string(text.substr(tail));
}

}  // namespace quire::utf8
