// SPDX-License-Identifier: Apache-2.0
// What the commands know about the terminal: its width, whether to use colours, and one status line on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::cli {

// A terminal that understands escape sequences: not a file, not a pipe, not TERM=dumb.
bool is_capable_terminal(int descriptor);
// Columns of the output: COLUMNS when it is set, else the terminal's width, else 80. Never less than 20.
int output_columns(int descriptor);
// The text in faint letters where the descriptor is a capable terminal and NO_COLOR is not set, else as it is.
std::string faint(int descriptor, std::string_view text);

// Breaks a text at spaces so that no line is longer than `columns`; a longer word stays whole. Every line after the
// first begins with `indent` spaces; the first one begins at column `first`. Line breaks in the text are kept.
std::string wrap(std::string_view text, int columns, int indent, int first);

// "12,345": a number that people read.
std::string with_commas(int64_t number);

// One line on standard error that is redrawn at most ten times a second. Draws nothing where standard error is not a
// capable terminal. One thread; the destructor wipes the line.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // False where nothing is ever drawn: the caller need not make the text.
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
