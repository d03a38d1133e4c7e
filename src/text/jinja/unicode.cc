// SPDX-License-Identifier: Apache-2.0
// Character properties and case mappings, from tables of ranges.
#include <algorithm>
#include <iterator>

#include "text/jinja/text.h"

namespace quire::text::jinja {
namespace {

struct CodeRange {
  uint32_t first, last;
};
struct CaseRun {
  uint32_t first, last;
  uint32_t stride;
  int32_t delta;
};
struct CaseSpecial {
  uint32_t code_point;
  uint32_t to[3];
};

#include "text/jinja/unicode_tables.inc"

template <size_t N>
bool contains(const CodeRange (&table)[N], char32_t c) {
  const auto* it = std::upper_bound(std::begin(table), std::end(table), c,
                                    [](char32_t x, const CodeRange& r) { return x < r.first; });
  return it != std::begin(table) && c <= (it - 1)->last;
}

template <size_t N, size_t M>
void append_mapped(std::string& out, char32_t c, const CaseRun (&runs)[N], const CaseSpecial (&specials)[M]) {
  const auto* it =
      std::upper_bound(std::begin(runs), std::end(runs), c, [](char32_t x, const CaseRun& r) { return x < r.first; });
  if (it != std::begin(runs) && c <= (it - 1)->last && (c - (it - 1)->first) % (it - 1)->stride == 0) {
    utf8::append(out, static_cast<char32_t>(static_cast<int32_t>(c) + (it - 1)->delta));
    return;
  }
  const auto* special = std::lower_bound(std::begin(specials), std::end(specials), c,
                                         [](const CaseSpecial& s, char32_t x) { return s.code_point < x; });
  if (special == std::end(specials) || special->code_point != c) {
    utf8::append(out, c);
    return;
  }
  for (const uint32_t to : special->to) {
    if (to != 0) utf8::append(out, to);
  }
}

// Whether a capital sigma is at the end of a word, where it becomes the final form.
bool is_final_sigma(std::string_view text, size_t at, size_t size) {
  auto significant_is_cased = [](std::string_view part, bool backwards) {
    size_t looked = 0;  // limited, since real text has only short runs of ignorable characters
    if (backwards) {
      size_t end = part.size();
      while (end > 0 && looked < 4096) {
        size_t start = end - 1;
        while (start > 0 && (static_cast<unsigned char>(part[start]) & 0xC0) == 0x80) --start;
        const char32_t c = utf8::decode(part, start).code_point;
        if (!contains(kCaseIgnorable, c)) return contains(kCased, c);
        end = start;
        ++looked;
      }
      return false;
    }
    for (size_t i = 0; i < part.size() && looked < 4096; ++looked) {
      const utf8::Decoded d = utf8::decode(part, i);
      if (!contains(kCaseIgnorable, d.code_point)) return contains(kCased, d.code_point);
      i += d.size;
    }
    return false;
  };
  return significant_is_cased(text.substr(0, at), true) && !significant_is_cased(text.substr(at + size), false);
}

constexpr char32_t kSigma = 0x3A3;

void append_lower(std::string& out, std::string_view text, size_t at, char32_t c, size_t size) {
  if (c < 0x80) {
    out.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : static_cast<char>(c));
  } else if (c == kSigma) {
    utf8::append(out, is_final_sigma(text, at, size) ? 0x3C2 : 0x3C3);
  } else {
    append_mapped(out, c, kToLower, kToLowerSpecial);
  }
}

void append_upper(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : static_cast<char>(c));
  } else {
    append_mapped(out, c, kToUpper, kToUpperSpecial);
  }
}

void append_title(std::string& out, char32_t c) {
  if (c < 0x80) {
    append_upper(out, c);
  } else {
    append_mapped(out, c, kToTitle, kToTitleSpecial);
  }
}

size_t offset_in(std::string_view text, std::string_view part) {
  return static_cast<size_t>(part.data() - text.data());
}

}  // namespace

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_alpha(char32_t c) {
  return contains(kAlpha, c);
}
bool is_decimal(char32_t c) {
  return contains(kDecimal, c);
}
int decimal_value(char32_t c) {
  // Decimal digits are in runs of ten, zero first; adjacent runs restart every ten.
  const auto* it = std::upper_bound(std::begin(kDecimal), std::end(kDecimal), c,
                                    [](char32_t x, const CodeRange& r) { return x < r.first; });
  return it == std::begin(kDecimal) ? 0 : static_cast<int>((c - (it - 1)->first) % 10);
}
bool is_digit(char32_t c) {
  return contains(kDigit, c);
}
bool is_numeric(char32_t c) {
  return contains(kNumeric, c);
}
bool is_alnum(char32_t c) {
  return is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
}
bool is_upper(char32_t c) {
  return contains(kUpper, c);
}
bool is_lower(char32_t c) {
  return contains(kLower, c);
}
bool is_title(char32_t c) {
  return contains(kTitle, c);
}
bool is_cased(char32_t c) {
  return contains(kCased, c);
}
bool is_printable(char32_t c) {
  return !contains(kUnprintable, c);
}
bool is_identifier_start(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  return contains(kIdStart, c);
}
bool is_identifier_part(char32_t c) {
  if (c < 0x80) return is_identifier_start(c) || (c >= '0' && c <= '9');
  return contains(kIdContinue, c);
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  each_code_point(text, [&](char32_t c, std::string_view) { append_upper(out, c); });
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  each_code_point(
      text, [&](char32_t c, std::string_view part) { append_lower(out, text, offset_in(text, part), c, part.size()); });
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  bool after_cased = false;
  each_code_point(text, [&](char32_t c, std::string_view part) {
    if (after_cased) {
      append_lower(out, text, offset_in(text, part), c, part.size());
    } else {
      append_title(out, c);
    }
    after_cased = is_cased(c);
  });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  bool first = true;
  each_code_point(text, [&](char32_t c, std::string_view part) {
    if (first) {
      append_title(out, c);
    } else {
      append_lower(out, text, offset_in(text, part), c, part.size());
    }
    first = false;
  });
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  each_code_point(text, [&](char32_t c, std::string_view part) {
    if (is_upper(c)) {
      append_lower(out, text, offset_in(text, part), c, part.size());
    } else if (is_lower(c)) {
      append_upper(out, c);
    } else {
      out += part;
    }
  });
  return out;
}

std::string fold_case(std::string_view text) {
  std::string out;
  each_code_point(text, [&](char32_t c, std::string_view) { append_mapped(out, c, kToFolded, kToFoldedSpecial); });
  return out;
}

}  // namespace quire::text::jinja
