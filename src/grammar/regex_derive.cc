// SPDX-License-Identifier: Apache-2.0
// Derivatives of regular expressions, and the questions that are answered by exploring them.
#include <algorithm>
#include <deque>
#include <utility>

#include "grammar/regex.h"
#include "grammar/regex_state.h"

namespace quire::grammar {

uint32_t RegexStore::State::derive(uint32_t index, uint8_t byte, int depth) {
  const Node n = nodes[index];
  if (n.kind == Kind::kNothing || n.kind == Kind::kEmpty) return kNothing;
  if (n.kind == Kind::kBytes) return sets[n.a].has(byte) ? kEmpty : kNothing;
  if (n.kind == Kind::kConcat && nodes[n.a].kind == Kind::kBytes) {
    return sets[nodes[n.a].a].has(byte) ? n.b : kNothing;
  }
  ++work;
  if (depth > kMaxDepth) full = true;
  if (full) return kNothing;
  uint64_t key = uint64_t{index} * 256 + byte;
  if (const uint32_t* known = derived.find(key)) return *known;
  uint32_t result = kNothing;
  std::vector<uint32_t> parts;
  switch (n.kind) {
    case Kind::kConcat:
      result = derive_concat(index, byte, depth);
      break;
    case Kind::kEither:
    case Kind::kBoth:
      parts.reserve(n.b);
      for (uint32_t i = 0; i < n.b; ++i) {
        uint32_t part = derive(lists[n.a + i], byte, depth + 1);
        if (part != kNothing || n.kind == Kind::kBoth) parts.push_back(part);
      }
      work += n.b / 4;
      result = n.kind == Kind::kEither ? either(std::move(parts)) : both(std::move(parts));
      break;
    case Kind::kNot:
      result = complement(derive(n.a, byte, depth + 1));
      break;
    case Kind::kRepeat: {
      uint32_t first = derive(n.a, byte, depth + 1);
      if (first == kNothing) break;
      result = concat(first, repeat(n.a, n.b == 0 ? 0 : n.b - 1, n.c == kUnbounded ? kUnbounded : n.c - 1));
      break;
    }
    case Kind::kMultiple:
      result = derive_multiple(n, byte);
      break;
    default:
      break;
  }
  if (full) return kNothing;
  if (derived.size() > 4 * max_nodes) derived.clear();
  if (derived.find(key) == nullptr) derived.insert(key, result);
  return result;
}

// One alternative for each part that the parts before it allow to be first.
uint32_t RegexStore::State::derive_concat(uint32_t index, uint8_t byte, int depth) {
  std::vector<uint32_t> alternatives;
  for (;; ++work) {
    const Node n = nodes[index];
    if (n.kind != Kind::kConcat) {
      alternatives.push_back(derive(index, byte, depth + 1));
      break;
    }
    if (uint32_t first = derive(n.a, byte, depth + 1); first != kNothing) alternatives.push_back(concat(first, n.b));
    if (!nodes[n.a].nullable) break;
    index = n.b;
  }
  return alternatives.size() == 1 ? alternatives[0] : either(std::move(alternatives));
}

Regex RegexStore::derivative(Regex a, uint8_t byte) {
  return {state_->derive(a.index, byte)};
}

namespace {

// Splits the classes so that no class has bytes both inside and outside of the set.
void refine(RegexStore::ByteClasses& classes, const ByteSet& set) {
  std::array<int, 256> inside, outside;
  std::fill_n(inside.begin(), classes.count, -1);
  std::fill_n(outside.begin(), classes.count, -1);
  int count = 0;
  for (int byte = 0; byte < 256; ++byte) {
    auto i = static_cast<size_t>(byte);
    int& target = set.has(static_cast<uint8_t>(byte)) ? inside[classes.of[i]] : outside[classes.of[i]];
    if (target < 0) target = count++;
    classes.of[i] = static_cast<uint8_t>(target);
  }
  classes.count = count;
}

}  // namespace

std::vector<const ByteSet*> RegexStore::first_sets(std::span<const Regex> expressions) {
  State& s = *state_;
  std::vector<uint32_t> pending, sets;
  for (Regex expression : expressions) pending.push_back(expression.index);
  ++s.visit;
  s.visited.resize(s.nodes.size());
  while (!pending.empty()) {
    uint32_t index = pending.back();
    pending.pop_back();
    if (std::exchange(s.visited[index], s.visit) == s.visit) continue;
    const State::Node& n = s.nodes[index];
    ++s.work;
    switch (n.kind) {
      case State::Kind::kBytes:
        sets.push_back(n.a);
        break;
      case State::Kind::kConcat:
        pending.push_back(n.a);
        if (s.nodes[n.a].nullable) pending.push_back(n.b);
        break;
      case State::Kind::kEither:
      case State::Kind::kBoth:
        for (uint32_t part : s.list(n)) pending.push_back(part);
        break;
      case State::Kind::kNot:
      case State::Kind::kRepeat:
        pending.push_back(n.a);
        break;
      case State::Kind::kMultiple:
        sets.insert(sets.end(), s.number_sets.begin(), s.number_sets.end());
        break;
      default:
        break;
    }
  }
  std::ranges::sort(sets);
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  std::vector<const ByteSet*> result;
  for (uint32_t set : sets) result.push_back(&s.sets[set]);
  return result;
}

RegexStore::ByteClasses RegexStore::classes(Regex a) {
  ByteClasses result;
  for (const ByteSet* set : first_sets(std::span(&a, 1))) refine(result, *set);
  return result;
}

RegexStore::ByteClasses RegexStore::all_classes(std::span<const Regex> expressions) const {
  const State& s = *state_;
  std::vector<bool> seen(s.nodes.size()), used(s.sets.size());
  std::vector<uint32_t> pending;
  auto visit = [&](uint32_t index) {
    if (!seen[index]) pending.push_back(index);
    seen[index] = true;
  };
  for (Regex expression : expressions) visit(expression.index);
  while (!pending.empty()) {
    const State::Node& n = s.nodes[pending.back()];
    pending.pop_back();
    if (n.kind == State::Kind::kBytes) used[n.a] = true;
    if (n.kind == State::Kind::kMultiple) {
      for (const uint32_t set : s.number_sets) used[set] = true;
    }
    if (n.kind == State::Kind::kEither || n.kind == State::Kind::kBoth) {
      for (uint32_t part : s.list(n)) visit(part);
    } else if (n.kind == State::Kind::kConcat) {
      visit(n.a);
      visit(n.b);
    } else if (n.kind == State::Kind::kNot || n.kind == State::Kind::kRepeat) {
      visit(n.a);
    }
  }
  ByteClasses result;
  for (size_t i = 0; i < used.size() && result.count < 256; ++i) {
    if (used[i]) refine(result, s.sets[i]);
  }
  return result;
}

// Sequences and alternatives are decided by their parts; only intersections and complements must be explored.
std::optional<bool> RegexStore::is_nothing(Regex a, int64_t fuel) {
  return is_nothing_in_parts(a, fuel, 0);
}

std::optional<bool> RegexStore::is_nothing_in_parts(Regex a, int64_t fuel, int depth) {
  constexpr int kMaxParts = 100;
  State& s = *state_;
  const State::Node n = s.nodes[a.index];
  if (n.nullable || n.emptiness == State::Emptiness::kSome || (!n.open && a.index != State::kNothing)) return false;
  if (a.index == State::kNothing || n.emptiness == State::Emptiness::kNone) return true;
  std::optional<bool> out;
  if (depth > kMaxParts) return explore_nothing(a, fuel);
  if (n.kind == State::Kind::kConcat) {
    out = false;
    uint32_t part = a.index;
    while (true) {
      const State::Node here = s.nodes[part];
      const bool last = here.kind != State::Kind::kConcat;
      const std::optional<bool> none = is_nothing_in_parts({last ? part : here.a}, fuel, depth + 1);
      if (none == true) {
        out = true;
        break;
      }
      if (!none) out.reset();
      if (last) break;
      part = here.b;
    }
  } else if (n.kind == State::Kind::kEither) {
    out = true;
    for (uint32_t i = 0; i < n.b && out != false; ++i) {
      const std::optional<bool> none = is_nothing_in_parts({s.lists[n.a + i]}, fuel, depth + 1);
      if (none == false) {
        out = false;
      } else if (!none) {
        out.reset();
      }
    }
  } else if (n.kind == State::Kind::kRepeat) {
    out = is_nothing_in_parts({n.a}, fuel, depth + 1);  // at least once, or it would be nullable
  } else if (const std::optional<Regex> base = n.kind == State::Kind::kBoth ? without_exceptions(a) : std::nullopt;
             base && infinite(*base)) {
    out = false;  // finitely many strings are taken from infinitely many
  } else {
    return explore_nothing(a, fuel);
  }
  if (out) s.nodes[a.index].emptiness = *out ? State::Emptiness::kNone : State::Emptiness::kSome;
  return out;
}

std::optional<bool> RegexStore::explore_nothing(Regex a, int64_t fuel) {
  State& s = *state_;
  struct Visit {
    uint32_t index;
    uint32_t parent;  // position in `visits`
  };
  std::vector<Visit> visits;
  std::deque<uint32_t> pending;
  std::unordered_map<uint32_t, bool> seen;
  // Depth first reaches the end of long texts soon. Where ends are rare and texts bounded, as with multiples of 7,992,
  // it stays among the last bytes; then the nearest states are explored with as much fuel again.
  bool depth_first = true;
  const int64_t again = fuel;
  auto some = [&s](uint32_t index) {
    const State::Node& n = s.nodes[index];
    return n.nullable || n.emptiness == State::Emptiness::kSome || (!n.open && index != State::kNothing);
  };
  auto none = [&s](uint32_t index) {
    return index == State::kNothing || s.nodes[index].emptiness == State::Emptiness::kNone;
  };
  if (some(a.index)) return false;
  if (none(a.index)) return true;
  visits.push_back({a.index, 0});
  pending.push_back(0);
  seen.emplace(a.index, true);
  while (!pending.empty()) {
    const uint32_t position = depth_first ? pending.back() : pending.front();
    depth_first ? pending.pop_back() : pending.pop_front();
    ByteClasses bytes = classes({visits[position].index});
    for (int byte = 0, next = 0; byte < 256 && next < bytes.count; ++byte) {
      if (bytes.of[static_cast<size_t>(byte)] != next) continue;
      ++next;
      if (--fuel < 0) {
        if (!depth_first) return std::nullopt;
        depth_first = false;
        fuel = again;
      }
      uint32_t found = s.derive(visits[position].index, static_cast<uint8_t>(byte));
      if (s.full) return std::nullopt;
      if (none(found) || !seen.emplace(found, true).second) continue;
      if (some(found)) {
        for (uint32_t i = position;; i = visits[i].parent) {
          s.nodes[visits[i].index].emptiness = State::Emptiness::kSome;
          if (i == 0) return false;
        }
      }
      visits.push_back({found, position});
      pending.push_back(static_cast<uint32_t>(visits.size() - 1));
    }
  }
  for (const Visit& visit : visits) s.nodes[visit.index].emptiness = State::Emptiness::kNone;
  return true;
}

std::optional<bool> RegexStore::contained(Regex a, Regex b, int64_t fuel) {
  return is_nothing(both(a, complement(b)), fuel);
}

bool RegexStore::matches(Regex a, std::string_view text) {
  for (char byte : text) a = derivative(a, static_cast<uint8_t>(byte));
  return nullable(a);
}

}  // namespace quire::grammar
