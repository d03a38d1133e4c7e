// SPDX-License-Identifier: Apache-2.0
// Flat hash maps for vocabularies: from pieces to ids, and from pairs of ids to merges.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

inline uint64_t mix64(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// A fast hash of a short string. It does not resist adversaries; the bounded probing limits their effect.
inline uint64_t hash_bytes(std::string_view s) {
  const char* p = s.data();
  size_t n = s.size();
  uint64_t h = 0x9E3779B97F4A7C15ull ^ n;
  uint64_t word = 0;
  while (n >= 8) {
    std::memcpy(&word, p, 8);
    h = mix64(h ^ word, 0xD6E8FEB86659FD93ull);
    p += 8;
    n -= 8;
  }
  if (n >= 4) {
    uint32_t low = 0;
    uint32_t high = 0;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + n - 4, 4);
    word = (uint64_t{high} << 32) | low;
  } else if (n > 0) {
    word = static_cast<unsigned char>(p[0]) | (uint64_t{static_cast<unsigned char>(p[n / 2])} << 8) |
           (uint64_t{static_cast<unsigned char>(p[n - 1])} << 16);
  } else {
    word = 0;
  }
  return mix64(h ^ word, 0xA0761D6478BD642Full);
}

// A vocabulary: piece <-> id. Ids may have gaps. A piece that is inserted again gets the new id; for an id that is
// inserted again, both pieces are found and the last one is shown.
class PieceMap {
 public:
  void reserve(size_t pieces, size_t bytes) {
    arena_.reserve(bytes);
    entries_.reserve(pieces);
    size_t slots = 16;
    while (slots < pieces * 2) slots *= 2;
    rehash(slots);
  }
  void insert(std::string_view piece, int32_t id) {
    if ((entries_.size() + 1) * 2 > slots_.size()) rehash(slots_.empty() ? 16 : slots_.size() * 2);
    const uint64_t h = hash_bytes(piece);
    size_t i = h & mask_;
    while (slots_[i].entry != 0) {
      Entry& entry = entries_[slots_[i].entry - 1];
      if (slots_[i].tag == static_cast<uint32_t>(h >> 32) && view(entry) == piece) {
        entry.id = id;
        show(id, slots_[i].entry);
        return;
      }
      i = (i + 1) & mask_;
    }
    entries_.push_back({static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(piece.size()), id});
    arena_.append(piece);
    slots_[i] = {static_cast<uint32_t>(h >> 32), static_cast<uint32_t>(entries_.size())};
    show(id, static_cast<uint32_t>(entries_.size()));
  }
  // The id, or -1.
  int32_t find(std::string_view piece) const {
    if (slots_.empty()) return -1;
    const uint64_t h = hash_bytes(piece);
    for (size_t i = h & mask_; slots_[i].entry != 0; i = (i + 1) & mask_) {
      if (slots_[i].tag != static_cast<uint32_t>(h >> 32)) continue;
      const Entry& entry = entries_[slots_[i].entry - 1];
      if (view(entry) == piece) return entry.id;
    }
    return -1;
  }
  bool has_id(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < by_id_.size() && by_id_[static_cast<size_t>(id)] != 0;
  }
  // The piece of an id. REQUIRES: has_id(id).
  std::string_view piece(int32_t id) const { return view(entries_[by_id_[static_cast<size_t>(id)] - 1]); }
  // The number of pieces, and one more than the largest id.
  size_t size() const { return entries_.size(); }
  int32_t id_end() const { return static_cast<int32_t>(by_id_.size()); }

 private:
  struct Entry {
    uint32_t offset, size;
    int32_t id;
  };
  struct Slot {
    uint32_t tag = 0;
    uint32_t entry = 0;  // index + 1; 0: free
  };
  std::string_view view(const Entry& entry) const { return {arena_.data() + entry.offset, entry.size}; }
  void show(int32_t id, uint32_t entry) {
    if (static_cast<size_t>(id) >= by_id_.size()) by_id_.resize(static_cast<size_t>(id) + 1);
    by_id_[static_cast<size_t>(id)] = entry;
  }
  void rehash(size_t slots) {
    slots_.assign(slots, {});
    mask_ = slots - 1;
    for (size_t e = 0; e < entries_.size(); ++e) {
      const uint64_t h = hash_bytes(view(entries_[e]));
      size_t i = h & mask_;
      while (slots_[i].entry != 0) i = (i + 1) & mask_;
      slots_[i] = {static_cast<uint32_t>(h >> 32), static_cast<uint32_t>(e + 1)};
    }
  }

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> by_id_;  // entry + 1
  size_t mask_ = 0;
};

// (left id, right id) -> (rank, id of the merged piece). A pair that is inserted again gets the new rank.
class MergeMap {
 public:
  static constexpr uint32_t kNoRank = 0xffffffffu;
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t id = -1;
  };

  void reserve(size_t merges) {
    size_t slots = 16;
    while (slots < merges * 2) slots *= 2;
    if (slots > slots_.size()) rehash(slots);
  }
  void insert(int32_t left, int32_t right, Merge merge) {
    if ((count_ + 1) * 2 > slots_.size()) rehash(slots_.empty() ? 16 : slots_.size() * 2);
    const uint64_t k = key(left, right);
    size_t i = place(k);
    while (slots_[i].key != kFree && slots_[i].key != k) i = (i + 1) & mask_;
    if (slots_[i].key == kFree) ++count_;
    slots_[i] = {k, merge};
  }
  Merge find(int32_t left, int32_t right) const {
    if (count_ == 0) return {};
    const uint64_t k = key(left, right);
    for (size_t i = place(k);; i = (i + 1) & mask_) {
      if (slots_[i].key == k) return slots_[i].merge;
      if (slots_[i].key == kFree) return {};
    }
  }
  bool empty() const { return count_ == 0; }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
  }
  size_t place(uint64_t k) const { return mix64(k, 0x9E3779B97F4A7C15ull) & mask_; }
  void rehash(size_t slots) {
    std::vector<Slot> old(slots);
    old.swap(slots_);
    mask_ = slots - 1;
    for (const Slot& slot : old) {
      if (slot.key == kFree) continue;
      size_t i = place(slot.key);
      while (slots_[i].key != kFree) i = (i + 1) & mask_;
      slots_[i] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
  size_t mask_ = 0;
};

}  // namespace quire::text
