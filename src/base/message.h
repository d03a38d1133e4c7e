// SPDX-License-Identifier: Apache-2.0
// Sentences of several pieces: {"it has ", count, " rows"}. Messages are everywhere, and a chain of + takes the
// compiler several times as long as such a list, since each step is a string of its own that must be destroyed.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace quire {

// A text that somebody else owns, a letter, or a whole number, which is written with its digits.
class Piece {
 public:
  Piece(const char* text) : text_(text) {}                                         // NOLINT: implicit on purpose
  Piece(std::string_view text) : text_(text) {}                                    // NOLINT: implicit on purpose
  Piece(const std::string& text) : text_(text) {}                                  // NOLINT: implicit on purpose
  Piece(char letter) : text_(digits_, 1), digits_{letter} {}                       // NOLINT: implicit on purpose
  Piece(long long number);                                                         // NOLINT: implicit on purpose
  Piece(unsigned long long number);                                                // NOLINT: implicit on purpose
  Piece(long number) : Piece(static_cast<long long>(number)) {}                    // NOLINT
  Piece(int number) : Piece(static_cast<long long>(number)) {}                     // NOLINT
  Piece(unsigned long number) : Piece(static_cast<unsigned long long>(number)) {}  // NOLINT
  Piece(unsigned number) : Piece(static_cast<unsigned long long>(number)) {}       // NOLINT
  Piece(const Piece&) = delete;                                                    // the text may be its own digits
  Piece& operator=(const Piece&) = delete;
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
  char digits_[24];
};
using Pieces = std::initializer_list<Piece>;

std::string joined(Pieces pieces);

}  // namespace quire
