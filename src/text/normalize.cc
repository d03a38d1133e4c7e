// SPDX-License-Identifier: Apache-2.0
// The four Unicode normalization forms and lower case, from generated tables.
#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "text/unicode.h"
#include "text/unicode_tables.h"

namespace quire::text {

using namespace tables;

namespace {

// Hangul syllables compose and decompose by arithmetic (Unicode, section 3.12).
constexpr uint32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr uint32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

// One entry for each code point that normalization may change: the combining class (8 bits), and the places of its
// canonical and compatibility decompositions (index + 1 into their key lists).
struct NormalEntry {
  uint8_t combining = 0;
  uint32_t canonical = 0;
  uint32_t compatible = 0;
  bool composes = false;  // can be the second of a composed pair
  bool unstable = false;  // composing its decomposition does not give it back
};

class NormalTable {
 public:
  NormalTable() {
    index_.assign(kCodePoints >> 8, 0);
    entries_.resize(256);
    for (size_t i = 0; i < std::size(kCanonicalKeys); ++i)
      at(kCanonicalKeys[i]).canonical = static_cast<uint32_t>(i) + 1;
    for (size_t i = 0; i < std::size(kCompatibleKeys); ++i) {
      at(kCompatibleKeys[i]).compatible = static_cast<uint32_t>(i) + 1;
    }
    for (const uint32_t packed : kCombining) at(packed >> 8).combining = static_cast<uint8_t>(packed & 0xff);
    for (size_t i = 0; i + 2 < std::size(kCompositions); i += 3) {
      pairs_[(uint64_t{kCompositions[i]} << 32) | kCompositions[i + 1]] = kCompositions[i + 2];
      at(kCompositions[i + 1]).composes = true;
    }
    for (uint32_t i = 0; i < kVCount; ++i) at(kVBase + i).composes = true;
    for (uint32_t i = 1; i < kTCount; ++i) at(kTBase + i).composes = true;
    for (const uint32_t cp : kCanonicalKeys) at(cp).unstable = !stable(cp);
  }
  const NormalEntry& operator[](uint32_t cp) const {
    return entries_[(static_cast<size_t>(index_[cp >> 8]) << 8) | (cp & 0xff)];
  }
  // The composite of two code points, or 0.
  uint32_t composed(uint32_t a, uint32_t b) const {
    if (a - kLBase < kLCount && b - kVBase < kVCount) return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
    if (a - kSBase < kSCount && (a - kSBase) % kTCount == 0 && b > kTBase && b - kTBase < kTCount)
      return a + (b - kTBase);
    const auto it = pairs_.find((uint64_t{a} << 32) | b);
    return it == pairs_.end() ? 0 : it->second;
  }

 private:
  bool stable(uint32_t cp) const;
  NormalEntry& at(uint32_t cp) {
    uint16_t& block = index_[cp >> 8];
    if (block == 0) {
      block = static_cast<uint16_t>(entries_.size() >> 8);
      entries_.resize(entries_.size() + 256);
    }
    return entries_[(static_cast<size_t>(block) << 8) | (cp & 0xff)];
  }
  std::vector<uint16_t> index_;
  std::vector<NormalEntry> entries_;
  std::unordered_map<uint64_t, uint32_t> pairs_;
};

using CodePoints = std::vector<std::pair<uint32_t, uint8_t>>;  // code point, combining class

void append_decomposed(const NormalTable& table, CodePoints& out, uint32_t cp, bool compatible) {
  if (cp - kSBase < kSCount) {
    const uint32_t s = cp - kSBase;
    out.emplace_back(kLBase + s / (kVCount * kTCount), 0);
    out.emplace_back(kVBase + s % (kVCount * kTCount) / kTCount, 0);
    if (s % kTCount != 0) out.emplace_back(kTBase + s % kTCount, 0);
    return;
  }
  const NormalEntry& entry = table[cp];
  uint32_t where = 0;
  const uint32_t* pool = nullptr;
  if (compatible && entry.compatible != 0) {
    where = kCompatibleWhere[entry.compatible - 1];
    pool = kCompatiblePool;
  } else if (entry.canonical != 0) {
    where = kCanonicalWhere[entry.canonical - 1];
    pool = kCanonicalPool;
  }
  if (pool == nullptr) {
    out.emplace_back(cp, entry.combining);
    return;
  }
  for (uint32_t i = 0; i < (where & 31); ++i) {
    const uint32_t part = pool[(where >> 5) + i];
    out.emplace_back(part, table[part].combining);
  }
}

// Sorts the marks between two starters by class; marks of equal class keep their order.
void reorder(CodePoints& points) {
  size_t i = 0;
  while (i < points.size()) {
    if (points[i].second == 0) {
      ++i;
      continue;
    }
    size_t j = i;
    while (j < points.size() && points[j].second != 0) ++j;
    std::stable_sort(points.begin() + static_cast<std::ptrdiff_t>(i), points.begin() + static_cast<std::ptrdiff_t>(j),
                     [](const auto& a, const auto& b) { return a.second < b.second; });
    i = j;
  }
}

void compose(const NormalTable& table, CodePoints& points) {
  size_t starter = points.size();  // none yet
  size_t out = 0;
  int last_class = -1;  // of the last mark after the starter that was kept; -1: none
  for (size_t i = 0; i < points.size(); ++i) {
    const auto [cp, combining] = points[i];
    if (starter < out && last_class < static_cast<int>(combining)) {
      const uint32_t merged = table.composed(points[starter].first, cp);
      if (merged != 0) {
        points[starter].first = merged;
        continue;
      }
    }
    if (combining == 0) {
      starter = out;
      last_class = -1;
    } else {
      last_class = combining;
    }
    points[out++] = points[i];
  }
  points.resize(out);
}

// Whether composing the canonical decomposition gives the code point back.
bool NormalTable::stable(uint32_t cp) const {
  CodePoints parts;
  append_decomposed(*this, parts, cp, false);
  compose(*this, parts);
  return parts.size() == 1 && parts[0].first == cp;
}

const NormalTable& normal_table() {
  static const NormalTable table;
  return table;
}

}  // namespace

std::string normalize(std::string_view text, Form form) {
  if (is_ascii(text)) return std::string(text);
  const NormalTable& table = normal_table();
  const bool compatible = form == Form::kNfkc || form == Form::kNfkd;
  const bool composing = form == Form::kNfc || form == Form::kNfkc;
  CodePoints points;
  points.reserve(text.size());
  const char* p = text.data();
  const char* end = p + text.size();
  // Most text is normalized already: copy up to a character that might change, then restart from the last starter.
  bool changes = false;
  while (p < end) {
    const uint32_t cp = next_code_point(p);
    if (cp < 0xc0) {
      if (compatible && cp >= 0x80 && table[cp].compatible != 0) changes = true;
      continue;
    }
    const NormalEntry& entry = table[cp];
    const bool hangul = cp - kSBase < kSCount;
    if (entry.combining != 0 || entry.composes || (compatible && entry.compatible != 0)) changes = true;
    if (composing) {
      if (entry.unstable) changes = true;
    } else if (entry.canonical != 0 || hangul) {
      changes = true;
    }
    if (changes) break;
  }
  if (!changes) return std::string(text);
  p = text.data();
  while (p < end) append_decomposed(table, points, next_code_point(p), compatible);
  reorder(points);
  if (composing) compose(table, points);
  std::string out;
  out.reserve(text.size());
  for (const auto& [cp, combining] : points) utf8::append(out, cp);
  return out;
}

void append_lower(std::string& out, char32_t cp) {
  if (cp < 0x80) {
    out += static_cast<char>(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp);
    return;
  }
  const auto* it = std::lower_bound(std::begin(kLowerKeys), std::end(kLowerKeys), static_cast<uint32_t>(cp));
  if (it == std::end(kLowerKeys) || *it != cp) {
    utf8::append(out, cp);
    return;
  }
  const uint32_t where = kLowerWhere[it - std::begin(kLowerKeys)];
  for (uint32_t i = 0; i < (where & 31); ++i) utf8::append(out, kLowerPool[(where >> 5) + i]);
}

}  // namespace quire::text
