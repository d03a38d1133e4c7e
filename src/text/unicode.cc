// SPDX-License-Identifier: Apache-2.0
// Tables of code points, built once from generated runs, and sets of code points.
#include "text/unicode.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>

#include "text/unicode_tables.h"

namespace quire::text {

using namespace tables;

CodePointTable::CodePointTable(const uint32_t* starts, const uint32_t* values, size_t count) {
  // Most blocks are inside one run; they share one block per value, without filling it each time.
  std::unordered_map<uint32_t, uint16_t> uniform;
  std::map<std::vector<uint32_t>, uint16_t> mixed;
  const auto add = [&](const std::vector<uint32_t>& block) {
    blocks_.insert(blocks_.end(), block.begin(), block.end());
    return static_cast<uint16_t>(blocks_.size() / 256 - 1);
  };
  std::vector<uint32_t> block(256);
  size_t run = 0;
  for (uint32_t base = 0; base < kCodePoints; base += 256) {
    while (run + 1 < count && starts[run + 1] <= base) ++run;
    const bool whole = run + 1 >= count || starts[run + 1] >= base + 256;
    if (whole) {
      const auto known = uniform.find(values[run]);
      if (known != uniform.end()) {
        index_[base >> 8] = known->second;
        continue;
      }
      block.assign(256, values[run]);
      index_[base >> 8] = uniform[values[run]] = add(block);
      continue;
    }
    for (uint32_t i = 0; i < 256; ++i) {
      while (run + 1 < count && starts[run + 1] <= base + i) ++run;
      block[i] = values[run];
    }
    const auto [it, fresh] = mixed.try_emplace(block, 0);
    if (fresh) it->second = add(block);
    index_[base >> 8] = it->second;
  }
}

const CodePointTable& property_table() {
  static const CodePointTable table(kPropertyStarts, kPropertyValues, std::size(kPropertyStarts));
  return table;
}

const CodePointTable& script_class_table() {
  static const CodePointTable table(kScriptClassStarts, kScriptClassValues, std::size(kScriptClassStarts));
  return table;
}

namespace {

void append_range(CodeSet& set, uint32_t first, uint32_t last) {
  if (!set.empty() && set.back().second + 1 >= first) {
    set.back().second = std::max(set.back().second, last);
  } else {
    set.emplace_back(first, last);
  }
}

template <typename Predicate>
CodeSet set_where(Predicate wanted) {
  CodeSet out;
  for (size_t i = 0; i < std::size(kPropertyStarts); ++i) {
    const uint32_t end = i + 1 < std::size(kPropertyStarts) ? kPropertyStarts[i + 1] : kCodePoints;
    if (wanted(kPropertyValues[i])) append_range(out, kPropertyStarts[i], end - 1);
  }
  return out;
}

struct CategoryName {
  const char* name;
  uint32_t mask;
};

constexpr uint32_t bit(Category c) {
  return 1u << c;
}
constexpr uint32_t kL = bit(kLu) | bit(kLl) | bit(kLt) | bit(kLm) | bit(kLo);
constexpr uint32_t kM = bit(kMn) | bit(kMc) | bit(kMe);
constexpr uint32_t kN = bit(kNd) | bit(kNl) | bit(kNo);
constexpr uint32_t kP = bit(kPc) | bit(kPd) | bit(kPs) | bit(kPe) | bit(kPi) | bit(kPf) | bit(kPo);
constexpr uint32_t kS = bit(kSm) | bit(kSc) | bit(kSk) | bit(kSo);
constexpr uint32_t kZ = bit(kZs) | bit(kZl) | bit(kZp);
constexpr uint32_t kC = bit(kCc) | bit(kCf) | bit(kCo) | bit(kCn);

constexpr CategoryName kCategoryNames[] = {{"l", kL},
                                           {"letter", kL},
                                           {"m", kM},
                                           {"mark", kM},
                                           {"combiningmark", kM},
                                           {"n", kN},
                                           {"number", kN},
                                           {"p", kP},
                                           {"punct", kP},
                                           {"punctuation", kP},
                                           {"s", kS},
                                           {"symbol", kS},
                                           {"z", kZ},
                                           {"separator", kZ},
                                           {"c", kC},
                                           {"other", kC},
                                           {"lu", bit(kLu)},
                                           {"uppercaseletter", bit(kLu)},
                                           {"ll", bit(kLl)},
                                           {"lowercaseletter", bit(kLl)},
                                           {"lt", bit(kLt)},
                                           {"titlecaseletter", bit(kLt)},
                                           {"lm", bit(kLm)},
                                           {"modifierletter", bit(kLm)},
                                           {"lo", bit(kLo)},
                                           {"otherletter", bit(kLo)},
                                           {"lc", bit(kLu) | bit(kLl) | bit(kLt)},
                                           {"mn", bit(kMn)},
                                           {"nonspacingmark", bit(kMn)},
                                           {"mc", bit(kMc)},
                                           {"spacingmark", bit(kMc)},
                                           {"me", bit(kMe)},
                                           {"enclosingmark", bit(kMe)},
                                           {"nd", bit(kNd)},
                                           {"decimalnumber", bit(kNd)},
                                           {"nl", bit(kNl)},
                                           {"letternumber", bit(kNl)},
                                           {"no", bit(kNo)},
                                           {"othernumber", bit(kNo)},
                                           {"pc", bit(kPc)},
                                           {"connectorpunctuation", bit(kPc)},
                                           {"pd", bit(kPd)},
                                           {"dashpunctuation", bit(kPd)},
                                           {"ps", bit(kPs)},
                                           {"openpunctuation", bit(kPs)},
                                           {"pe", bit(kPe)},
                                           {"closepunctuation", bit(kPe)},
                                           {"pi", bit(kPi)},
                                           {"initialpunctuation", bit(kPi)},
                                           {"pf", bit(kPf)},
                                           {"finalpunctuation", bit(kPf)},
                                           {"po", bit(kPo)},
                                           {"otherpunctuation", bit(kPo)},
                                           {"sm", bit(kSm)},
                                           {"mathsymbol", bit(kSm)},
                                           {"sc", bit(kSc)},
                                           {"currencysymbol", bit(kSc)},
                                           {"sk", bit(kSk)},
                                           {"modifiersymbol", bit(kSk)},
                                           {"so", bit(kSo)},
                                           {"othersymbol", bit(kSo)},
                                           {"zs", bit(kZs)},
                                           {"spaceseparator", bit(kZs)},
                                           {"zl", bit(kZl)},
                                           {"lineseparator", bit(kZl)},
                                           {"zp", bit(kZp)},
                                           {"paragraphseparator", bit(kZp)},
                                           {"cc", bit(kCc)},
                                           {"cntrl", bit(kCc)},
                                           {"control", bit(kCc)},
                                           {"cf", bit(kCf)},
                                           {"format", bit(kCf)},
                                           {"co", bit(kCo)},
                                           {"privateuse", bit(kCo)},
                                           {"cn", bit(kCn)},
                                           {"unassigned", bit(kCn)},
                                           {"any", 0xffffffffu}};

}  // namespace

CodeSet set_of_categories(uint32_t mask) {
  return set_where([&](uint32_t value) { return ((mask >> (value & kCategoryMask)) & 1) != 0; });
}

CodeSet set_of_property(uint32_t property) {
  return set_where([&](uint32_t value) { return (value & property) != 0; });
}

std::optional<CodeSet> set_of_name(std::string_view name) {
  std::string folded;
  for (const char c : name) {
    if (c == '_' || c == '-' || c == ' ') continue;
    folded += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  for (const CategoryName& entry : kCategoryNames) {
    if (folded == entry.name) return set_of_categories(entry.mask);
  }
  if (folded == "space" || folded == "whitespace") return set_of_property(kOnigSpace);
  if (folded == "word") return set_of_property(kOnigWord);
  if (folded == "digit") return set_of_property(kOnigDigit);
  if (folded == "xdigit") return CodeSet{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  if (folded == "ascii") return CodeSet{{0, 0x7f}};
  if (folded == "blank") return united(set_of_categories(bit(kZs)), {{'\t', '\t'}});
  for (const ScriptName& entry : kScripts) {
    if (folded == entry.name) {
      CodeSet out;
      for (uint32_t i = entry.begin; i < entry.end; i += 2) out.emplace_back(kScriptRanges[i], kScriptRanges[i + 1]);
      return out;
    }
  }
  return std::nullopt;
}

CodeSet united(const CodeSet& a, const CodeSet& b) {
  CodeSet all(a);
  all.insert(all.end(), b.begin(), b.end());
  std::sort(all.begin(), all.end());
  CodeSet out;
  for (const auto& [first, last] : all) append_range(out, first, last);
  return out;
}

CodeSet complement(const CodeSet& a) {
  CodeSet out;
  uint32_t next = 0;
  for (const auto& [first, last] : a) {
    if (first > next) out.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next < kCodePoints) out.emplace_back(next, kCodePoints - 1);
  return out;
}

CodeSet intersected(const CodeSet& a, const CodeSet& b) {
  return complement(united(complement(a), complement(b)));
}

bool contains(const CodeSet& set, uint32_t cp) {
  const auto after = std::upper_bound(set.begin(), set.end(), CodeRange{cp, 0xffffffffu});
  return after != set.begin() && std::prev(after)->second >= cp;
}

namespace {

// Pairs (a, b) that a case-insensitive pattern considers equal, in both directions.
std::vector<CodeRange> case_pairs() {
  std::unordered_map<uint32_t, std::vector<uint32_t>> groups;
  const auto join = [&](uint32_t lower, uint32_t other) { groups[lower].push_back(other); };
  for (size_t i = 0; i < std::size(kLowerKeys); ++i) {
    if ((kLowerWhere[i] & 31) == 1) join(kLowerPool[kLowerWhere[i] >> 5], kLowerKeys[i]);
  }
  for (size_t i = 0; i + 1 < std::size(kAsciiFolds); i += 2) join(kAsciiFolds[i], kAsciiFolds[i + 1]);
  std::vector<CodeRange> pairs;
  for (auto& [lower, members] : groups) {
    members.push_back(lower);
    for (const uint32_t a : members) {
      for (const uint32_t b : members) {
        if (a != b) pairs.emplace_back(a, b);
      }
    }
  }
  return pairs;
}

}  // namespace

CodeSet case_closed(const CodeSet& set) {
  static const std::vector<CodeRange> pairs = case_pairs();
  CodeSet extra;
  for (const auto& [a, b] : pairs) {
    if (contains(set, a) && !contains(set, b)) extra.emplace_back(b, b);
  }
  return united(set, extra);
}

}  // namespace quire::text
