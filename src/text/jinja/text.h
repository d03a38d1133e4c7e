// SPDX-License-Identifier: Apache-2.0
// Python's str operations on UTF-8: character properties, case, stripping, splitting, numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text::jinja {

// --- Characters ---
bool is_space(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
int decimal_value(char32_t c);  // the value of a decimal digit of any script
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_alnum(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);
bool is_cased(char32_t c);
bool is_printable(char32_t c);
bool is_identifier_start(char32_t c);
bool is_identifier_part(char32_t c);
bool is_line_break(char32_t c);  // as in str.splitlines

// --- Positions ---
size_t count_code_points(std::string_view text);
// The byte at which the code point of that index starts; text.size() past the end.
size_t byte_offset(std::string_view text, size_t index);
bool is_ascii(std::string_view text);
// Calls f(code_point, bytes) for each character.
template <typename F>
void each_code_point(std::string_view text, F&& f);

// --- Case ---
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);  // str.title
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);
std::string fold_case(std::string_view text);

// --- Stripping and splitting ---
// Strips white space, or the characters of *chars, at the chosen ends.
std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// Splits at runs of white space; max_split < 0: no limit. The result is in text order, even from the right.
std::vector<std::string_view> split_space(std::string_view text, int64_t max_split, bool from_right);
std::vector<std::string_view> split_by(std::string_view text, std::string_view separator, int64_t max_split,
                                       bool from_right);
std::string replace_all(std::string_view text, std::string_view from, std::string_view to, int64_t count);
// Like std::string_view::find and rfind, but in linear time for any texts.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
size_t rfind_text(std::string_view text, std::string_view part);
// The number of non-overlapping occurrences.
size_t count_of(std::string_view text, std::string_view part);

// --- HTML ---
std::string escape_html(std::string_view text);
std::string unescape_html(std::string_view text);

// --- Numbers ---
// Like Python's int(text, base) and float(text): with white space around and underscores between digits.
std::optional<int64_t> parse_int(std::string_view text, int base, bool* overflow);
std::optional<double> parse_float(std::string_view text);
// repr() of a float: the shortest digits that give the same number.
std::string float_repr(double value);
// Like Python's round(value, digits): half to even on the exact value.
double round_to(double value, int64_t digits);

// repr() of a string, with its quotes.
void append_repr(std::string& out, std::string_view text);
std::string repr_text(std::string_view text);
// A string as json.dumps writes it.
void append_json_string(std::string& out, std::string_view text, bool ensure_ascii);

}  // namespace quire::text::jinja

#include "base/utf8.h"

namespace quire::text::jinja {

template <typename F>
void each_code_point(std::string_view text, F&& f) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      f(static_cast<char32_t>(byte), text.substr(i, 1));
      ++i;
      continue;
    }
    const utf8::Decoded d = utf8::decode(text, i);
    f(d.code_point, text.substr(i, d.size));
    i += d.size;
  }
}

}  // namespace quire::text::jinja
