// SPDX-License-Identifier: Apache-2.0
// The makers of RegexStore: every expression is simplified and stored once.
#include "grammar/regex.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "grammar/regex_state.h"

namespace quire::grammar {

ByteSet ByteSet::all() {
  return ~ByteSet{};
}

ByteSet ByteSet::of(std::string_view bytes) {
  ByteSet set;
  for (char byte : bytes) set.add(static_cast<uint8_t>(byte));
  return set;
}

ByteSet ByteSet::range(uint8_t first, uint8_t last) {
  ByteSet set;
  for (int byte = first; byte <= last; ++byte) set.add(static_cast<uint8_t>(byte));
  return set;
}

ByteSet ByteSet::operator~() const {
  ByteSet result;
  for (size_t i = 0; i < 4; ++i) result.words_[i] = ~words_[i];
  return result;
}

ByteSet ByteSet::operator|(const ByteSet& other) const {
  ByteSet result;
  for (size_t i = 0; i < 4; ++i) result.words_[i] = words_[i] | other.words_[i];
  return result;
}

ByteSet ByteSet::operator&(const ByteSet& other) const {
  ByteSet result;
  for (size_t i = 0; i < 4; ++i) result.words_[i] = words_[i] & other.words_[i];
  return result;
}

uint64_t RegexStore::State::hash(const Node& key, std::span<const uint32_t> parts) const {
  uint64_t h = static_cast<uint64_t>(key.kind) * 0x9E3779B97F4A7C15u;
  auto mix = [&h](uint64_t value) {
    h = (h ^ value) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 32;
  };
  if (key.kind == Kind::kEither || key.kind == Kind::kBoth) {
    for (uint32_t part : parts) mix(part);
  } else {
    mix(key.a);
    mix(key.b);
    mix(key.c);
  }
  return h;
}

bool RegexStore::State::same(const Node& node, const Node& key, std::span<const uint32_t> parts) const {
  if (node.kind != key.kind) return false;
  if (key.kind == Kind::kEither || key.kind == Kind::kBoth) return std::ranges::equal(list(node), parts);
  return node.a == key.a && node.b == key.b && node.c == key.c;
}

void RegexStore::State::grow_table() {
  table.assign(std::max<size_t>(1024, table.size() * 2), 0);
  for (uint32_t index = 0; index < nodes.size(); ++index) {
    const Node& n = nodes[index];
    std::span<const uint32_t> parts;
    if (n.kind == Kind::kEither || n.kind == Kind::kBoth) parts = list(n);
    size_t slot = hash(n, parts) & (table.size() - 1);
    while (table[slot] != 0) slot = (slot + 1) & (table.size() - 1);
    table[slot] = index + 1;
  }
}

uint32_t RegexStore::State::intern(Node key, std::span<const uint32_t> parts) {
  ++work;
  if (nodes.size() * 2 >= table.size()) grow_table();
  size_t slot = hash(key, parts) & (table.size() - 1);
  for (; table[slot] != 0; slot = (slot + 1) & (table.size() - 1)) {
    if (same(nodes[table[slot] - 1], key, parts)) return table[slot] - 1;
  }
  if (nodes.size() + lists.size() / 4 >= max_nodes || lists.size() + parts.size() > 0x7FFFFFFF) {
    full = true;
    return kNothing;
  }
  if (key.kind == Kind::kEither || key.kind == Kind::kBoth) {
    key.a = static_cast<uint32_t>(lists.size());
    key.b = static_cast<uint32_t>(parts.size());
    lists.insert(lists.end(), parts.begin(), parts.end());
  }
  table[slot] = static_cast<uint32_t>(nodes.size()) + 1;
  nodes.push_back(key);
  return table[slot] - 1;
}

uint32_t RegexStore::State::bytes(const ByteSet& set) {
  if (set.empty()) return kNothing;
  auto [entry, added] = set_index.try_emplace(set.words(), static_cast<uint32_t>(sets.size()));
  if (added) sets.push_back(set);
  return intern({.kind = Kind::kBytes, .plain = true, .a = entry->second});
}

uint32_t RegexStore::State::literal(std::string_view text) {
  uint32_t result = kEmpty;
  for (size_t i = text.size(); i-- > 0 && !full;) result = concat_part(bytes(ByteSet::of(text.substr(i, 1))), result);
  return full ? kNothing : result;
}

// REQUIRES: part is no concatenation.
uint32_t RegexStore::State::concat_part(uint32_t part, uint32_t rest) {
  if (part == kNothing || rest == kNothing) return kNothing;
  if (part == kEmpty) return rest;
  if (rest == kEmpty) return part;
  const Node& p = nodes[part];
  const Node& r = nodes[rest];
  if (p.kind == Kind::kRepeat && p.b == 0 && p.c == kUnbounded) {
    // x* x* is x*.
    if (rest == part || (r.kind == Kind::kConcat && r.a == part)) return rest;
  }
  return intern({.kind = Kind::kConcat,
                 .nullable = p.nullable && r.nullable,
                 .plain = p.plain && r.plain,
                 .open = p.open || r.open,
                 .infinite = p.infinite || r.infinite,
                 .a = part,
                 .b = rest});
}

uint32_t RegexStore::State::concat(uint32_t a, uint32_t b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kEmpty) return b;
  if (b == kEmpty) return a;
  if (nodes[a].kind != Kind::kConcat) return concat_part(a, b);
  std::vector<uint32_t> parts;
  for (; nodes[a].kind == Kind::kConcat; a = nodes[a].b) parts.push_back(nodes[a].a);
  parts.push_back(a);
  work += static_cast<int64_t>(parts.size());
  for (size_t i = parts.size(); i-- > 0;) b = concat_part(parts[i], b);
  return b;
}

// Alternatives that begin with the same byte set become one: "ab|ac" is "a(b|c)". Many literals thus become a trie.
void RegexStore::State::factor(std::vector<uint32_t>& parts, int depth) {
  auto head = [this](uint32_t part) {
    const Node& n = nodes[part];
    return n.kind == Kind::kConcat && nodes[n.a].kind == Kind::kBytes ? n.a : kNothing;
  };
  std::ranges::stable_sort(parts, {}, head);
  std::vector<uint32_t> result, tails;
  for (size_t i = 0; i < parts.size();) {
    uint32_t h = head(parts[i]);
    size_t end = i + 1;
    while (h != kNothing && end < parts.size() && head(parts[end]) == h) ++end;
    if (end == i + 1) {
      result.push_back(parts[i++]);
      continue;
    }
    tails.clear();
    for (; i < end; ++i) tails.push_back(nodes[parts[i]].b);
    result.push_back(concat_part(h, either(tails, depth + 1)));
  }
  parts = std::move(result);
}

// Alternatives that differ only in their first byte set become one: "ac|bc" is "[ab]c".
void RegexStore::State::join_heads(std::vector<uint32_t>& parts) {
  auto tail = [this](uint32_t part) {
    const Node& n = nodes[part];
    return n.kind == Kind::kConcat && nodes[n.a].kind == Kind::kBytes ? n.b : kNothing;
  };
  std::ranges::stable_sort(parts, {}, tail);
  std::vector<uint32_t> result;
  for (size_t i = 0; i < parts.size();) {
    uint32_t t = tail(parts[i]);
    if (t == kNothing || i + 1 == parts.size() || tail(parts[i + 1]) != t) {
      result.push_back(parts[i++]);
      continue;
    }
    ByteSet set;
    for (; i < parts.size() && tail(parts[i]) == t; ++i) set = set | sets[nodes[nodes[parts[i]].a].a];
    result.push_back(concat_part(bytes(set), t));
  }
  parts = std::move(result);
}

uint32_t RegexStore::State::either(std::vector<uint32_t> parts, int depth) {
  std::vector<uint32_t> flat;
  ByteSet single;
  bool empty = false, nullable = false, plain = true, open = false, infinite = false;
  auto add = [&](uint32_t part) {
    const Node& n = nodes[part];
    if (part == kNothing) return;
    if (part == kEmpty) {
      empty = true;
    } else if (n.kind == Kind::kBytes) {
      single = single | sets[n.a];
    } else {
      flat.push_back(part);
    }
  };
  for (uint32_t part : parts) {
    if (part == anything && anything != 0) return anything;
    if (nodes[part].kind == Kind::kEither) {
      for (uint32_t inner : list(nodes[part])) add(inner);
    } else {
      add(part);
    }
  }
  work += static_cast<int64_t>(flat.size());
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.size() > 1 && depth < kMaxDepth) {
    factor(flat, depth);
    join_heads(flat);
  }
  for (uint32_t part : flat) nullable = nullable || nodes[part].nullable;
  if (uint32_t set = bytes(single); set != kNothing) flat.push_back(set);
  if (empty && !nullable) flat.push_back(kEmpty);
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (full || flat.empty()) return kNothing;
  if (flat.size() == 1) return flat[0];
  for (uint32_t part : flat) {
    plain = plain && nodes[part].plain;
    open = open || nodes[part].open;
    infinite = infinite || nodes[part].infinite;
  }
  return intern(
      {.kind = Kind::kEither, .nullable = nullable || empty, .plain = plain, .open = open, .infinite = infinite}, flat);
}

uint32_t RegexStore::State::both(std::vector<uint32_t> parts) {
  std::vector<uint32_t> flat;
  ByteSet single = ByteSet::all();
  bool has_single = false, nullable = true;
  for (uint32_t part : parts) {
    std::span<const uint32_t> inner(&part, 1);
    if (nodes[part].kind == Kind::kBoth) inner = list(nodes[part]);
    for (uint32_t each : inner) {
      if (each == kNothing) return kNothing;
      if (each == anything) continue;
      nullable = nullable && nodes[each].nullable;
      if (nodes[each].kind == Kind::kBytes) {
        single = single & sets[nodes[each].a];
        has_single = true;
      } else {
        flat.push_back(each);
      }
    }
  }
  if (has_single) flat.push_back(bytes(single));
  work += static_cast<int64_t>(flat.size());
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (full) return kNothing;
  if (flat.empty()) return anything;
  if (flat[0] == kNothing) return kNothing;
  if (flat[0] == kEmpty) return nullable ? kEmpty : kNothing;
  if (flat.size() == 1) return flat[0];
  for (uint32_t part : flat) {
    if (nodes[part].kind == Kind::kNot && std::ranges::binary_search(flat, nodes[part].a)) return kNothing;
  }
  return intern({.kind = Kind::kBoth, .nullable = nullable, .open = true}, flat);
}

uint32_t RegexStore::State::complement(uint32_t a) {
  if (full) return kNothing;
  if (a == kNothing) return anything;
  if (a == anything) return kNothing;
  if (nodes[a].kind == Kind::kNot) return nodes[a].a;
  return intern({.kind = Kind::kNot, .nullable = !nodes[a].nullable, .open = true, .a = a});
}

uint32_t RegexStore::State::repeat(uint32_t a, uint32_t min, uint32_t max) {
  const Node n = nodes[a];
  if (min > max || (a == kNothing && min > 0)) return kNothing;
  if (max == 0 || a == kEmpty || a == kNothing) return kEmpty;
  if (n.nullable) min = 0;
  if (min == 1 && max == 1) return a;
  if (min == 0 && max == 1) return either({a, kEmpty});
  if (n.kind == Kind::kRepeat && n.c == kUnbounded && n.b <= 1 && (max == kUnbounded || n.b == 0)) {
    // (x*){m,n} is x*, and (x+)* is x*, (x+)+ is x+.
    if (n.b == 0) return a;
    if (min <= 1) return repeat(n.a, min, kUnbounded);
  }
  return intern({.kind = Kind::kRepeat,
                 .nullable = min == 0,
                 .open = n.open,
                 .infinite = max == kUnbounded || n.infinite,
                 .a = a,
                 .b = min,
                 .c = max});
}

namespace {

// The code points of one range that have the same number of bytes in UTF-8, and whose bytes after the first differing
// one cover everything: appends them as one sequence of byte ranges, splitting until that holds.
void split_utf8(uint32_t first, uint32_t last, std::vector<std::vector<std::pair<uint8_t, uint8_t>>>& out) {
  static constexpr std::array<uint32_t, 4> kLast = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
  for (uint32_t limit : kLast) {
    if (first <= limit && last > limit) {
      split_utf8(first, limit, out);
      split_utf8(limit + 1, last, out);
      return;
    }
  }
  int length = first <= 0x7F ? 1 : first <= 0x7FF ? 2 : first <= 0xFFFF ? 3 : 4;
  for (int i = 1; i < length; ++i) {
    uint32_t mask = (uint32_t{1} << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      split_utf8(first, first | mask, out);
      split_utf8((first | mask) + 1, last, out);
      return;
    }
    if ((last & mask) != mask) {
      split_utf8(first, (last & ~mask) - 1, out);
      split_utf8(last & ~mask, last, out);
      return;
    }
  }
  static constexpr std::array<uint8_t, 5> kLead = {0, 0, 0xC0, 0xE0, 0xF0};
  std::vector<std::pair<uint8_t, uint8_t>> bytes(static_cast<size_t>(length));
  for (int i = length - 1; i >= 0; --i) {
    int shift = 6 * (length - 1 - i);
    uint32_t low = first >> shift, high = last >> shift;
    if (i > 0) {
      low = 0x80 | (low & 0x3F);
      high = 0x80 | (high & 0x3F);
    } else {
      low |= kLead[static_cast<size_t>(length)];
      high |= kLead[static_cast<size_t>(length)];
    }
    bytes[static_cast<size_t>(i)] = {static_cast<uint8_t>(low), static_cast<uint8_t>(high)};
  }
  out.push_back(std::move(bytes));
}

// Sorted, without overlaps, and without what is no code point.
std::vector<CodePointRange> normalized(std::span<const CodePointRange> ranges) {
  std::vector<CodePointRange> sorted;
  for (CodePointRange range : ranges) {
    range.last = std::min<uint32_t>(range.last, 0x10FFFF);
    if (range.first < 0xD800) sorted.push_back({range.first, std::min<uint32_t>(range.last, 0xD7FF)});
    if (range.last > 0xDFFF) sorted.push_back({std::max<uint32_t>(range.first, 0xE000), range.last});
  }
  std::erase_if(sorted, [](const CodePointRange& range) { return range.first > range.last; });
  std::ranges::sort(sorted, {}, &CodePointRange::first);
  std::vector<CodePointRange> merged;
  for (const CodePointRange& range : sorted) {
    if (!merged.empty() && range.first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

uint32_t bound(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, std::numeric_limits<int32_t>::max()));
}

}  // namespace

uint32_t RegexStore::State::chars(std::span<const CodePointRange> ranges) {
  std::vector<std::vector<std::pair<uint8_t, uint8_t>>> sequences;
  for (const CodePointRange& range : normalized(ranges)) split_utf8(range.first, range.last, sequences);
  std::vector<uint32_t> parts;
  for (const auto& sequence : sequences) {
    uint32_t part = kEmpty;
    for (size_t i = sequence.size(); i-- > 0;) {
      part = concat_part(bytes(ByteSet::range(sequence[i].first, sequence[i].second)), part);
    }
    parts.push_back(part);
  }
  return either(std::move(parts));
}

RegexStore::RegexStore(size_t max_nodes) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.max_nodes = std::max<size_t>(max_nodes, 100);
  s.nodes.push_back({.kind = State::Kind::kNothing});
  s.nodes.push_back({.kind = State::Kind::kEmpty, .nullable = true, .plain = true});
  s.grow_table();
  s.anything = s.repeat(s.bytes(ByteSet::all()), 0, State::kUnbounded);
  CodePointRange all{0, 0x10FFFF};
  s.any_char = s.chars(std::span(&all, 1));
  s.any_text = s.repeat(s.any_char, 0, State::kUnbounded);
  QUIRE_CHECK(!s.full);
}

RegexStore::~RegexStore() = default;
RegexStore::RegexStore(RegexStore&& other) noexcept = default;
RegexStore& RegexStore::operator=(RegexStore&& other) noexcept = default;

bool RegexStore::full() const {
  return state_->full;
}
size_t RegexStore::size() const {
  return state_->nodes.size();
}
int64_t RegexStore::work() const {
  return state_->work;
}
size_t RegexStore::memory() const {
  const State& s = *state_;
  return s.nodes.capacity() * sizeof(State::Node) + (s.lists.capacity() + s.table.capacity()) * sizeof(uint32_t) +
         s.sets.size() * 120 + s.derived.bytes();
}

Regex RegexStore::nothing() const {
  return {State::kNothing};
}
Regex RegexStore::empty() const {
  return {State::kEmpty};
}
Regex RegexStore::anything() const {
  return {state_->anything};
}
Regex RegexStore::any_char() const {
  return {state_->any_char};
}
Regex RegexStore::any_text() const {
  return {state_->any_text};
}
Regex RegexStore::bytes(const ByteSet& set) {
  return {state_->bytes(set)};
}
Regex RegexStore::literal(std::string_view bytes) {
  return {state_->literal(bytes)};
}

Regex RegexStore::literal_ignoring_case(std::string_view text) {
  uint32_t result = State::kEmpty;
  for (size_t i = text.size(); i-- > 0 && !full();) {
    auto byte = static_cast<uint8_t>(text[i]);
    ByteSet set = ByteSet::range(byte, byte);
    bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
    if (letter) set.add(byte ^ 0x20);
    result = state_->concat_part(state_->bytes(set), result);
  }
  return full() ? nothing() : Regex{result};
}

Regex RegexStore::chars(std::span<const CodePointRange> ranges) {
  return {state_->chars(ranges)};
}

Regex RegexStore::chars_except(std::span<const CodePointRange> ranges) {
  std::vector<CodePointRange> rest;
  uint32_t next = 0;
  for (const CodePointRange& range : normalized(ranges)) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= 0x10FFFF) rest.push_back({next, 0x10FFFF});
  return chars(rest);
}

Regex RegexStore::concat(Regex a, Regex b) {
  return {state_->concat(a.index, b.index)};
}

Regex RegexStore::concat(std::span<const Regex> parts) {
  uint32_t result = State::kEmpty;
  for (size_t i = parts.size(); i-- > 0;) result = state_->concat(parts[i].index, result);
  return {result};
}

Regex RegexStore::either(Regex a, Regex b) {
  return {state_->either({a.index, b.index})};
}

Regex RegexStore::either(std::span<const Regex> parts) {
  std::vector<uint32_t> indices;
  for (Regex part : parts) indices.push_back(part.index);
  return {state_->either(std::move(indices))};
}

Regex RegexStore::both(Regex a, Regex b) {
  return {state_->both({a.index, b.index})};
}
Regex RegexStore::complement(Regex a) {
  return {state_->complement(a.index)};
}

Regex RegexStore::repeat(Regex a, int64_t min, std::optional<int64_t> max) {
  // No text is two gigabytes long, so larger bounds have no effect.
  bool unbounded = !max || *max > std::numeric_limits<int32_t>::max();
  if (max && (*max < 0 || *max < min)) return nothing();
  return {state_->repeat(a.index, bound(min), unbounded ? State::kUnbounded : bound(*max))};
}

Regex RegexStore::text_without(std::span<const std::string> strings) {
  std::vector<Regex> literals;
  for (const std::string& text : strings) literals.push_back(literal(text));
  Regex found = concat(anything(), concat(either(literals), anything()));
  return both(any_text(), complement(found));
}

bool RegexStore::nullable(Regex a) const {
  return state_->nodes[a.index].nullable;
}
bool RegexStore::plain(Regex a) const {
  return state_->nodes[a.index].plain;
}

bool RegexStore::infinite(Regex a) const {
  return state_->nodes[a.index].infinite && !state_->nodes[a.index].open;
}

std::optional<Regex> RegexStore::without_exceptions(Regex a) {
  const State& s = *state_;
  uint32_t index = a.index;
  while (s.nodes[index].kind == State::Kind::kConcat) index = s.nodes[index].a;
  if (s.nodes[index].kind != State::Kind::kBoth) return std::nullopt;
  std::vector<uint32_t> rest;
  for (uint32_t part : s.list(s.nodes[index])) {
    const State::Node& n = s.nodes[part];
    if (n.kind == State::Kind::kNot && s.nodes[n.a].plain) continue;
    if (n.open) return std::nullopt;
    rest.push_back(part);
  }
  if (rest.size() != 1) return std::nullopt;
  return Regex{rest[0]};
}

}  // namespace quire::grammar
