// SPDX-License-Identifier: Apache-2.0
// Text on terminals.
#include "base/printable.h"

#include "base/utf8.h"

namespace quire {

std::string printable(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const utf8::Decoded c = utf8::decode(text, at);
    const bool control = c.code_point < 0x20 || (c.code_point >= 0x7f && c.code_point < 0xa0);
    if (c.valid && (!control || c.code_point == '\n' || c.code_point == '\t')) {
      out.append(text.substr(at, c.size));
    } else {
      for (const char byte : text.substr(at, c.size)) {
        const auto value = static_cast<unsigned char>(byte);
        out += {'\\', 'x', kHex[value >> 4], kHex[value & 15]};
      }
    }
    at += c.size;
  }
  return out;
}

}  // namespace quire
