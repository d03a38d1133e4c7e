// SPDX-License-Identifier: Apache-2.0
// Python's text operations on UTF-8: positions, stripping, splitting, HTML, numbers, repr and JSON strings.
#include "text/jinja/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace quire::text::jinja {

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t seen = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (seen == index) return i;
    ++seen;
  }
  return text.size();
}

namespace {

// A set of characters to strip, with a table for ASCII and a search for the others.
class CharSet {
 public:
  explicit CharSet(std::string_view chars) {
    each_code_point(chars, [&](char32_t c, std::string_view) {
      if (c < 0x80) {
        ascii_[c] = true;
      } else {
        others_.push_back(c);
      }
    });
    std::sort(others_.begin(), others_.end());
  }
  bool has(char32_t c) const { return c < 0x80 ? ascii_[c] : std::binary_search(others_.begin(), others_.end(), c); }

 private:
  bool ascii_[128] = {};
  std::vector<char32_t> others_;
};

template <typename Predicate>
std::string_view strip_while(std::string_view text, const Predicate& drop, bool left, bool right) {
  if (left) {
    while (!text.empty()) {
      const utf8::Decoded d = utf8::decode(text, 0);
      if (!drop(d.code_point)) break;
      text.remove_prefix(d.size);
    }
  }
  if (right) {
    while (!text.empty()) {
      size_t start = text.size() - 1;
      while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
      if (!drop(utf8::decode(text, start).code_point)) break;
      text.remove_suffix(text.size() - start);
    }
  }
  return text;
}

}  // namespace

std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right) {
  if (chars == nullptr) return strip_while(text, is_space, left, right);
  const CharSet set(*chars);
  return strip_while(
      text, [&](char32_t c) { return set.has(c); }, left, right);
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const utf8::Decoded d = utf8::decode(text, i);
    if (!is_line_break(d.code_point)) {
      i += d.size;
      continue;
    }
    size_t end = i + d.size;
    if (d.code_point == '\r' && end < text.size() && text[end] == '\n') ++end;
    out.push_back(text.substr(start, (keep_ends ? end : i) - start));
    start = i = end;
  }
  if (start < text.size()) out.push_back(text.substr(start));
  return out;
}

std::vector<std::string_view> split_space(std::string_view text, int64_t max_split, bool from_right) {
  std::vector<std::string_view> out;
  if (from_right && max_split >= 0) {
    std::string_view rest = strip(text, nullptr, false, true);
    while (!rest.empty()) {
      if (max_split-- == 0) {
        out.push_back(strip(rest, nullptr, false, true));
        break;
      }
      size_t start = rest.size();
      while (start > 0) {
        size_t at = start - 1;
        while (at > 0 && (static_cast<unsigned char>(rest[at]) & 0xC0) == 0x80) --at;
        if (is_space(utf8::decode(rest, at).code_point)) break;
        start = at;
      }
      out.push_back(rest.substr(start));
      rest = strip(rest.substr(0, start), nullptr, false, true);
    }
    std::reverse(out.begin(), out.end());
    return out;
  }
  std::string_view rest = strip(text, nullptr, true, false);
  while (!rest.empty()) {
    if (max_split >= 0 && max_split-- == 0) {
      out.push_back(rest);
      break;
    }
    size_t end = 0;
    while (end < rest.size()) {
      const utf8::Decoded d = utf8::decode(rest, end);
      if (is_space(d.code_point)) break;
      end += d.size;
    }
    out.push_back(rest.substr(0, end));
    rest = strip(rest.substr(end), nullptr, true, false);
  }
  return out;
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

namespace {

std::string reversed(std::string_view text) {
  return std::string(text.rbegin(), text.rend());
}

}  // namespace

size_t rfind_text(std::string_view text, std::string_view part) {
  if (part.size() < 32) return text.rfind(part);
  const size_t at = find_text(reversed(text), reversed(part));
  return at == std::string_view::npos ? at : text.size() - at - part.size();
}

std::vector<std::string_view> split_by(std::string_view text, std::string_view separator, int64_t max_split,
                                       bool from_right) {
  std::vector<std::string_view> out;
  if (from_right && max_split >= 0) {
    const std::string mirror = reversed(text), mirrored_separator = reversed(separator);
    size_t done = 0;  // bytes from the end
    while (max_split-- > 0) {
      const size_t at = find_text(mirror, mirrored_separator, done);
      if (at == std::string_view::npos) break;
      out.push_back(text.substr(text.size() - at, at - done));
      done = at + separator.size();
    }
    out.push_back(text.substr(0, text.size() - done));
    std::reverse(out.begin(), out.end());
    return out;
  }
  size_t start = 0;
  while (max_split < 0 || max_split-- > 0) {
    const size_t at = find_text(text, separator, start);
    if (at == std::string_view::npos) break;
    out.push_back(text.substr(start, at - start));
    start = at + separator.size();
  }
  out.push_back(text.substr(start));
  return out;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to, int64_t count) {
  std::string out;
  if (from.empty()) {
    // Python inserts the new text before each character and at the end.
    const bool unlimited = count < 0;
    auto more = [&] { return unlimited || count-- > 0; };
    each_code_point(text, [&](char32_t, std::string_view part) {
      if (more()) out += to;
      out += part;
    });
    if (more()) out += to;
    return out;
  }
  size_t start = 0;
  while (count < 0 || count-- > 0) {
    const size_t at = find_text(text, from, start);
    if (at == std::string_view::npos) break;
    out += text.substr(start, at - start);
    out += to;
    start = at + from.size();
  }
  out += text.substr(start);
  return out;
}

size_t count_of(std::string_view text, std::string_view part) {
  if (part.empty()) return count_code_points(text) + 1;
  size_t count = 0;
  for (size_t at = find_text(text, part); at != std::string_view::npos; at = find_text(text, part, at + part.size())) {
    ++count;
  }
  return count;
}

// --- HTML ---

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

namespace {

// The character of the reference at `at` ("&...;"); returns its length, 0 if it is not a reference.
size_t decode_reference(std::string_view text, size_t at, std::string* out) {
  const size_t end = text.find(';', at);
  if (end == std::string_view::npos || end - at > 10) return 0;
  const std::string name(text.substr(at + 1, end - at - 1));
  static constexpr std::pair<const char*, char32_t> kNamed[] = {{"amp", '&'},  {"lt", '<'},    {"gt", '>'},
                                                                {"quot", '"'}, {"apos", '\''}, {"nbsp", 0xA0}};
  for (const auto& [entity, c] : kNamed) {
    if (name == entity) {
      utf8::append(*out, c);
      return end + 1 - at;
    }
  }
  if (name.size() < 2 || name[0] != '#') return 0;
  const bool hex = name[1] == 'x' || name[1] == 'X';
  uint32_t value = 0;
  const char* first = name.data() + (hex ? 2 : 1);
  const char* last = name.data() + name.size();
  const auto parsed = std::from_chars(first, last, value, hex ? 16 : 10);
  if (parsed.ec != std::errc() || parsed.ptr != last || first == last) return 0;
  const bool valid = value > 0 && value < 0x110000 && (value < 0xD800 || value > 0xDFFF);
  utf8::append(*out, valid ? static_cast<char32_t>(value) : utf8::kReplacement);
  return end + 1 - at;
}

}  // namespace

std::string unescape_html(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t used = text[i] == '&' ? decode_reference(text, i, &out) : 0;
    if (used == 0) out.push_back(text[i]);
    i += std::max<size_t>(used, 1);
  }
  return out;
}

// --- Numbers ---

namespace {

// Drops underscores between digits; false if one is elsewhere.
bool drop_underscores(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out->push_back(text[i]);
      continue;
    }
    auto digit = [&](size_t at) { return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0; };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return false;
  }
  return true;
}

// Replaces decimal digits of any script by ASCII digits.
std::string with_ascii_digits(std::string_view text) {
  std::string out;
  each_code_point(text, [&](char32_t c, std::string_view part) {
    if (c < 0x80 || !is_decimal(c)) {
      out += part;
      return;
    }
    out.push_back(static_cast<char>('0' + decimal_value(c)));
  });
  return out;
}

int prefix_base(std::string_view digits) {
  if (digits.size() < 2 || digits[0] != '0') return 0;
  switch (digits[1]) {
    case 'x':
    case 'X':
      return 16;
    case 'o':
    case 'O':
      return 8;
    case 'b':
    case 'B':
      return 2;
    default:
      return 0;
  }
}

}  // namespace

std::optional<int64_t> parse_int(std::string_view given, int base, bool* overflow) {
  const std::string ascii = with_ascii_digits(strip(given, nullptr, true, true));
  std::string_view text = ascii;
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const int prefixed = prefix_base(text);
  if (prefixed != 0 && (base == 0 || base == prefixed)) {
    base = prefixed;
    text.remove_prefix(2);
    if (!text.empty() && text[0] == '_') text.remove_prefix(1);
  }
  std::string digits;
  if (!drop_underscores(text, &digits)) return std::nullopt;
  if (base == 0) {
    base = 10;
    if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos)
      return std::nullopt;
  }
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  uint64_t magnitude = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  if (parsed.ptr != digits.data() + digits.size()) return std::nullopt;
  const uint64_t limit = uint64_t{1} << 63;
  if (parsed.ec == std::errc::result_out_of_range || magnitude > limit || (magnitude == limit && !negative)) {
    *overflow = true;
    return std::nullopt;
  }
  if (parsed.ec != std::errc()) return std::nullopt;
  return static_cast<int64_t>(negative ? 0 - magnitude : magnitude);
}

std::optional<double> parse_float(std::string_view text) {
  std::string clean;
  if (!drop_underscores(with_ascii_digits(strip(text, nullptr, true, true)), &clean) || clean.empty())
    return std::nullopt;
  std::string_view body = clean;
  bool negative = false;
  if (body[0] == '-' || body[0] == '+') {
    negative = body[0] == '-';
    body.remove_prefix(1);
  }
  if (body.empty()) return std::nullopt;
  const std::string lower = to_lower(body);
  double value = 0;
  if (lower == "inf" || lower == "infinity") {
    value = HUGE_VAL;
  } else if (lower == "nan") {
    value = NAN;
  } else {
    if (body.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return std::nullopt;
    if (body[0] == '-' || body[0] == '+') return std::nullopt;
    char* end = nullptr;
    value = std::strtod(clean.c_str() + (body.data() - clean.data()), &end);
    if (end != clean.c_str() + clean.size()) return std::nullopt;
  }
  return negative ? -value : value;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(written.ptr - buffer));
  const size_t e = text.find('e');
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string out = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    char tail[16];
    std::snprintf(tail, sizeof tail, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + tail;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

double round_to(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < -308) return std::copysign(0.0, value);
  if (digits >= 0) {
    char buffer[720];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), value);
    return std::strtod(buffer, nullptr);
  }
  // Rounds the integer digits: the scientific form with fewer digits rounds half to even on the exact value.
  const int magnitude = value == 0 ? 0 : static_cast<int>(std::floor(std::log10(std::fabs(value))));
  const int64_t kept = magnitude + digits;
  if (kept < -1) return std::copysign(0.0, value);
  if (kept == -1) {
    const double half = 5 * std::pow(10.0, static_cast<double>(-digits - 1));
    return std::fabs(value) > half ? std::copysign(2 * half, value) : std::copysign(0.0, value);
  }
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*e", static_cast<int>(kept), value);
  return std::strtod(buffer, nullptr);
}

// --- repr and JSON ---

void append_repr(std::string& out, std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  out.push_back(quote);
  char buffer[16];
  each_code_point(text, [&](char32_t c, std::string_view part) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if ((c >= 0x20 && c < 0x7F) || (c >= 0x80 && is_printable(c))) {
      out += part;
    } else {
      const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(buffer, sizeof buffer, format, static_cast<unsigned>(c));
      out += buffer;
    }
  });
  out.push_back(quote);
}

std::string repr_text(std::string_view text) {
  std::string out;
  append_repr(out, text);
  return out;
}

namespace {

void append_json_escape(std::string& out, uint32_t unit) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "\\u%04x", unit);
  out += buffer;
}

}  // namespace

void append_json_string(std::string& out, std::string_view text, bool ensure_ascii) {
  out.push_back('"');
  size_t plain = 0;  // start of the run of characters that need no escape
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !ensure_ascii)) continue;
    out += text.substr(plain, i - plain);
    static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    const size_t found = kEscaped.find(static_cast<char>(c));
    if (found != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kLetters[found]);
    } else if (c < 0x80) {
      append_json_escape(out, c);
    } else {
      const utf8::Decoded d = utf8::decode(text, i);
      if (d.code_point >= 0x10000) {
        append_json_escape(out, 0xD7C0 + (d.code_point >> 10));
        append_json_escape(out, 0xDC00 + (d.code_point & 0x3FF));
      } else {
        append_json_escape(out, d.code_point);
      }
      i += d.size - 1;
    }
    plain = i + 1;
  }
  out += text.substr(plain);
  out.push_back('"');
}

}  // namespace quire::text::jinja
