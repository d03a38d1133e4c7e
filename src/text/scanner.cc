// SPDX-License-Identifier: Apache-2.0
// The scanners. Each follows its pattern alternative by alternative; scanner_test.cc compares them with the regular
// expressions on random text.
#include "text/scanner.h"

#include <array>
#include <initializer_list>

#include "text/unicode.h"

namespace quire::text {

namespace {

// A class word: one bit for the general category, one for \s, one for line breaks.
constexpr uint32_t kSpaceBit = 1u << 30;
constexpr uint32_t kBreakBit = 1u << 29;

constexpr uint32_t mask(std::initializer_list<Category> categories) {
  uint32_t out = 0;
  for (const Category c : categories) out |= 1u << c;
  return out;
}
constexpr uint32_t kLetter = mask({kLu, kLl, kLt, kLm, kLo});
constexpr uint32_t kMarkBits = mask({kMn, kMc, kMe});
constexpr uint32_t kNumber = mask({kNd, kNl, kNo});
constexpr uint32_t kPunctuationBits = mask({kPc, kPd, kPs, kPe, kPi, kPf, kPo});
constexpr uint32_t kSymbol = mask({kSm, kSc, kSk, kSo});
// What o200k accepts as the head and as the tail of a word; marks and letters without case are both.
constexpr uint32_t kUpper = mask({kLu, kLt, kLm, kLo}) | kMarkBits;
constexpr uint32_t kLower = mask({kLl, kLm, kLo}) | kMarkBits;

struct Tables {
  CodePointTable all;
  std::array<uint32_t, 128> ascii{};

  Tables() : all(build()) {
    for (uint32_t c = 0; c < 128; ++c) ascii[c] = all[c];
  }
  static CodePointTable build() {
    std::vector<uint32_t> starts;
    std::vector<uint32_t> values;
    const CodePointTable& properties = property_table();
    for (uint32_t cp = 0; cp < kCodePoints; ++cp) {
      const uint32_t p = properties[cp];
      uint32_t word = 1u << (p & kCategoryMask);
      if ((p & kOnigSpace) != 0) word |= kSpaceBit;
      if (cp == '\r' || cp == '\n') word |= kBreakBit;
      if (values.empty() || values.back() != word) {
        starts.push_back(cp);
        values.push_back(word);
      }
    }
    return CodePointTable(starts.data(), values.data(), starts.size());
  }
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

// A text to scan. Positions are pointers; class_at() returns the class word of the character at one, and where the next
// character begins.
class Text {
 public:
  explicit Text(std::string_view text) : end(text.data() + text.size()), tables_(tables()) {}

  uint32_t class_at(const char* p, const char*& next) const {
    const auto lead = static_cast<unsigned char>(*p);
    if (lead < 0x80) {
      next = p + 1;
      return tables_.ascii[lead];
    }
    next = p;
    const char32_t cp = next_code_point(next);
    return tables_.all[cp];
  }
  // The end of the run of characters with any of these bits (or without all of them).
  const char* run(const char* p, uint32_t bits) const {
    const char* next = p;
    while (p < end && (class_at(p, next) & bits) != 0) p = next;
    return p;
  }
  const char* run_without(const char* p, uint32_t bits) const {
    const char* next = p;
    while (p < end && (class_at(p, next) & bits) == 0) p = next;
    return p;
  }
  // The end of at most `most` numbers.
  const char* numbers(const char* p, int most) const {
    const char* next = p;
    while (most-- > 0 && p < end && (class_at(p, next) & kNumber) != 0) p = next;
    return p;
  }

  const char* const end;

 private:
  const Tables& tables_;
};

// The end of 's 't 'm 'd 're 've 'll at the apostrophe p; null if there is none.
const char* contraction(const Text& text, const char* p) {
  if (text.end - p < 2) return nullptr;
  const char a = p[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if (text.end - p < 3) return nullptr;
  const char b = p[2];
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
  return nullptr;
}

// The same in upper or lower case; a long s counts as an s.
const char* caseless_contraction(const Text& text, const char* p) {
  if (text.end - p < 2) return nullptr;
  const auto lower = [](char c) { return static_cast<char>(c | 0x20); };
  const char a = lower(p[1]);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if (text.end - p < 3) return nullptr;
  if (p[1] == '\xc5' && p[2] == '\xbf') return p + 3;
  const char b = lower(p[2]);
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
  return nullptr;
}

// \s+(?!\S)|\s+ at white space p: the run, without its last character if more text follows.
const char* spaces(const Text& text, const char* p) {
  const char* last = p;
  const char* next = p;
  const char* at = p;
  while (at < text.end && (text.class_at(at, next) & kSpaceBit) != 0) {
    last = at;
    at = next;
  }
  return at == text.end || last == p ? at : last;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ at white space p: up to the last line break of the run, if it has one.
const char* breaks_or_spaces(const Text& text, const char* p) {
  const char* after_break = nullptr;
  const char* last = p;
  const char* next = p;
  const char* at = p;
  while (at < text.end) {
    const uint32_t word = text.class_at(at, next);
    if ((word & kSpaceBit) == 0) break;
    if ((word & kBreakBit) != 0) after_break = next;
    last = at;
    at = next;
  }
  if (after_break != nullptr) return after_break;
  return at == text.end || last == p ? at : last;
}

// Each matcher returns the end of the match at p, or p if there is none.
struct Gpt2 {
  static const char* match(const Text& text, const char* p) {
    if (*p == '\'') {
      if (const char* e = contraction(text, p)) return e;
    }
    const char* next = p;
    uint32_t word = text.class_at(p, next);
    const char* head = p;
    if (*p == ' ' && next < text.end) {
      const char* after = next;
      const uint32_t second = text.class_at(next, after);
      if ((second & kSpaceBit) != 0) return spaces(text, p);
      head = next;
      word = second;
      next = after;
    }
    if ((word & kLetter) != 0) return text.run(next, kLetter);
    if ((word & kNumber) != 0) return text.run(next, kNumber);
    if ((word & kSpaceBit) != 0) return spaces(text, head);
    return text.run_without(next, kSpaceBit | kLetter | kNumber);
  }
};

// Llama 3 and Qwen: at most `kMost` numbers per piece, and for Qwen 3.5 marks inside words.
template <int kMost, uint32_t kWord>
struct Cl100k {
  static constexpr uint32_t kNotOther = kSpaceBit | kNumber | kWord;

  static const char* match(const Text& text, const char* p) {
    if (*p == '\'') {
      if (const char* e = caseless_contraction(text, p)) return e;
    }
    const char* next = p;
    const uint32_t word = text.class_at(p, next);
    if ((word & kWord) != 0) return text.run(next, kWord);
    if ((word & kNumber) != 0) return text.numbers(p, kMost);
    if (next < text.end) {
      const char* after = next;
      const uint32_t second = text.class_at(next, after);
      if ((word & kBreakBit) == 0 && (second & kWord) != 0) return text.run(after, kWord);
      if (*p == ' ' && (second & kNotOther) == 0) return text.run(text.run_without(after, kNotOther), kBreakBit);
    }
    if ((word & kSpaceBit) != 0) return breaks_or_spaces(text, p);
    return text.run(text.run_without(next, kNotOther), kBreakBit);
  }
};

struct O200k {
  // [upper]*[lower]+ from p, or null. A run of upper backtracks to a character that is also lower.
  static const char* cased(const Text& text, const char* p) {
    const char* next = p;
    const char* at = p;
    const char* after_both = nullptr;  // after the last character of the run that is upper and lower
    while (at < text.end) {
      const uint32_t word = text.class_at(at, next);
      if ((word & kUpper) == 0) break;
      at = next;
      if ((word & kLower) != 0) after_both = at;
    }
    const char* tail = text.run(at, kLower);
    return tail != at ? tail : after_both;
  }
  // [upper]+[lower]* from p, or null.
  static const char* upper(const Text& text, const char* p) {
    const char* at = text.run(p, kUpper);
    return at == p ? nullptr : text.run(at, kLower);
  }
  static const char* with_contraction(const Text& text, const char* p) {
    if (p < text.end && *p == '\'') {
      if (const char* e = caseless_contraction(text, p)) return e;
    }
    return p;
  }

  static const char* match(const Text& text, const char* p) {
    const char* next = p;
    const uint32_t word = text.class_at(p, next);
    const bool prefix = (word & (kBreakBit | kLetter | kNumber)) == 0;
    const bool bare = (word & (kUpper | kLower)) != 0;
    const char* e = nullptr;
    if (prefix) e = cased(text, next);
    if (e == nullptr && bare) e = cased(text, p);
    if (e == nullptr && prefix) e = upper(text, next);
    if (e == nullptr && bare) e = upper(text, p);
    if (e != nullptr) return with_contraction(text, e);
    if ((word & kNumber) != 0) return text.numbers(p, 3);
    constexpr uint32_t kNotOther = kSpaceBit | kLetter | kNumber;
    const char* other = *p == ' ' ? next : p;
    const char* after = text.run_without(other, kNotOther);
    if (after != other) {
      while (after < text.end && (*after == '\r' || *after == '\n' || *after == '/')) ++after;
      return after;
    }
    return breaks_or_spaces(text, p);
  }
};

struct Deepseek3 {
  static bool ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
  static bool ascii_punctuation(char c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  }

  static const char* match(const Text& text, const char* p) {
    constexpr uint32_t kWord = kLetter | kMarkBits;
    constexpr uint32_t kSigns = kPunctuationBits | kSymbol;
    if (ascii_punctuation(*p) && p + 1 < text.end && ascii_letter(p[1])) {
      const char* at = p + 1;
      while (at < text.end && ascii_letter(*at)) ++at;
      return at;
    }
    const char* next = p;
    const uint32_t word = text.class_at(p, next);
    if ((word & kWord) != 0) return text.run(next, kWord);
    if (next < text.end) {
      const char* after = next;
      const uint32_t second = text.class_at(next, after);
      if ((word & (kBreakBit | kSigns)) == 0 && (second & kWord) != 0) return text.run(after, kWord);
      if (*p == ' ' && (second & kSigns) != 0) return text.run(text.run(after, kSigns), kBreakBit);
    }
    if ((word & kSigns) != 0) return text.run(text.run(next, kSigns), kBreakBit);
    if ((word & kSpaceBit) != 0) return breaks_or_spaces(text, p);
    return p;
  }
};

struct ThreeNumbers {
  static const char* match(const Text& text, const char* p) { return text.numbers(p, 3); }
};

struct DeepseekCjk {
  static const char* match(const Text& text, const char* p) {
    const char* at = p;
    while (at < text.end && static_cast<unsigned char>(*at) >= 0xe3) {
      const char* next = at;
      const char32_t cp = next_code_point(next);
      if (!((cp >= 0x4e00 && cp <= 0x9fa5) || (cp >= 0x3040 && cp <= 0x30ff))) break;
      at = next;
    }
    return at;
  }
};

// Splits a text into matches and the gaps between them.
template <typename Matcher>
void scan(std::string_view input, size_t base, std::vector<Piece>& out) {
  const Text text(input);
  const char* const begin = input.data();
  const char* p = begin;
  const char* gap = begin;
  const auto place = [&](const char* at) { return base + static_cast<size_t>(at - begin); };
  while (p < text.end) {
    const char* e = Matcher::match(text, p);
    if (e == p) {
      p += char_size(*p);
      continue;
    }
    if (gap < p) out.push_back({place(gap), place(p), false});
    out.push_back({place(p), place(e), false});
    p = e;
    gap = e;
  }
  if (gap < text.end) out.push_back({place(gap), place(text.end), false});
}

struct Entry {
  std::string_view pattern;
  Scanner scanner;
};

const Entry kScanners[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", scan<Gpt2>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     scan<Cl100k<3, kLetter>>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     scan<Cl100k<1, kLetter>>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     scan<Cl100k<1, kLetter | kMarkBits>>},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     scan<O200k>},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     scan<Deepseek3>},
    {R"(\p{N}{1,3})", scan<ThreeNumbers>},
    {"[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+", scan<DeepseekCjk>},
    {R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)", scan<DeepseekCjk>},
};

}  // namespace

Scanner scanner_for(std::string_view pattern) {
  for (const Entry& entry : kScanners) {
    if (entry.pattern == pattern) return entry.scanner;
  }
  return nullptr;
}

std::vector<std::string_view> scanned_patterns() {
  std::vector<std::string_view> out;
  for (const Entry& entry : kScanners) out.push_back(entry.pattern);
  return out;
}

}  // namespace quire::text
