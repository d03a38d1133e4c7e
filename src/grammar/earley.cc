// SPDX-License-Identifier: Apache-2.0
// Parser: scanning, completing and predicting.
#include "grammar/earley.h"

#include <algorithm>

#include "base/check.h"

namespace quire::grammar {

namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
  return x ^ (x >> 32);
}

// Items at the end of their production take part only while a row is made, so there may be more of them.
constexpr size_t kEndsPerItem = 10;

}  // namespace

void Parser::Seen::clear() {
  ++round_;
  size_ = 0;
}

void Parser::Seen::place(uint64_t key) {
  size_t i = mix(key) & (slots_.size() - 1);
  while (slots_[i].round == round_) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {key, round_};
}

bool Parser::Seen::insert(uint64_t key) {
  for (size_t i = mix(key) & (slots_.size() - 1); slots_[i].round == round_; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].key == key) return false;
  }
  if (++size_ * 2 > slots_.size()) {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.round == round_) place(slot.key);
    }
  }
  place(key);
  return true;
}

Parser::Parser(const Productions& productions, Lexer& lexer, const MatcherLimits& limits)
    : productions_(productions),
      lexer_(lexer),
      limits_(limits),
      predicted_(productions.nullable_rule.size()),
      dots_(productions.symbols.size()) {}

size_t Parser::bytes() const {
  return rows_.capacity() * sizeof(Row) + (items_.capacity() + work_.capacity()) * sizeof(Item) + by_digest_.bytes() +
         scanned_.bytes() + merged_.bytes() + seen_.bytes() +
         (predicted_.capacity() + dots_.capacity()) * sizeof(uint32_t);
}

std::span<const Parser::Item> Parser::items_before(uint32_t row, uint32_t symbol) const {
  std::span<const Item> all = items(row);
  auto begin = std::ranges::lower_bound(all, symbol, {}, &Item::symbol);
  auto end = begin;
  while (end != all.end() && end->symbol == symbol) ++end;
  return {begin, end};
}

void Parser::begin() {
  work_.clear();
  seen_.clear();
  complete_ = false;
  ++round_;
}

void Parser::add(uint32_t dot, uint32_t start) {
  --fuel;
  if (!seen_.insert(uint64_t{dot} << 32 | start)) return;
  work_.push_back({productions_.symbols[dot], dot, start});
}

void Parser::settle() {
  for (size_t i = 0; i < work_.size(); ++i) {
    if (fuel < 0) return fail(Failure::kFuel);
    if (work_.size() > static_cast<size_t>(limits_.max_items_per_row) * kEndsPerItem) return fail(Failure::kItems);
    const Item item = work_[i];
    if (code::kind(item.symbol) == code::kEnd && code::index(item.symbol) >= productions_.bag_base) {
      step_bag(productions_.bag_entries[code::index(item.symbol) - productions_.bag_base], item.start);
    } else if (code::kind(item.symbol) == code::kEnd) {
      complete_ = complete_ || item.dot == productions_.start_end;
      for (const Item& waiting : items_before(item.start, code::kRule | code::index(item.symbol))) {
        add(waiting.dot + 1, waiting.start);
      }
    } else if (productions_.nullable(item.symbol)) {
      add(item.dot + 1, item.start);
    }
  }
}

void Parser::step_bag(const Productions::BagEntry& entry, uint32_t start) {
  const Productions::Bag& bag = productions_.bags[entry.bag];
  set_.assign(bag.required.size(), 0);
  uint32_t origin = start;
  if (rows_[start].in_bag) {
    for (size_t i = 0; i < set_.size(); ++i) {
      const Item& item = items(start)[i];
      set_[i] = uint64_t{item.symbol} << 32 | item.dot;
      origin = item.start;
    }
  }
  if (entry.bit != Productions::BagEntry::kRepeats) set_[entry.bit / 64] |= uint64_t{1} << (entry.bit % 64);
  const uint32_t place = bag_row(entry.bag, origin);
  for (uint32_t i = bag.begin; i < bag.end; ++i) {
    const Productions::BagEntry& next = productions_.bag_entries[i];
    const bool free = next.bit == Productions::BagEntry::kRepeats || (set_[next.bit / 64] >> (next.bit % 64) & 1) == 0;
    if (free) add(next.later, place);
  }
  for (size_t i = 0; i < set_.size(); ++i) {
    if ((bag.required[i] & ~set_[i]) != 0) return;
  }
  for (const Item& waiting : items_before(origin, code::kRule | bag.rule)) add(waiting.dot + 1, waiting.start);
}

uint32_t Parser::bag_row(uint32_t bag, uint32_t origin) {
  RowDigest digest = rows_[origin].digest;
  digest.low = mix(digest.low ^ (uint64_t{bag} + 1) * 0x9E3779B97F4A7C15u);
  for (const uint64_t word : set_) {
    digest.low = mix(digest.low ^ word);
    digest.high = mix(digest.high + digest.low + word);
  }
  digest.low >>= 1;
  if (const uint32_t* known = by_digest_.find(digest.low); known != nullptr && rows_[*known].digest == digest) {
    return *known;
  }
  const auto self = static_cast<uint32_t>(rows_.size());
  rows_.push_back({.begin = static_cast<uint32_t>(items_.size()),
                   .count = static_cast<uint32_t>(set_.size()),
                   .in_bag = true,
                   .digest = digest});
  for (const uint64_t word : set_) {
    items_.push_back({static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word), origin});
  }
  if (by_digest_.find(digest.low) == nullptr) by_digest_.insert(digest.low, self);
  return self;
}

// Sums, so that the order of the items does not matter.
RowDigest Parser::digest() const {
  RowDigest sum{complete_ ? 0x13198A2E03707344u : 0, work_.size()};
  for (const Item& item : work_) {
    const RowDigest& start = rows_[item.start].digest;
    uint64_t low = mix(start.low ^ (uint64_t{item.dot} * 0x9E3779B97F4A7C15u));
    uint64_t high = mix(start.high + (uint64_t{item.dot} * 0xC2B2AE3D27D4EB4Fu) + (low << 1));
    sum.low += low;
    sum.high += high;
  }
  return {mix(sum.low ^ mix(sum.high)) >> 1, mix(sum.high + 0xA4093822299F31D0u)};
}

void Parser::add_predicted(uint32_t dot, uint32_t self) {
  for (;; ++dot) {
    uint32_t symbol = productions_.symbols[dot];
    // An end here is an empty match, which `nullable` stands for.
    if (code::kind(symbol) == code::kEnd || dots_[dot] == round_) return;
    --fuel;
    dots_[dot] = round_;
    work_.push_back({symbol, dot, self});
    if (!productions_.nullable(symbol)) return;
  }
}

void Parser::predict(uint32_t self) {
  for (size_t i = 0; i < work_.size(); ++i) {
    uint32_t symbol = work_[i].symbol;
    if (code::kind(symbol) != code::kRule || predicted_[symbol] == round_) continue;
    predicted_[symbol] = round_;
    for (uint32_t start = productions_.rule_begin[symbol]; start < productions_.rule_begin[symbol + 1]; ++start) {
      add_predicted(productions_.starts[start], self);
    }
    if (fuel < 0) return fail(Failure::kFuel);
    if (work_.size() > static_cast<size_t>(limits_.max_items_per_row)) return fail(Failure::kItems);
  }
}

uint32_t Parser::store(const RowDigest& digest) {
  auto self = static_cast<uint32_t>(rows_.size());
  predict(self);
  if (failure_ != Failure::kNone) return kNone;
  if (bytes() > limits_.max_bytes) {
    fail(Failure::kMemory);
    return kNone;
  }
  std::ranges::sort(work_);
  Row row{.begin = static_cast<uint32_t>(items_.size()),
          .count = static_cast<uint32_t>(work_.size()),
          .complete = complete_,
          .digest = digest};
  lexemes_.clear();
  for (const Item& item : work_) {
    if (code::kind(item.symbol) == code::kToken) row.has_tokens = true;
    if (code::kind(item.symbol) != code::kLexeme) continue;
    uint32_t lexeme = code::index(item.symbol);
    if (lexemes_.empty() || lexemes_.back() != lexeme) lexemes_.push_back(lexeme);
  }
  row.start_state = lexer_.start(lexemes_, fuel);
  if (row.start_state == Lexer::kFailed) {
    fail(Failure::kLexer);
    return kNone;
  }
  items_.insert(items_.end(), work_.begin(), work_.end());
  rows_.push_back(row);
  if (by_digest_.find(digest.low) == nullptr) by_digest_.insert(digest.low, self);
  return self;
}

uint32_t Parser::finish() {
  settle();
  if (failure_ != Failure::kNone) return kNone;
  std::erase_if(work_, [](const Item& item) { return code::kind(item.symbol) == code::kEnd; });
  RowDigest found = digest();
  if (const uint32_t* known = by_digest_.find(found.low); known != nullptr && rows_[*known].digest == found) {
    return *known;
  }
  return store(found);
}

uint32_t Parser::first() {
  begin();
  add_predicted(productions_.start_dot, 0);
  QUIRE_CHECK(rows_.empty());
  complete_ = productions_.nullable(productions_.symbols[productions_.start_dot]);
  return store({1, 1});
}

uint32_t Parser::scan(uint32_t row, const LexemeSet& lexemes) {
  const uint64_t key = uint64_t{row} << 32 | lexemes.id;
  if (const uint32_t* known = scanned_.find(key)) return *known;
  begin();
  for (uint32_t lexeme : lexemes.lexemes) {
    for (const Item& item : items_before(row, code::kLexeme | lexeme)) add(item.dot + 1, item.start);
  }
  uint32_t result = finish();
  if (result != kNone) scanned_.insert(key, result);
  return result;
}

uint32_t Parser::scan_token(uint32_t row, int32_t token, bool end_token) {
  if (!rows_[row].has_tokens) return kNone;
  begin();
  for (const Item& item : items(row)) {
    if (code::kind(item.symbol) != code::kToken) continue;
    if (matches(productions_.token_sets[code::index(item.symbol)], token, end_token)) add(item.dot + 1, item.start);
  }
  return work_.empty() ? kNone : finish();
}

uint32_t Parser::merge(uint32_t a, uint32_t b) {
  if (a == b) return a;
  const uint64_t key = uint64_t{std::min(a, b)} << 32 | std::max(a, b);
  if (const uint32_t* known = merged_.find(key)) return *known;
  begin();
  // What either row predicted at its own position is predicted again.
  for (uint32_t row : {a, b}) {
    complete_ = complete_ || rows_[row].complete;
    for (const Item& item : items(row)) {
      if (item.start != row) add(item.dot, item.start);
    }
  }
  if (fuel < 0) {
    fail(Failure::kFuel);
    return kNone;
  }
  RowDigest found = digest();
  const uint32_t* known = by_digest_.find(found.low);
  uint32_t result = known != nullptr && rows_[*known].digest == found ? *known : store(found);
  if (result != kNone) merged_.insert(key, result);
  return result;
}

void Parser::collect(std::span<uint32_t* const> roots) {
  std::vector<uint32_t> number(rows_.size(), kNone), pending, order;
  auto visit = [&](uint32_t row) {
    if (row == kNone || number[row] != kNone) return;
    number[row] = 0;
    pending.push_back(row);
  };
  for (const uint32_t* root : roots) visit(*root);
  while (!pending.empty()) {
    uint32_t row = pending.back();
    pending.pop_back();
    for (const Item& item : items(row)) visit(item.start);
  }
  std::vector<Row> rows;
  std::vector<Item> kept;
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    if (number[row] == kNone) continue;
    number[row] = static_cast<uint32_t>(rows.size());
    rows.push_back(rows_[row]);
    rows.back().begin = static_cast<uint32_t>(kept.size());
    // A row refers to itself and to rows before it, which have their numbers already, in the same order as before.
    for (const Item& item : items(row)) kept.push_back({item.symbol, item.dot, number[item.start]});
  }
  rows_ = std::move(rows);
  items_ = std::move(kept);
  by_digest_.clear();
  scanned_.clear();
  merged_.clear();
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    if (by_digest_.find(rows_[row].digest.low) == nullptr) by_digest_.insert(rows_[row].digest.low, row);
  }
  for (uint32_t* root : roots) {
    if (*root != kNone) *root = number[*root];
  }
}

}  // namespace quire::grammar
