// SPDX-License-Identifier: Apache-2.0
// SentencePiece's compiled normalization rules: a double-array trie over bytes and a pool of zero-terminated results.
#include <cstring>

#include "text/normalizer.h"
#include "text/unicode.h"

namespace quire::text {

namespace {

// One unit of the double array (in the layout of Darts): a label with a leaf flag and the offset to its children, or,
// after a leaf, a value with the top bit set.
bool has_leaf(uint32_t unit) {
  return ((unit >> 8) & 1) != 0;
}
uint32_t unit_value(uint32_t unit) {
  return unit & 0x7fffffffu;
}
uint32_t unit_label(uint32_t unit) {
  return unit & 0x800000ffu;
}
uint32_t unit_offset(uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

class Precompiled final : public Normalizer {
 public:
  Precompiled(std::vector<uint32_t> units, std::string results)
      : units_(std::move(units)), results_(std::move(results)) {}
  void apply(NormalText& text) const override;

 private:
  // The result of the shortest rule that is a prefix of `chunk`; a null view if there is none.
  std::string_view rule(std::string_view chunk) const;

  std::vector<uint32_t> units_;
  std::string results_;
};

std::string_view Precompiled::rule(std::string_view chunk) const {
  if (units_.empty()) return {};
  size_t node = unit_offset(units_[0]);
  for (const char c : chunk) {
    const uint32_t byte = static_cast<unsigned char>(c);
    if (byte == 0) return {};
    node ^= byte;
    if (node >= units_.size()) return {};
    const uint32_t unit = units_[node];
    if (unit_label(unit) != byte) return {};
    node ^= unit_offset(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size()) return {};
    const uint32_t at = unit_value(units_[node]);
    if (at >= results_.size()) return {};
    const char* result = results_.data() + at;
    if ((static_cast<unsigned char>(*result) & 0xc0) == 0x80) return {};  // starts inside a character
    return {result, strnlen(result, results_.size() - at)};
  }
  return {};
}

bool is_grapheme_control(char32_t cp) {
  if (cp == 0x200c || cp == 0x200d) return false;
  const uint32_t category = property_table()[cp] & kCategoryMask;
  return category == kCc || category == kZl || category == kZp || category == kCf;
}

// The end of the grapheme at `begin`. The rules are looked up only for graphemes of fewer than six bytes, so it makes
// no difference that longer kinds (Hangul, flags, emoji sequences, conjuncts) may be split into characters.
size_t grapheme_end(std::string_view text, size_t begin) {
  const char* p = text.data() + begin;
  const char* end = text.data() + text.size();
  const char32_t first = next_code_point(p);
  if (first == '\r' && p < end && *p == '\n') return static_cast<size_t>(p + 1 - text.data());
  if (is_grapheme_control(first)) return static_cast<size_t>(p - text.data());
  while (p < end) {
    const char* next = p;
    if (!has(next_code_point(next), kGraphemeExtend)) break;
    p = next;
  }
  return static_cast<size_t>(p - text.data());
}

void Precompiled::apply(NormalText& text) const {
  constexpr size_t kGraphemeLimit = 6;
  const std::string& in = text.text;
  std::string out;
  out.reserve(in.size());
  size_t at = 0;
  bool first = true;
  while (at < in.size()) {
    const size_t end = grapheme_end(in, at);
    const std::string_view grapheme(in.data() + at, end - at);
    const std::string_view whole = grapheme.size() < kGraphemeLimit ? rule(grapheme) : std::string_view();
    if (whole.data() != nullptr) {
      out += whole;
    } else {
      size_t i = at;
      while (i < end) {
        const size_t size = char_size(in[i]);
        const std::string_view part(in.data() + i, size);
        const std::string_view result = rule(part);
        out += result.data() != nullptr ? result : part;
        i += size;
      }
    }
    if (first && out.empty()) text.at_start = false;
    first = false;
    at = end;
  }
  text.text = std::move(out);
}

}  // namespace

Result<NormalizerPtr> make_precompiled(std::string charsmap) {
  if (charsmap.empty()) return NormalizerPtr();
  uint32_t size = 0;
  if (charsmap.size() < sizeof size) return corrupt("the precompiled charsmap is shorter than its header");
  std::memcpy(&size, charsmap.data(), sizeof size);
  if (size % 4 != 0 || size > charsmap.size() - sizeof size) {
    return corrupt({"the precompiled charsmap declares a trie of ", size, " bytes, which is impossible"});
  }
  std::vector<uint32_t> units(size / 4);
  std::memcpy(units.data(), charsmap.data() + sizeof size, size);
  std::string results = charsmap.substr(sizeof size + size);
  // Results become part of the text, so they must be valid.
  std::string valid;
  utf8::append_valid(valid, results);
  if (valid != results) return corrupt("the precompiled charsmap's results are not valid UTF-8");
  return NormalizerPtr(std::make_unique<Precompiled>(std::move(units), std::move(results)));
}

}  // namespace quire::text
