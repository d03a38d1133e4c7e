// SPDX-License-Identifier: Apache-2.0
// RegexStore: replacing bytes by their spellings, decimal multiples, and a look at leading repetitions.
#include <algorithm>
#include <numeric>
#include <vector>

#include "grammar/regex.h"
#include "grammar/regex_state.h"

namespace quire::grammar {

std::optional<RegexStore::LeadingRepeat> RegexStore::leading_repeat(Regex a) const {
  const State& s = *state_;
  const State::Node& n = s.nodes[a.index];
  if (n.kind != State::Kind::kConcat) return std::nullopt;
  const State::Node& first = s.nodes[n.a];
  if (first.kind != State::Kind::kRepeat || first.c == State::kUnbounded) return std::nullopt;
  return LeadingRepeat{{first.a}, first.c, {n.b}};
}

Regex RegexStore::digits_multiple_of(uint32_t divisor) {
  State& s = *state_;
  if (divisor == 0) return nothing();
  // The digits and the point as sets of their own, which classes() needs.
  if (s.number_sets.empty()) {
    for (const char c : std::string_view("0123456789.")) {
      ByteSet set = ByteSet::of(std::string_view(&c, 1));
      s.number_sets.push_back(s.nodes[s.bytes(set)].a);
    }
  }
  return {s.multiple(divisor, 0)};
}

namespace {

// What decides which digits may follow a remainder. A continuation w of i digits makes a multiple exactly if
// r * 10^i + w is one. Once 10^i has all factors 2 and 5 of the divisor, only the remainder of r by the other factors
// matters; of each shorter length there is one w at most. So 10,000 has 5 kinds of remainders, and not 10,000.
std::vector<uint32_t> continuations(uint32_t divisor, uint32_t remainder) {
  std::vector<uint32_t> out = {divisor};
  uint64_t power = 1;
  uint64_t shifted = remainder;  // r * 10^i modulo the divisor
  uint32_t others = divisor;
  for (uint32_t common = std::gcd(others, 10u); common > 1; common = std::gcd(others, 10u)) {
    const uint64_t wanted = (divisor - shifted) % divisor;
    out.push_back(wanted < power ? static_cast<uint32_t>(wanted) : divisor);
    shifted = shifted * 10 % divisor;
    power = std::min<uint64_t>(power * 10, divisor);
    others /= common;
  }
  out.push_back(remainder % others);
  return out;
}

}  // namespace

uint32_t RegexStore::State::representative(uint32_t divisor, uint32_t remainder) {
  if (std::gcd(divisor, 10u) == 1) return remainder;
  return remainders.try_emplace(continuations(divisor, remainder), remainder).first->second;
}

uint32_t RegexStore::State::multiple(uint32_t divisor, uint32_t remainder) {
  const uint32_t kept = representative(divisor, remainder);
  return intern({.kind = Kind::kMultiple, .nullable = kept == 0, .a = divisor, .b = kept});
}

uint32_t RegexStore::State::derive_multiple(const Node& node, uint8_t byte) {
  if (byte == '.') return multiple(node.a, node.b);
  if (byte < '0' || byte > '9') return kNothing;
  return multiple(node.a, static_cast<uint32_t>((uint64_t{node.b} * 10 + (byte - '0')) % node.a));
}

namespace {

// The parts of a node, in any order.
void append_parts(const RegexStore::State& s, uint32_t index, std::vector<uint32_t>& out) {
  using Kind = RegexStore::State::Kind;
  const RegexStore::State::Node& n = s.nodes[index];
  switch (n.kind) {
    case Kind::kConcat:
      out.push_back(n.a);
      out.push_back(n.b);
      break;
    case Kind::kEither:
    case Kind::kBoth:
      for (const uint32_t part : s.list(n)) out.push_back(part);
      break;
    case Kind::kNot:
    case Kind::kRepeat:
      out.push_back(n.a);
      break;
    default:
      break;
  }
}

}  // namespace

Regex RegexStore::replace_bytes(Regex a, std::span<const std::pair<uint8_t, Regex>> images) {
  State& s = *state_;
  std::vector<uint32_t> pending = {a.index}, order;
  std::unordered_map<uint32_t, uint32_t> image;
  while (!pending.empty()) {
    const uint32_t index = pending.back();
    pending.pop_back();
    if (!image.emplace(index, State::kNothing).second) continue;
    order.push_back(index);
    append_parts(s, index, pending);
  }
  std::sort(order.begin(), order.end());  // parts come before what they are part of
  auto replaced = [&](const ByteSet& set) {
    ByteSet kept = set;
    std::vector<uint32_t> options;
    for (const auto& [byte, regex] : images) {
      if (!set.has(byte)) continue;
      kept = kept & ~ByteSet::range(byte, byte);
      options.push_back(regex.index);
    }
    if (options.empty()) return s.bytes(set);
    options.push_back(s.bytes(kept));
    return s.either(std::move(options));
  };
  const uint32_t every = s.repeat(replaced(ByteSet::all()), 0, State::kUnbounded);
  for (const uint32_t index : order) {
    if (s.full) return nothing();
    const State::Node n = s.nodes[index];
    uint32_t result = index;
    std::vector<uint32_t> parts;
    switch (n.kind) {
      case State::Kind::kBytes:
        result = replaced(s.sets[n.a]);
        break;
      case State::Kind::kConcat:
        result = s.concat(image[n.a], image[n.b]);
        break;
      case State::Kind::kEither:
      case State::Kind::kBoth:
        for (uint32_t i = 0; i < n.b; ++i) parts.push_back(image[s.lists[n.a + i]]);
        result = n.kind == State::Kind::kEither ? s.either(std::move(parts)) : s.both(std::move(parts));
        break;
      case State::Kind::kNot:
        result = s.both({s.complement(image[n.a]), every});
        break;
      case State::Kind::kRepeat:
        result = s.repeat(image[n.a], n.b, n.c);
        break;
      default:
        break;
    }
    image[index] = result;
  }
  return {image[a.index]};
}

}  // namespace quire::grammar
