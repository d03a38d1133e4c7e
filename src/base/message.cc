// SPDX-License-Identifier: Apache-2.0
// The pieces of a sentence.
#include "base/message.h"

#include <charconv>

namespace quire {

Piece::Piece(long long number)
    : text_(digits_, static_cast<size_t>(std::to_chars(digits_, digits_ + sizeof(digits_), number).ptr - digits_)) {}
Piece::Piece(unsigned long long number)
    : text_(digits_, static_cast<size_t>(std::to_chars(digits_, digits_ + sizeof(digits_), number).ptr - digits_)) {}

std::string joined(Pieces pieces) {
  size_t size = 0;
  for (const Piece& piece : pieces) size += piece.text().size();
  std::string out;
  out.reserve(size);
  for (const Piece& piece : pieces) out += piece.text();
  return out;
}

}  // namespace quire
