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
  size_t bytes() const;

 private:
  static constexpr size_t kMaxBytes = size_t{16} << 20;
  struct Entry {
    uint64_t high;
    std::vector<uint32_t> mask;
  };
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Entry> entries_;
  size_t bytes_ = 0;
};

struct CompiledGrammar::Parts {
  std::shared_ptr<const Vocabulary> vocabulary;
  MatcherLimits limits;
  Productions productions;
  std::unique_ptr<Lexer> lexer;
  MaskCache masks;
};

}  // namespace quire::grammar
