// SPDX-License-Identifier: Apache-2.0
// The terminal's width and colours, and a status line on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::cli {

// A terminal that understands escape sequences: not a file, not a pipe, not TERM=dumb.
bool is_capable_terminal(int descriptor);
// Columns of the output: COLUMNS if it is set, else the terminal's width, else 80. At least 20.
int output_columns(int descriptor);
// The text in faint letters if the descriptor is a capable terminal and NO_COLOR is not set, else unchanged.
std::string faint(int descriptor, std::string_view text);

// Breaks a text at spaces so that no line is longer than `columns`; a longer word is not broken. Every line after the
// first is indented by `indent` spaces; the first one begins at column `first`. Line breaks in the text are kept.
std::string wrap(std::string_view text, int columns, int indent, int first);

// "12,345": a number for people.
std::string with_commas(int64_t number);

// One line on standard error that is redrawn at most ten times per second. Draws nothing if standard error is not a
// capable terminal. Used by one thread; the destructor clears the line.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // False if nothing is ever drawn, so that the caller need not make the text.
  bool visible() const { return visible_; }
  bool due() const;  // whether show() would draw now
  void show(std::string_view text);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  const bool visible_;
  bool drawn_ = false;
  Clock::time_point next_{};
};

}  // namespace quire::cli
