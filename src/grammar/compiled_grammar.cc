// SPDX-License-Identifier: Apache-2.0
// CompiledGrammar: what all matchers of a grammar share.
#include "grammar/compiled_grammar.h"

#include <algorithm>
#include <utility>

namespace quire::grammar {

bool MaskCache::find(const RowDigest& position, std::span<uint32_t> mask) const {
  std::lock_guard lock(mutex_);
  auto entry = entries_.find(position.low);
  if (entry == entries_.end() || entry->second.high != position.high) return false;
  std::ranges::copy(entry->second.mask, mask.begin());
  return true;
}

void MaskCache::insert(const RowDigest& position, std::span<const uint32_t> mask) {
  std::lock_guard lock(mutex_);
  if (bytes_ > kMaxBytes) {
    entries_.clear();
    bytes_ = 0;
  }
  bool added = entries_.try_emplace(position.low, Entry{position.high, {mask.begin(), mask.end()}}).second;
  if (added) bytes_ += mask.size_bytes() + 64;
}

Parser::Failure MaskCache::failure(const RowDigest& position) const {
  std::lock_guard lock(mutex_);
  auto entry = failures_.find(position.low);
  return entry != failures_.end() && entry->second.high == position.high ? entry->second.failure
                                                                         : Parser::Failure::kNone;
}

void MaskCache::insert_failure(const RowDigest& position, Parser::Failure failure) {
  std::lock_guard lock(mutex_);
  if (failures_.size() < kMaxFailures) failures_.try_emplace(position.low, FailureEntry{position.high, failure});
}

size_t MaskCache::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_ + failures_.size() * 48;
}

std::shared_ptr<const StateMask> StateMasks::find(uint32_t state) const {
  std::lock_guard lock(mutex_);
  auto entry = entries_.find(state);
  return entry == entries_.end() ? nullptr : entry->second;
}

void StateMasks::insert(uint32_t state, std::shared_ptr<const StateMask> mask) {
  std::lock_guard lock(mutex_);
  if (bytes_ > kMaxBytes) {
    // Failures stay: see MaskCache::failure().
    std::erase_if(entries_, [](const auto& entry) { return entry.second->failure == Parser::Failure::kNone; });
    bytes_ = entries_.size() * (sizeof(StateMask) + 64);
  }
  const size_t size = mask->bytes() + 64;
  if (entries_.try_emplace(state, std::move(mask)).second) bytes_ += size;
}

size_t StateMasks::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

CompiledGrammar::CompiledGrammar() : parts_(std::make_unique<Parts>()) {}
CompiledGrammar::~CompiledGrammar() = default;

Result<std::shared_ptr<const CompiledGrammar>> CompiledGrammar::make(Grammar grammar,
                                                                     std::shared_ptr<const Vocabulary> vocabulary,
                                                                     const MatcherLimits& limits) {
  std::shared_ptr<CompiledGrammar> compiled(new CompiledGrammar());
  Parts& parts = *compiled->parts_;
  parts.vocabulary = std::move(vocabulary);
  parts.limits = limits;
  QUIRE_ASSIGN(parts.productions, Productions::make(grammar, *parts.vocabulary));
  parts.lexer = std::make_unique<Lexer>(grammar.take_regexes(), parts.productions.lexemes, limits.max_lexer_states);
  return std::shared_ptr<const CompiledGrammar>(std::move(compiled));
}

const Vocabulary& CompiledGrammar::vocabulary() const {
  return *parts_->vocabulary;
}

size_t CompiledGrammar::bytes() const {
  return sizeof(Parts) + parts_->productions.bytes() + parts_->lexer->bytes() + parts_->masks.bytes() +
         parts_->state_masks.bytes();
}

}  // namespace quire::grammar
