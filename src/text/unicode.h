// SPDX-License-Identifier: Apache-2.0
// Properties of code points as in Hugging Face's tokenizers: categories, scripts, case, normalization forms.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace quire::text {

constexpr char32_t kCodePoints = 0x110000;

// A property word: the general category in the low five bits, and one bit for each property. Some properties exist
// several times, since the parts of Hugging Face's tokenizers follow different Unicode versions;
// tools/unicode/extract.py asks each of them.
enum Property : uint32_t {
  kCategoryMask = 0x1f,
  kRustWhitespace = 1u << 8,  // Rust's char::is_whitespace
  kRustNumeric = 1u << 9,     // Rust's char::is_numeric: isolated by Digits
  kPunctuation = 1u << 10,    // isolated by Punctuation and BertPreTokenizer
  kBertControl = 1u << 11,    // removed by BertNormalizer's clean_text
  kBertMark = 1u << 12,       // removed by BertNormalizer's strip_accents after NFD
  kCombiningMark = 1u << 13,  // removed by StripAccents
  kRustWord = 1u << 14,       // \w of the regex crate: Whitespace and single_word
  kOnigSpace = 1u << 15,      // \s, \w and \d in a Split pattern
  kOnigWord = 1u << 16,
  kOnigDigit = 1u << 17,
  kGraphemeExtend = 1u << 18,  // joins the grapheme of the character before it
  kBertWhitespace = 1u << 19,  // replaced by a space by clean_text
};

// Categories in the order of the table; a set of categories is a mask of 1 << category.
enum Category : uint8_t {
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCo,
  kCn
};

// A map from code points to small words with two look-ups. Immutable.
class CodePointTable {
 public:
  // Runs: values[i] applies from starts[i] up to the next start.
  CodePointTable(const uint32_t* starts, const uint32_t* values, size_t count);
  uint32_t operator[](char32_t cp) const { return blocks_[(static_cast<size_t>(index_[cp >> 8]) << 8) | (cp & 0xff)]; }

 private:
  std::array<uint16_t, kCodePoints / 256> index_{};
  std::vector<uint32_t> blocks_;
};

const CodePointTable& property_table();
// Classes of the UnicodeScripts pre-tokenizer; 0 never splits.
const CodePointTable& script_class_table();

inline bool has(char32_t cp, uint32_t property) {
  return (property_table()[cp] & property) != 0;
}

// A set of code points as sorted, disjoint, non-adjacent ranges, both ends included.
using CodeRange = std::pair<uint32_t, uint32_t>;
using CodeSet = std::vector<CodeRange>;

CodeSet set_of_categories(uint32_t mask);
CodeSet set_of_property(uint32_t property);
// The set of a name in \p{}: "L", "Lu", "Letter", "Han", "Alphabetic", ... (case, spaces, '_' and '-' do not matter).
std::optional<CodeSet> set_of_name(std::string_view name);
CodeSet united(const CodeSet& a, const CodeSet& b);
CodeSet complement(const CodeSet& a);
CodeSet intersected(const CodeSet& a, const CodeSet& b);
bool contains(const CodeSet& set, uint32_t cp);
// The set with all code points that a case-insensitive pattern considers equal to a member.
CodeSet case_closed(const CodeSet& set);

enum class Form { kNfc, kNfd, kNfkc, kNfkd };
// REQUIRES: `text` is valid UTF-8.
std::string normalize(std::string_view text, Form form);
// Lower case, character by character (without context), as Rust's char::to_lowercase.
void append_lower(std::string& out, char32_t cp);

inline bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

// Decodes one character and moves `p` past it. REQUIRES: the text is valid UTF-8.
inline char32_t next_code_point(const char*& p) {
  const auto b = [&](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
  const uint32_t lead = b(0);
  uint32_t cp = lead;
  int size = 1;
  if (lead >= 0xf0) {
    cp = ((lead & 0x07) << 18) | ((b(1) & 0x3f) << 12) | ((b(2) & 0x3f) << 6) | (b(3) & 0x3f);
    size = 4;
  } else if (lead >= 0xe0) {
    cp = ((lead & 0x0f) << 12) | ((b(1) & 0x3f) << 6) | (b(2) & 0x3f);
    size = 3;
  } else if (lead >= 0x80) {
    cp = ((lead & 0x1f) << 6) | (b(1) & 0x3f);
    size = 2;
  }
  p += size;
  return cp;
}

// The number of bytes of the character that begins with this byte, in valid UTF-8.
inline size_t char_size(char lead) {
  const auto c = static_cast<unsigned char>(lead);
  return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

}  // namespace quire::text
