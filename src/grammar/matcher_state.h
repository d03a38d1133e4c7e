// SPDX-License-Identifier: Apache-2.0
// The state of a Matcher, private to matcher.cc and mask.cc.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/compiled_grammar.h"
#include "grammar/token_trie.h"

namespace quire::grammar {

// One way in which the bytes after the last end of a terminal may go on: the terminal began at `row`, and the lexer has
// come to `state` since.
struct Thread {
  uint32_t state = 0;
  uint32_t row = 0;
  bool operator==(const Thread&) const = default;
};

// A position in the text: all ways to go on, and the row of the parser if a terminal may have ended right here.
struct Position {
  std::vector<Thread> threads;
  uint32_t here = Parser::kNone;
};

struct Matcher::State {
  explicit State(std::shared_ptr<const CompiledGrammar> compiled_grammar);

  // Threads of several positions on the way down the trie: those of a node lie behind those of its parent.
  struct WalkThread {
    const std::atomic<uint32_t>* next;  // the lexer's transitions of `state`
    uint32_t state;
    uint32_t row;
  };
  struct Step {
    bool alive = false;             // the text may go on after the byte, or end with it
    uint32_t end = 0;               // the new threads are stack[begin of the step, end)
    uint32_t here = Parser::kNone;  // the row if a terminal may end with the byte
  };
  // Advances stack[begin, end) by a byte, and writes the new threads to stack[end, step.end).
  Step step(uint32_t begin, uint32_t end, uint8_t byte);
  void load(const Position& position);
  Position position_after(std::string_view bytes, const Position& from, bool& alive);
  Position at_row(uint32_t row) const;

  Status prepare();
  Status failure() const;
  RowDigest digest() const;
  void push(Position position);
  void compute(std::span<uint32_t> mask);
  // Adds the tokens below a node of the trie, whose byte was the last one of a terminal.
  void compute_exit(const StateMask::Exit& exit, uint32_t row, std::span<uint32_t> mask);
  // The nodes below `top`, whose threads are in levels.
  void walk(const TokenSlice& slice, uint32_t top, std::span<uint32_t> mask);
  std::shared_ptr<const StateMask> state_mask(uint32_t state);
  void make_state_mask(uint32_t state, StateMask& result);
  // Appends the tokens of one slice to `found`, without the parser, and the exits to the result. Plain text of `reach`
  // characters is known to be allowed, so that tokens of that length may be left out up to kMaxCountedChars.
  void walk_state(uint32_t state, uint32_t slice, int reach, StateMask& result);
  void allow_tokens(const TokenSet& set, std::span<uint32_t> mask) const;
  // Whether the grammar has this token here by its id.
  bool has_token(int32_t token, bool end_token) const;
  bool may_end() const { return now.here != Parser::kNone && parser.row(now.here).complete; }

  std::shared_ptr<const CompiledGrammar> compiled;
  CompiledGrammar::Parts& grammar;
  const Vocabulary::Parts& vocabulary;
  Lexer& lexer;
  Parser parser;
  Position now;
  bool usable = false;
  // Beside the parser's fuel, for each call that may need them: for the automaton, for the automata of all state masks
  // of one mask, and for the walks of state masks, which are charged whether or not they are remembered.
  int64_t build_fuel = 0, states_fuel = 0, walk_fuel = 0;
  size_t collect_at;             // bytes of the parser at which prepare() drops rows
  std::deque<Position> history;  // before each of the last steps
  std::vector<WalkThread> stack;
  struct Level {
    uint32_t begin = 0, end = 0;
  };
  std::vector<Level> levels;                       // by depth in the trie: the threads in the stack
  std::vector<const std::atomic<uint32_t>*> path;  // by depth in the trie: the lexer's transitions, in walk_state()
  std::vector<uint32_t> path_states;
  std::vector<uint32_t> found;  // the tokens of a state mask, in state_mask()
  // The last mask without end tokens, and the position that it is for.
  std::vector<uint32_t> last_mask;
  std::optional<RowDigest> last_position;
};

}  // namespace quire::grammar
