// SPDX-License-Identifier: Apache-2.0
// Terminal width, colours, wrapped text and the status line.
#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/env.h"

namespace quire::cli {
namespace {

constexpr int kDefaultColumns = 80;
constexpr int kFewestColumns = 20;
constexpr int kMostColumns = 10'000;
constexpr auto kRedraw = std::chrono::milliseconds(100);

// Counts characters and not bytes: UTF-8 continuation bytes need no column.
int columns_of(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

bool is_capable_terminal(int descriptor) {
  return ::isatty(descriptor) == 1 && env("TERM").value_or("dumb") != "dumb";
}

int output_columns(int descriptor) {
  int columns = 0;
  if (const auto given = env("COLUMNS")) {
    const auto [end, failed] = std::from_chars(given->data(), given->data() + given->size(), columns);
    if (failed != std::errc() || end != given->data() + given->size()) columns = 0;
  }
  struct winsize size {};
  if (columns <= 0 && ::ioctl(descriptor, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  return std::clamp(columns > 0 ? columns : kDefaultColumns, kFewestColumns, kMostColumns);
}

std::string faint(int descriptor, std::string_view text) {
  if (env("NO_COLOR") || !is_capable_terminal(descriptor)) return std::string(text);
  return "\x1b[2m" + std::string(text) + "\x1b[0m";
}

std::string wrap(std::string_view text, int columns, int indent, int first) {
  std::string out;
  int column = first;
  bool begun = false;  // this line has a word already
  const auto new_line = [&] {
    out += '\n';
    out.append(static_cast<size_t>(indent), ' ');
    column = indent;
    begun = false;
  };
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '\n') {
      new_line();
      ++at;
      continue;
    }
    const size_t spaces_end = std::min(text.find_first_not_of(' ', at), text.size());
    const int spaces = static_cast<int>(spaces_end - at);
    const size_t word_end = std::min(text.find_first_of(" \n", spaces_end), text.size());
    const std::string_view word = text.substr(spaces_end, word_end - spaces_end);
    at = word_end;
    if (word.empty()) continue;
    if (begun && column + spaces + columns_of(word) > columns) {
      new_line();
    } else {
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    }
    out += word;
    column += columns_of(word);
    begun = true;
  }
  return out;
}

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

StatusLine::StatusLine() : visible_(is_capable_terminal(STDERR_FILENO)) {}

bool StatusLine::due() const {
  return visible_ && Clock::now() >= next_;
}

void StatusLine::show(std::string_view text) {
  if (!due()) return;
  // One column stays free: some terminals would wrap a full line, and the next redraw would leave garbage.
  std::string line(text.substr(0, static_cast<size_t>(output_columns(STDERR_FILENO) - 1)));
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
  next_ = Clock::now() + kRedraw;
}

void StatusLine::clear() {
  if (drawn_) {
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
  }
  drawn_ = false;
  next_ = {};
}

}  // namespace quire::cli
