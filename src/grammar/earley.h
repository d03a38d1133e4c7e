// SPDX-License-Identifier: Apache-2.0
// Parser: the rows of an Earley parser, each stored once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "grammar/flat_map.h"
#include "grammar/lexer.h"
#include "grammar/matcher.h"
#include "grammar/productions.h"

namespace quire::grammar {

// 128 bits that stand for the contents of a row and of all rows that it refers to, whatever their numbers are.
struct RowDigest {
  uint64_t low = 0, high = 0;
  bool operator==(const RowDigest&) const = default;
};

// A row is what the parser knows at a position between two terminals: items, each a dot in a production and the row
// where that production began. Items at the end of their production are not kept. Two positions with the same items are
// the same row: a list of any length that is written as left recursion goes round a few rows, and equal rows mean equal
// continuations. Belongs to one matcher; not thread-safe.
//
// Functions that make rows return kNone and set failure() if that goes over a limit. Fuel is taken from `fuel`.
class Parser {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  struct Item {
    uint32_t symbol;  // what stands behind the dot
    uint32_t dot;
    uint32_t start;
    auto operator<=>(const Item&) const = default;
  };
  struct Row {
    uint32_t begin = 0, count = 0;  // its items, sorted
    uint32_t start_state = 0;       // of the lexer, for the terminals that may begin here
    bool complete = false;          // the text may end here
    bool has_tokens = false;        // special tokens may stand here
    bool in_bag = false;            // not a position, but a place in a bag: see bag_row()
    RowDigest digest;
  };
  enum class Failure : uint8_t { kNone, kFuel, kItems, kMemory, kLexer, kBuild };

  Parser(const Productions& productions, Lexer& lexer, const MatcherLimits& limits);

  // The row at the beginning of the text.
  uint32_t first();
  // The row after any of these lexemes that began at `row`.
  uint32_t scan(uint32_t row, const LexemeSet& lexemes);
  // The row after this token at `row`; kNone without a failure: no set of tokens there has it.
  uint32_t scan_token(uint32_t row, int32_t token, bool end_token);
  // The row that has the items of both.
  uint32_t merge(uint32_t a, uint32_t b);

  const Row& row(uint32_t index) const { return rows_[index]; }
  std::span<const Item> items(uint32_t row) const {
    return std::span(items_).subspan(rows_[row].begin, rows_[row].count);
  }
  // The items of a row with this symbol behind the dot.
  std::span<const Item> items_before(uint32_t row, uint32_t symbol) const;

  size_t bytes() const;
  // Drops all rows that these do not need, and writes the new numbers of these. Row kNone stays what it is.
  void collect(std::span<uint32_t* const> roots);

  Failure failure() const { return failure_; }
  void fail(Failure failure) { failure_ = failure; }
  void clear_failure() { failure_ = Failure::kNone; }
  int64_t fuel = 0;

 private:
  // Keys that are in the row which is being made; emptied in O(1).
  class Seen {
   public:
    void clear();
    bool insert(uint64_t key);  // false: it was there already
    size_t bytes() const { return slots_.capacity() * sizeof(Slot); }

   private:
    struct Slot {
      uint64_t key = 0;
      uint64_t round = 0;
    };
    void place(uint64_t key);
    std::vector<Slot> slots_ = std::vector<Slot>(64);
    uint64_t round_ = 1;
    size_t size_ = 0;
  };

  void begin();
  void add(uint32_t dot, uint32_t start);
  void add_predicted(uint32_t dot, uint32_t self);
  // Completes and advances until nothing is added, finds or stores the row, and returns it.
  uint32_t finish();
  void settle();
  // After an entry of a bag, whose items began at `start`: the bag may go on, and ends if it has all that is required.
  void step_bag(const Productions::BagEntry& entry, uint32_t start);
  // Stands for a bag that began at the row `origin` and has had the entries of set_: where items of its next entry
  // start. Each item holds 64 bits of the set, in `symbol` and `dot`, and the origin in `start`.
  uint32_t bag_row(uint32_t bag, uint32_t origin);
  void predict(uint32_t self);
  uint32_t store(const RowDigest& digest);
  RowDigest digest() const;

  const Productions& productions_;
  Lexer& lexer_;
  const MatcherLimits limits_;
  std::vector<Row> rows_;
  std::vector<Item> items_;
  FlatMap by_digest_;  // the low half of a digest to its row
  FlatMap scanned_;    // row and set of lexemes to row
  FlatMap merged_;     // two rows to a row
  Failure failure_ = Failure::kNone;

  // The row that is being made.
  std::vector<Item> work_;  // its items, and those at their end
  bool complete_ = false;
  Seen seen_;                        // dot and start of work_
  uint32_t round_ = 0;               // counts rows made
  std::vector<uint32_t> predicted_;  // by rule: the round in which it was predicted
  std::vector<uint32_t> dots_;       // by dot: the round in which it was predicted
  std::vector<uint32_t> lexemes_;
  std::vector<uint64_t> set_;
};

}  // namespace quire::grammar
