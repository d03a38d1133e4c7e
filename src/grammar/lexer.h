// SPDX-License-Identifier: Apache-2.0
// Lexer: the automaton of a grammar's terminals ("lexemes"), built from derivatives as it is used.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/flat_map.h"
#include "grammar/regex.h"
#include "grammar/token_trie.h"

namespace quire::grammar {

// A set of lexemes; equal sets of one lexer have equal ids.
struct LexemeSet {
  uint32_t id = 0;
  std::vector<uint32_t> lexemes;  // sorted
};

// A state is a set of lexemes that may still end in a match, each with the expression of what must follow. States are
// never removed. Any thread may call any function: transitions that are known are read without a lock, and one lock
// guards everything that makes new ones.
class Lexer {
 public:
  // A transition: the next state in the low 30 bits, and what is known of it.
  static constexpr uint32_t kStateMask = 0x3FFFFFFF;
  static constexpr uint32_t kContinues = 0x40000000;  // a lexeme may go on after this byte
  static constexpr uint32_t kAccepts = 0x80000000;    // a lexeme may end with this byte: accepted()
  static constexpr uint32_t kDead = 0;                // no lexeme has this byte here
  static constexpr uint32_t kUnknown = 0xFFFFFFFF;    // not computed yet: call fill()
  static constexpr uint32_t kFailed = 0xFFFFFFFE;     // only from fill() and start(): over a limit

  // Takes the store, whose expressions the lexemes are.
  Lexer(RegexStore store, std::vector<Regex> lexemes, int64_t max_states);
  ~Lexer();

  const std::array<uint8_t, 256>& classes() const { return classes_.of; }
  int class_count() const { return classes_.count; }
  uint8_t first_byte(int byte_class) const { return first_byte_[static_cast<size_t>(byte_class)]; }

  // The state in which each of these lexemes may begin, or kDead if there is none, or kFailed.
  // REQUIRES: lexemes is sorted.
  uint32_t start(std::span<const uint32_t> lexemes, int64_t& fuel);
  // The transitions of a state by byte class; read them with memory_order_acquire.
  const std::atomic<uint32_t>* transitions(uint32_t state) const {
    const Chunk& chunk = *chunks_[state / kChunk].load(std::memory_order_acquire);
    return chunk.next.get() + static_cast<size_t>(state % kChunk) * static_cast<size_t>(classes_.count);
  }
  // Computes a transition that is unknown. The steps of work are taken from the fuel.
  uint32_t fill(uint32_t state, uint8_t byte_class, int64_t& fuel);
  // Computes all transitions of a state, which is cheaper than one by one since most are the same. False: over a limit.
  bool fill_all(uint32_t state, int64_t& fuel);
  // The lexemes that end with the byte that led to this state. REQUIRES: that transition has kAccepts.
  const LexemeSet& accepted(uint32_t state) const {
    return *chunks_[state / kChunk].load(std::memory_order_acquire)->info[state % kChunk].accepted;
  }
  // Any plain text (see token_trie.h) of at most so many characters may follow a state; kAnyChars: of any length. If
  // that is exact, no longer one may, and no lexeme ends in it; then there are at most kMaxCountedChars.
  struct TextReach {
    int chars = 0;
    bool exact = false;
  };
  TextReach text_reach(uint32_t state, int64_t& fuel);

  size_t bytes() const;

 private:
  static constexpr uint32_t kChunk = 256;
  static constexpr int kMaxReach = 30;
  struct Part {
    uint32_t lexeme;
    uint32_t regex;
    bool operator==(const Part&) const = default;
  };
  struct Info {
    const LexemeSet* accepted = nullptr;
    uint32_t flags = 0;
    std::atomic<int32_t> reach{-1};   // the characters, or -2 less these if that is exact; -1: not known yet
    std::atomic<bool> filled{false};  // all transitions are known
    uint32_t begin = 0, count = 0;    // in parts_
  };
  struct Chunk {
    std::unique_ptr<std::atomic<uint32_t>[]> next;
    std::array<Info, kChunk> info;
  };

  Info& info(uint32_t state) const { return chunks_[state / kChunk].load()->info[state % kChunk]; }
  // All of these need the lock.
  uint32_t intern(std::span<const Part> parts);
  const LexemeSet* intern_set(std::vector<uint32_t> lexemes);
  uint32_t fill_locked(uint32_t state, uint8_t byte_class);
  // Whether the expression matches any string; nothing: could not be found out.
  std::optional<bool> alive(Regex regex);
  // What plain characters lead to.
  struct AfterChar {
    enum class Allowed : uint8_t { kAll, kSome, kNone };
    Allowed allowed = Allowed::kAll;
    bool ends_inside = false;      // a lexeme may end before the last byte of a character
    bool ends_after = false;       // or with it
    std::vector<uint32_t> states;  // if all are allowed
  };
  const AfterChar& after_one_char(uint32_t state);
  TextReach reach_locked(uint32_t state);
  // How far plain text may go from this state; with `infinite`, only as long as what may follow is infinite.
  TextReach explore_text(uint32_t state, bool infinite);
  // The same for a lexeme that goes on with a bounded number of characters, without looking at them one by one.
  std::optional<TextReach> reach_of_repeat(const Part& part);

  mutable std::mutex mutex_;
  RegexStore store_;
  const std::vector<Regex> lexemes_;
  RegexStore::ByteClasses classes_;
  std::vector<uint8_t> first_byte_;
  // By state of plain_text_step() and byte class: the next state of it.
  std::vector<std::array<int8_t, kPlainTextStates>> text_step_;
  const uint32_t max_states_;
  std::vector<std::atomic<Chunk*>> chunks_;  // fixed size; owned through owned_
  std::vector<std::unique_ptr<Chunk>> owned_;
  uint32_t state_count_ = 0;
  bool failed_ = false;
  std::vector<Part> parts_;
  std::unordered_multimap<uint64_t, uint32_t> state_index_;  // by hash of the parts
  std::deque<LexemeSet> sets_;
  std::unordered_multimap<uint64_t, const LexemeSet*> set_index_;
  std::unordered_map<uint32_t, AfterChar> after_char_;
  std::unordered_map<uint32_t, int> infinite_reach_;  // explore_text(state, true)
};

}  // namespace quire::grammar
