// SPDX-License-Identifier: Apache-2.0
// The walk over the token trie that fills a mask.
#include <algorithm>
#include <bit>
#include <utility>

#include "grammar/matcher_state.h"

namespace quire::grammar {

namespace {

// More ways to go on than this at once are an error; grammars of practice have one or two.
constexpr uint32_t kMaxThreads = 1000;
// Passing over the children of a wide node costs about as much as so many nodes.
constexpr int64_t kFuelPerWideNode = 8;

void set_bit(std::span<uint32_t> mask, uint32_t bit) {
  mask[bit / 32] |= uint32_t{1} << (bit % 32);
}
bool has_bit(std::span<const uint32_t> mask, uint32_t bit) {
  return (mask[bit / 32] >> (bit % 32)) & 1;
}

}  // namespace

Matcher::State::Step Matcher::State::step(uint32_t begin, uint32_t end, uint8_t byte) {
  const uint8_t byte_class = lexer.classes()[byte];
  if (stack.size() < size_t{end} + (end - begin) + 1) stack.resize(2 * stack.size() + (end - begin) + 1);
  Step result{.end = end};
  auto add = [&](uint32_t state, uint32_t row) {
    for (uint32_t i = end; i < result.end; ++i) {
      if (stack[i].state == state && stack[i].row == row) return;
    }
    stack[result.end++] = {lexer.transitions(state), state, row};
  };
  for (uint32_t i = begin; i < end; ++i) {
    uint32_t to = stack[i].next[byte_class].load(std::memory_order_acquire);
    if (to == Lexer::kUnknown) {
      to = lexer.fill(stack[i].state, byte_class, build_fuel);
      if (to == Lexer::kFailed || build_fuel < 0) {
        parser.fail(to == Lexer::kFailed ? Parser::Failure::kLexer : Parser::Failure::kBuild);
        return {.end = end};
      }
    }
    if (to == Lexer::kDead) continue;
    result.alive = true;
    const uint32_t state = to & Lexer::kStateMask, row = stack[i].row;
    if ((to & Lexer::kContinues) != 0) add(state, row);
    if ((to & Lexer::kAccepts) == 0) continue;
    uint32_t next = parser.scan(row, lexer.accepted(state));
    if (next != Parser::kNone && result.here != Parser::kNone) next = parser.merge(result.here, next);
    if (next == Parser::kNone) return {.end = end};
    result.here = next;
  }
  if (result.here != Parser::kNone) {
    uint32_t state = parser.row(result.here).start_state;
    if (state != Lexer::kDead) add(state, result.here);
  }
  if (result.end - end > kMaxThreads) parser.fail(Parser::Failure::kItems);
  return result;
}

void Matcher::State::load(const Position& position) {
  if (stack.size() < position.threads.size()) stack.resize(position.threads.size() + 64);
  for (size_t i = 0; i < position.threads.size(); ++i) {
    const Thread& thread = position.threads[i];
    stack[i] = {lexer.transitions(thread.state), thread.state, thread.row};
  }
}

void Matcher::State::walk(const TokenSlice& slice, uint32_t top, std::span<uint32_t> mask) {
  const std::array<uint8_t, 256>& classes = lexer.classes();
  auto live = [&](uint32_t depth, uint8_t byte) {
    const Level level = levels[depth];
    for (uint32_t i = level.begin; i < level.end; ++i) {
      if (stack[i].next[classes[byte]].load(std::memory_order_acquire) != Lexer::kDead) return true;
    }
    return false;
  };
  for (TrieWalk at(slice, top); at.next(live);) {
    const TrieNode& node = slice.nodes[at.node()];
    const Level from = levels[node.depth - 1u];
    --parser.fuel;
    Level& to = levels[node.depth];
    to.begin = from.end;
    if (from.end - from.begin == 1) {
      // The common case in a few instructions: one thread, and no terminal ends here.
      const WalkThread& thread = stack[from.begin];
      uint32_t next = thread.next[classes[node.byte]].load(std::memory_order_acquire);
      if (next == Lexer::kDead) {
        at.skip();
        continue;
      }
      if ((next & Lexer::kAccepts) == 0) {
        const uint32_t row = thread.row, state = next & Lexer::kStateMask;
        if (stack.size() <= from.end) stack.resize(2 * stack.size() + 1);
        stack[from.end] = {lexer.transitions(state), state, row};
        to.end = from.end + 1;
        if (node.token != TrieNode::kNoToken) set_bit(mask, node.token);
        if (node.wide != 0) parser.fuel -= kFuelPerWideNode;
        at.enter();
        continue;
      }
    }
    if (parser.fuel < 0) return parser.fail(Parser::Failure::kFuel);
    Step next = step(from.begin, from.end, node.byte);
    if (parser.failure() != Parser::Failure::kNone) return;
    if (!next.alive) {
      at.skip();
      continue;
    }
    if (node.token != TrieNode::kNoToken) set_bit(mask, node.token);
    to.end = next.end;
    if (node.wide != 0) parser.fuel -= kFuelPerWideNode;
    if (next.end == to.begin) {
      at.skip();
    } else {
      at.enter();
    }
  }
}

void Matcher::State::allow_tokens(const TokenSet& set, std::span<uint32_t> mask) const {
  std::vector<uint32_t> bits(mask.size());
  for (auto [first, last] : set.ranges) {
    int64_t end = std::min<int64_t>(int64_t{last} + 1, vocabulary.size);
    for (int64_t id = std::max<int64_t>(first, 0); id < end; ++id) set_bit(bits, static_cast<uint32_t>(id));
  }
  for (size_t i = 0; i < mask.size(); ++i) mask[i] |= (set.inverted ? ~bits[i] : bits[i]) & vocabulary.present[i];
}

void Matcher::State::walk_state(uint32_t state, uint32_t slice_index, int reach, StateMask& result) {
  const TokenSlice& slice = vocabulary.slices[slice_index];
  const std::vector<TrieNode>& nodes = slice.nodes;
  const std::vector<uint32_t>& rank = slice.rank;
  const std::array<uint8_t, 256>& classes = lexer.classes();
  size_t skipped = 0;  // tokens below nodes that were not entered, since text of their length is allowed
  struct Open {
    uint32_t exit;   // in result.exits
    size_t allowed;  // before the nodes below it
  };
  std::vector<Open> open;
  // Leaves out exits all of whose tokens are allowed without the parser.
  auto close = [&](uint32_t node) {
    while (!open.empty() && node >= nodes[result.exits[open.back().exit].node].next) {
      const uint32_t at = result.exits[open.back().exit].node;
      const size_t allowed = found.size() + skipped - open.back().allowed;
      if (allowed == rank[nodes[at].next] - rank[at + 1]) result.exits.resize(open.back().exit);
      open.pop_back();
    }
  };
  auto may_go_on = [this] {
    if (build_fuel < 0 && parser.failure() == Parser::Failure::kNone) parser.fail(Parser::Failure::kBuild);
    return parser.failure() == Parser::Failure::kNone;
  };
  // Where a node has many children, most transitions of the state are needed.
  auto prepare_wide = [&](uint32_t at) {
    result.cost += kFuelPerWideNode;
    if (!lexer.fill_all(at, build_fuel)) parser.fail(Parser::Failure::kLexer);
    return may_go_on();
  };
  path[0] = lexer.transitions(state);
  path_states[0] = state;
  if (!prepare_wide(state)) return;
  auto live = [&](uint32_t depth, uint8_t byte) {
    return path[depth][classes[byte]].load(std::memory_order_acquire) != Lexer::kDead;
  };
  for (TrieWalk at(slice); at.next(live);) {
    const uint32_t i = at.node();
    if (!open.empty()) close(i);
    const TrieNode& node = nodes[i];
    ++result.cost;
    if (node.chars <= reach && node.chars != 0 && node.chars != TrieNode::kManyChars) {
      if (node.chars > kMaxCountedChars) {
        for (uint32_t below = i; below < node.next; ++below) {
          if (nodes[below].token != TrieNode::kNoToken) found.push_back(nodes[below].token);
        }
      } else {
        skipped += rank[node.next] - rank[i];
      }
      at.skip();
      continue;
    }
    uint32_t to = path[node.depth - 1u][classes[node.byte]].load(std::memory_order_acquire);
    if (to == Lexer::kUnknown) {
      to = lexer.fill(path_states[node.depth - 1u], classes[node.byte], build_fuel);
      if (to == Lexer::kFailed) parser.fail(Parser::Failure::kLexer);
      if (!may_go_on()) return;
    }
    if (to == Lexer::kDead) {
      at.skip();
      continue;
    }
    if (node.token != TrieNode::kNoToken) found.push_back(node.token);
    const uint32_t next = to & Lexer::kStateMask;
    if ((to & Lexer::kAccepts) != 0 && node.next > i + 1) {
      open.push_back({static_cast<uint32_t>(result.exits.size()), found.size() + skipped});
      result.exits.push_back({slice_index, i, &lexer.accepted(next)});
    }
    if ((to & Lexer::kContinues) == 0) {
      at.skip();
      continue;
    }
    path[node.depth] = lexer.transitions(next);
    path_states[node.depth] = next;
    if (node.wide != 0 && !prepare_wide(next)) return;
    at.enter();
  }
  close(static_cast<uint32_t>(nodes.size()));
}

// A failure is kept like a mask: with what it has left of the automaton, the next try might not fail.
std::shared_ptr<const StateMask> Matcher::State::state_mask(uint32_t state) {
  std::shared_ptr<const StateMask> mask = grammar.state_masks.find(state);
  if (!mask) {
    auto made = std::make_shared<StateMask>();
    const int64_t outside = std::exchange(build_fuel, grammar.limits.fuel_to_build);
    make_state_mask(state, *made);
    states_fuel -= grammar.limits.fuel_to_build - std::exchange(build_fuel, outside);
    made->failure = parser.failure();
    if (made->failure != Parser::Failure::kNone) made->exits.clear();
    grammar.state_masks.insert(state, made);
    mask = std::move(made);
  }
  walk_fuel -= mask->cost;
  if (mask->failure != Parser::Failure::kNone) {
    parser.fail(mask->failure);
  } else if (walk_fuel < 0) {
    parser.fail(Parser::Failure::kFuel);
  } else if (states_fuel < 0) {
    parser.fail(Parser::Failure::kBuild);
  }
  return parser.failure() == Parser::Failure::kNone ? mask : nullptr;
}

void Matcher::State::make_state_mask(uint32_t state, StateMask& result) {
  const Lexer::TextReach reach = lexer.text_reach(state, build_fuel);
  found.clear();
  for (uint32_t i = 0; i < vocabulary.slices.size(); ++i) {
    const TokenSlice& slice = vocabulary.slices[i];
    if (slice.max_chars > 0 && (reach.exact || reach.chars >= slice.max_chars)) continue;
    walk_state(state, i, reach.chars, result);
    if (parser.failure() != Parser::Failure::kNone) return;
  }
  const size_t words = last_mask.size();
  if (reach.chars > 0) {
    const int counted = reach.chars >= kAnyChars ? kMaxCountedChars + 1 : std::min(reach.chars, kMaxCountedChars);
    result.bits = vocabulary.plain_masks[static_cast<size_t>(counted)];
  } else if (found.size() >= words / 4) {
    result.bits.resize(words);
  }
  if (result.bits.empty()) {
    result.tokens.assign(found.begin(), found.end());
  } else {
    for (uint32_t token : found) set_bit(result.bits, token);
  }
}

void Matcher::State::compute_exit(const StateMask::Exit& exit, uint32_t row, std::span<uint32_t> mask) {
  const TokenSlice& slice = vocabulary.slices[exit.slice];
  const TrieNode& node = slice.nodes[exit.node];
  const uint32_t next = parser.scan(row, *exit.lexemes);
  if (next == Parser::kNone) return;
  const uint32_t state = parser.row(next).start_state;
  if (state == Lexer::kDead) return;
  stack[0] = {lexer.transitions(state), state, next};
  levels[node.depth] = {0, 1};
  walk(slice, exit.node, mask);
}

// What may follow several threads is what may follow any of them, so each is looked at alone.
void Matcher::State::compute(std::span<uint32_t> mask) {
  std::ranges::fill(mask, 0);
  const size_t depth = static_cast<size_t>(vocabulary.max_depth) + 1;
  levels.resize(depth);
  path.resize(depth);
  path_states.resize(depth);
  for (const Thread& thread : now.threads) {
    std::shared_ptr<const StateMask> inside = state_mask(thread.state);
    if (!inside) return;
    for (size_t i = 0; i < inside->bits.size(); ++i) mask[i] |= inside->bits[i];
    for (uint32_t token : inside->tokens) set_bit(mask, token);
    for (const StateMask::Exit& exit : inside->exits) {
      compute_exit(exit, thread.row, mask);
      if (parser.failure() != Parser::Failure::kNone) return;
    }
  }
  for (auto [token, same] : vocabulary.duplicates) {
    if (has_bit(mask, same)) set_bit(mask, token);
  }
  if (now.here == Parser::kNone || !parser.row(now.here).has_tokens) return;
  for (const Parser::Item& item : parser.items(now.here)) {
    if (code::kind(item.symbol) == code::kToken) {
      allow_tokens(grammar.productions.token_sets[code::index(item.symbol)], mask);
    }
  }
}

Status Matcher::fill_mask(std::span<uint32_t> mask, std::span<const int32_t> end_tokens) {
  State& s = *state_;
  QUIRE_CHECK(mask.size() == s.compiled->vocabulary().mask_words());
  QUIRE_TRY(s.prepare());
  const RowDigest position = s.digest();
  if (s.last_position != position) {
    s.last_position.reset();
    s.last_mask.resize(mask.size());
    if (!s.grammar.masks.find(position, s.last_mask)) {
      // Cheaper masks are computed again rather than kept.
      constexpr int64_t kWorthKeeping = 2000;
      if (const Parser::Failure known = s.grammar.masks.failure(position); known != Parser::Failure::kNone) {
        s.parser.fail(known);
        return s.failure();
      }
      s.compute(s.last_mask);
      if (const Parser::Failure made = s.parser.failure(); made != Parser::Failure::kNone) {
        // What a sequence has in memory is its own.
        if (made != Parser::Failure::kMemory) s.grammar.masks.insert_failure(position, made);
        return s.failure();
      }
      if (s.grammar.limits.fuel_per_mask - s.parser.fuel > kWorthKeeping) s.grammar.masks.insert(position, s.last_mask);
    }
    s.last_position = position;
  }
  std::ranges::copy(s.last_mask, mask.begin());
  const bool may_end = s.may_end();
  for (int32_t token : end_tokens) {
    if (token < 0 || token >= s.vocabulary.size) continue;
    const uint32_t bit = uint32_t{1} << (token % 32);
    mask[static_cast<size_t>(token) / 32] &= ~bit;
    if (may_end || s.has_token(token, true)) mask[static_cast<size_t>(token) / 32] |= bit;
  }
  return {};
}

}  // namespace quire::grammar
