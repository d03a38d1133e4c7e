// SPDX-License-Identifier: Apache-2.0
// The parts of a CompiledGrammar, private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/earley.h"
#include "grammar/lexer.h"
#include "grammar/matcher.h"
#include "grammar/productions.h"

namespace quire::grammar {

// Masks that were expensive to compute, by the digest of the position in the grammar, so that sequences of the same
// grammar share them. End tokens are not part of them. Any thread.
class MaskCache {
 public:
  // Whether it has a mask for the position; copies it.
  bool find(const RowDigest& position, std::span<uint32_t> mask) const;
  void insert(const RowDigest& position, std::span<const uint32_t> mask);
  // Positions whose masks cost too much. A mask that failed leaves parts of the automaton behind, with which it might
  // work the next time: so that a request does not fail only once, failures are kept.
  Parser::Failure failure(const RowDigest& position) const;
  void insert_failure(const RowDigest& position, Parser::Failure failure);
  size_t bytes() const;

 private:
  static constexpr size_t kMaxBytes = size_t{16} << 20;
  static constexpr size_t kMaxFailures = 10'000;
  struct Entry {
    uint64_t high;
    std::vector<uint32_t> mask;
  };
  struct FailureEntry {
    uint64_t high;
    Parser::Failure failure;
  };
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::unordered_map<uint64_t, FailureEntry> failures_;
  size_t bytes_ = 0;
};

// The part of a mask that follows from a state of the lexer alone, whatever the parser knows.
struct StateMask {
  // Tokens all of whose bytes lie in one terminal, which may end with the last of them: as bits or, if they are few, as
  // a list.
  std::vector<uint32_t> bits;
  std::vector<uint32_t> tokens;
  // Nodes of the trie with whose byte a terminal may end inside of tokens that are not all allowed already: there the
  // parser has to say what may follow.
  struct Exit {
    uint32_t slice;
    uint32_t node;
    const LexemeSet* lexemes;
  };
  std::vector<Exit> exits;
  int64_t cost = 0;  // nodes of the trie that were visited, which every use of the mask is charged for
  Parser::Failure failure = Parser::Failure::kNone;  // the automaton was too expensive: no tokens, no exits
  size_t bytes() const {
    return sizeof(StateMask) + (bits.size() + tokens.size()) * sizeof(uint32_t) + exits.size() * sizeof(Exit);
  }
};

// State masks by state. Any thread.
class StateMasks {
 public:
  std::shared_ptr<const StateMask> find(uint32_t state) const;
  void insert(uint32_t state, std::shared_ptr<const StateMask> mask);
  size_t bytes() const;

 private:
  static constexpr size_t kMaxBytes = size_t{16} << 20;
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, std::shared_ptr<const StateMask>> entries_;
  size_t bytes_ = 0;
};

struct CompiledGrammar::Parts {
  std::shared_ptr<const Vocabulary> vocabulary;
  MatcherLimits limits;
  Productions productions;
  std::unique_ptr<Lexer> lexer;
  MaskCache masks;
  StateMasks state_masks;
};

}  // namespace quire::grammar
