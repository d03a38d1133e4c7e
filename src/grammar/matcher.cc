// SPDX-License-Identifier: Apache-2.0
// Matcher: positions, accepting tokens and taking them back.
#include "grammar/matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "grammar/matcher_state.h"

namespace quire::grammar {

namespace {

// A mask may be made from those of several states of the lexer. So many of the most expensive ones are allowed, and so
// many times a mask's own steps for the walks behind them. A batch waits for a mask: both together take half a second.
constexpr int64_t kStatesPerMask = 2;
constexpr int64_t kWalksPerMask = 4;

}  // namespace

Matcher::State::State(std::shared_ptr<const CompiledGrammar> compiled_grammar)
    : compiled(std::move(compiled_grammar)),
      grammar(compiled->parts()),
      vocabulary(compiled->vocabulary().parts()),
      lexer(*grammar.lexer),
      parser(grammar.productions, lexer, grammar.limits),
      collect_at(grammar.limits.max_bytes / 2),
      stack(64) {
  parser.fuel = grammar.limits.fuel_per_mask;
  uint32_t row = parser.first();
  usable = row != Parser::kNone;
  if (usable) now = at_row(row);
}

Matcher::Matcher(std::shared_ptr<const CompiledGrammar> grammar)
    : state_(std::make_unique<State>(std::move(grammar))) {}
Matcher::~Matcher() = default;

Position Matcher::State::at_row(uint32_t row) const {
  Position position;
  position.here = row;
  uint32_t state = parser.row(row).start_state;
  if (state != Lexer::kDead) position.threads.push_back({state, row});
  return position;
}

Status Matcher::State::failure() const {
  switch (parser.failure()) {
    case Parser::Failure::kNone:
      return {};
    case Parser::Failure::kFuel:
      return unsupported(
          "The constraint is too expensive: finding the next allowed tokens takes too many steps; make it simpler, for "
          "example with fewer alternatives.");
    case Parser::Failure::kItems:
      return unsupported(
          "The constraint is too ambiguous: there are too many ways to go on at once; make it simpler, for example "
          "with "
          "fewer alternatives or optional members.");
    case Parser::Failure::kMemory:
      return unsupported("The constraint needs too much memory for this text; make it simpler, or the text shorter.");
    case Parser::Failure::kLexer:
      return unsupported(
          "The regular expressions of the constraint are too complex: their automaton is too large; make patterns "
          "simpler, and counts and divisors (multipleOf) smaller.");
    case Parser::Failure::kBuild:
      return unsupported(
          "The constraint is too expensive: the automaton of its regular expressions takes too long to make; make "
          "patterns simpler, and counts and divisors (multipleOf) smaller.");
  }
  return {};
}

// Refills the fuel, and drops rows that are no longer needed once there are many.
Status Matcher::State::prepare() {
  if (!usable) return failure();
  parser.clear_failure();
  parser.fuel = grammar.limits.fuel_per_mask;
  build_fuel = grammar.limits.fuel_to_build;
  states_fuel = kStatesPerMask * grammar.limits.fuel_to_build;
  walk_fuel = kWalksPerMask * grammar.limits.fuel_per_mask;
  if (parser.bytes() > collect_at) {
    std::vector<uint32_t*> roots;
    auto add = [&roots](Position& position) {
      roots.push_back(&position.here);
      for (Thread& thread : position.threads) roots.push_back(&thread.row);
    };
    add(now);
    for (Position& position : history) add(position);
    parser.collect(roots);
    collect_at = std::max(collect_at, parser.bytes() + parser.bytes() / 4);
  }
  return {};
}

RowDigest Matcher::State::digest() const {
  RowDigest sum;
  auto add = [&](uint64_t low, uint64_t high) {
    low = (low ^ (low >> 29)) * 0xBF58476D1CE4E5B9u;
    high = (high ^ (high >> 31)) * 0x94D049BB133111EBu;
    sum.low += low ^ (low >> 32);
    sum.high += high ^ (high >> 32);
  };
  for (const Thread& thread : now.threads) {
    const RowDigest& row = parser.row(thread.row).digest;
    uint64_t state = (uint64_t{thread.state} + 1) * 0x9E3779B97F4A7C15u;
    add(row.low ^ state, row.high + state);
  }
  if (now.here != Parser::kNone) add(parser.row(now.here).digest.low, parser.row(now.here).digest.high);
  return sum;
}

void Matcher::State::push(Position position) {
  history.push_back(std::exchange(now, std::move(position)));
  if (history.size() > static_cast<size_t>(kMaxRollback)) history.pop_front();
}

Position Matcher::State::position_after(std::string_view bytes, const Position& from, bool& alive) {
  load(from);
  Step last{.alive = true, .end = static_cast<uint32_t>(from.threads.size()), .here = from.here};
  uint32_t begin = 0;
  for (char byte : bytes) {
    if (parser.fuel < 0) parser.fail(Parser::Failure::kFuel);
    if (parser.failure() != Parser::Failure::kNone) break;
    uint32_t end = last.end;
    last = step(begin, end, static_cast<uint8_t>(byte));
    if (!last.alive) break;
    // The new threads take the place of the old ones.
    std::copy(stack.begin() + end, stack.begin() + last.end, stack.begin());
    last.end -= end;
  }
  alive = last.alive && parser.failure() == Parser::Failure::kNone;
  Position result;
  if (!alive) return result;
  result.here = last.here;
  for (uint32_t i = 0; i < last.end; ++i) result.threads.push_back({stack[i].state, stack[i].row});
  return result;
}

bool Matcher::State::has_token(int32_t token, bool end_token) const {
  if (now.here == Parser::kNone || !parser.row(now.here).has_tokens) return false;
  return std::ranges::any_of(parser.items(now.here), [&](const Parser::Item& item) {
    return code::kind(item.symbol) == code::kToken &&
           matches(grammar.productions.token_sets[code::index(item.symbol)], token, end_token);
  });
}

Status Matcher::accept(int32_t token, std::span<const int32_t> end_tokens) {
  State& s = *state_;
  QUIRE_TRY(s.prepare());
  auto refused = [token] { return invalid_argument({"Token ", token, " is not allowed here by the constraint."}); };
  if (token < 0 || token >= s.vocabulary.size) return refused();
  const Vocabulary::Token& info = s.vocabulary.tokens[static_cast<size_t>(token)];
  const bool end_token = std::ranges::find(end_tokens, token) != end_tokens.end();
  Position next;
  bool alive = false;
  if (!info.bytes.empty() && s.has_token(token, end_token)) {
    uint32_t row = s.parser.scan_token(s.now.here, token, end_token);
    if (row == Parser::kNone) return s.failure();
    next = s.at_row(row);
    alive = true;
  } else if (end_token) {
    if (!s.may_end()) return refused();
    s.push(s.now);
    return {};
  }
  if (!info.special && !info.bytes.empty() && !end_token) {
    bool by_bytes = false;
    Position position = s.position_after(info.bytes, s.now, by_bytes);
    if (s.parser.failure() != Parser::Failure::kNone) return s.failure();
    if (by_bytes && !alive) {
      next = std::move(position);
    } else if (by_bytes) {
      // Both ways are possible: by its id and by its bytes.
      uint32_t row = position.here == Parser::kNone ? next.here : s.parser.merge(next.here, position.here);
      if (row == Parser::kNone) return s.failure();
      next = s.at_row(row);
      for (const Thread& thread : position.threads) {
        bool known = std::ranges::find(next.threads, thread) != next.threads.end();
        if (!known && thread.row != position.here) next.threads.push_back(thread);
      }
    }
    alive = alive || by_bytes;
  }
  if (!alive) return refused();
  s.push(std::move(next));
  return {};
}

bool Matcher::accept_bytes(std::string_view bytes) {
  State& s = *state_;
  if (!s.prepare().ok()) return false;
  bool alive = false;
  Position next = s.position_after(bytes, s.now, alive);
  if (alive) s.push(std::move(next));
  return alive;
}

void Matcher::rollback(int64_t count) {
  State& s = *state_;
  QUIRE_CHECK(count >= 0 && count <= static_cast<int64_t>(s.history.size()));
  if (count == 0) return;
  s.now = std::move(s.history[s.history.size() - static_cast<size_t>(count)]);
  s.history.resize(s.history.size() - static_cast<size_t>(count));
}

bool Matcher::may_end() const {
  return state_->may_end();
}

bool Matcher::is_over() const {
  State& s = *state_;
  if (!s.may_end() || s.parser.row(s.now.here).has_tokens) return false;
  int64_t fuel = s.grammar.limits.fuel_to_build;
  for (const Thread& thread : s.now.threads) {
    const std::atomic<uint32_t>* next = s.lexer.transitions(thread.state);
    for (int c = 0; c < s.lexer.class_count(); ++c) {
      uint32_t to = next[c].load(std::memory_order_acquire);
      if (to == Lexer::kUnknown) to = s.lexer.fill(thread.state, static_cast<uint8_t>(c), fuel);
      if (to != Lexer::kDead) return false;
    }
  }
  return true;
}

std::string Matcher::forced_bytes(size_t max) {
  State& s = *state_;
  std::string result;
  if (!s.prepare().ok()) return result;
  Position at = s.now;
  while (result.size() < max) {
    if (at.here != Parser::kNone && (s.parser.row(at.here).complete || s.parser.row(at.here).has_tokens)) break;
    int forced = -1;
    bool several = false;
    for (const Thread& thread : at.threads) {
      const std::atomic<uint32_t>* next = s.lexer.transitions(thread.state);
      for (int byte = 0; byte < 256 && !several; ++byte) {
        const uint8_t c = s.lexer.classes()[static_cast<size_t>(byte)];
        uint32_t to = next[c].load(std::memory_order_acquire);
        if (to == Lexer::kUnknown) to = s.lexer.fill(thread.state, c, s.build_fuel);
        if (to == Lexer::kDead) continue;
        several = to == Lexer::kFailed || (forced >= 0 && forced != byte) || s.build_fuel < 0;
        forced = byte;
      }
    }
    if (forced < 0 || several) break;
    const char byte = static_cast<char>(forced);
    bool alive = false;
    at = s.position_after({&byte, 1}, at, alive);
    if (!alive) break;
    result += byte;
  }
  return result;
}

void Matcher::forced_tokens(size_t most, std::vector<int32_t>& tokens) {
  constexpr size_t kMaxTokenBytes = 8;  // a guess of how many bytes `most` tokens have; more of them cost time
  const std::string bytes = forced_bytes(kMaxTokenBytes * most);
  std::string_view rest = bytes;
  const Vocabulary& vocabulary = *state_->grammar.vocabulary;
  while (!rest.empty() && most-- > 0) {
    const int32_t token = vocabulary.longest_prefix(rest);
    if (token < 0) return;
    tokens.push_back(token);
    rest.remove_prefix(vocabulary.token(token).bytes.size());
  }
}

}  // namespace quire::grammar
