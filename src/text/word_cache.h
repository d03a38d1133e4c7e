// SPDX-License-Identifier: Apache-2.0
// A bounded cache from words to ids, one per thread, shared by all tokenizers.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "text/piece_map.h"

namespace quire::text {

// A direct-mapped table of 32,768 lines of 64 bytes: a new word replaces the word of its line, so memory is fixed at 2
// MiB per thread and nothing is ever freed. Lines have an owner, so that tokenizers never see each other's words. Owned
// by one thread; of_this_thread() creates it on first use.
class WordCache {
 public:
  static constexpr size_t kMaxWord = 26;
  static constexpr size_t kMaxIds = 6;
  struct Line {
    uint32_t owner = 0;
    uint32_t tag = 0;
    uint8_t size = 0;
    uint8_t count = 0;
    char word[kMaxWord];
    int32_t ids[kMaxIds];
    // 4 spare bytes make it one cache line.
    uint32_t spare = 0;
  };
  static_assert(sizeof(Line) == 64);

  static WordCache& of_this_thread() {
    thread_local WordCache cache;
    return cache;
  }
  static bool fits(std::string_view word) { return word.size() <= kMaxWord; }

  Line& line(uint64_t hash) { return (*lines_)[hash & (kLines - 1)]; }
  static bool holds(const Line& line, uint32_t owner, uint64_t hash, std::string_view word) {
    return line.owner == owner && line.tag == static_cast<uint32_t>(hash >> 32) && line.size == word.size() &&
           std::memcmp(line.word, word.data(), word.size()) == 0;
  }
  static void store(Line& line, uint32_t owner, uint64_t hash, std::string_view word, std::span<const int32_t> ids) {
    line.owner = owner;
    line.tag = static_cast<uint32_t>(hash >> 32);
    line.size = static_cast<uint8_t>(word.size());
    line.count = static_cast<uint8_t>(ids.size());
    std::memcpy(line.word, word.data(), word.size());
    std::memcpy(line.ids, ids.data(), ids.size() * sizeof(int32_t));
  }

 private:
  static constexpr size_t kLines = 32768;
  std::unique_ptr<std::array<Line, kLines>> lines_ = std::make_unique<std::array<Line, kLines>>();
};

}  // namespace quire::text
