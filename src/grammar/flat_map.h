// SPDX-License-Identifier: Apache-2.0
// FlatMap: a hash table from 64-bit keys to 32-bit values without allocation per entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::grammar {

// Open addressing; entries are never removed one by one. The key ~0 is reserved. Not thread-safe.
class FlatMap {
 public:
  // The value of the key, or null.
  const uint32_t* find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    for (size_t i = position(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return &slots_[i].value;
      if (slots_[i].key == kFree) return nullptr;
    }
  }
  // REQUIRES: the key is not in the map.
  void insert(uint64_t key, uint32_t value) {
    if (size_ * 2 >= slots_.size()) grow();
    place(key, value);
    ++size_;
  }
  void clear() {
    slots_.clear();
    slots_.shrink_to_fit();
    size_ = 0;
  }
  size_t size() const { return size_; }
  size_t bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree;
    uint32_t value = 0;
  };
  size_t position(uint64_t key) const {
    key = (key ^ (key >> 32)) * 0x9E3779B97F4A7C15u;
    return (key >> 20) & (slots_.size() - 1);
  }
  void place(uint64_t key, uint32_t value) {
    size_t i = position(key);
    while (slots_[i].key != kFree) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {key, value};
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kFree) place(slot.key, slot.value);
    }
  }
  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace quire::grammar
