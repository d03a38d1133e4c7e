// SPDX-License-Identifier: Apache-2.0
// For tests: what every home of Group promises.
#pragma once

#include <cstring>
#include <vector>

#include "base/check.h"
#include "distributed/group.h"

namespace quire::distributed {

// A number that depends on all three.
inline std::vector<uint32_t> contract_words(int rank, int round, size_t count) {
  std::vector<uint32_t> out(count);
  uint32_t value = static_cast<uint32_t>(rank) * 2654435761u + static_cast<uint32_t>(round) * 40503u + 1;
  for (uint32_t& word : out) word = value = value * 1664525u + 1013904223u;
  return out;
}

// One round of every call with messages of `count` words. Every rank calls it; a broken promise fails a check.
inline void check_contract(Group& group, int round, size_t count) {
  const int size = group.size(), rank = group.rank();
  const std::vector<uint32_t> mine = contract_words(rank, round, count);

  // Into a place apart, and into the rank's own place.
  for (const bool in_place : {false, true}) {
    std::vector<uint32_t> all(count * static_cast<size_t>(size), 7);
    std::span<const uint32_t> from(mine);
    if (in_place) {
      const auto own = std::span(all).subspan(count * static_cast<size_t>(rank), count);
      std::copy(mine.begin(), mine.end(), own.begin());
      from = own;
    }
    group.all_gather(std::as_bytes(from), std::as_writable_bytes(std::span(all)));
    for (int r = 0; r < size; ++r) {
      const std::vector<uint32_t> expected = contract_words(r, round, count);
      QUIRE_CHECK(std::equal(expected.begin(), expected.end(), all.begin() + static_cast<ptrdiff_t>(count) * r));
    }
  }

  const int root = round % size;
  std::vector<uint32_t> word = rank == root ? mine : std::vector<uint32_t>(count);
  group.broadcast(std::as_writable_bytes(std::span(word)), root);
  QUIRE_CHECK(word == contract_words(root, round, count));

  // A ring: everyone sends twice before anyone receives, and what was sent may change afterwards.
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  for (int part = 0; part < 2; ++part) {
    std::vector<uint32_t> out = contract_words(rank, round + part, count);
    group.send(std::as_bytes(std::span(out)), next);
    std::fill(out.begin(), out.end(), 0u);
  }
  for (int part = 0; part < 2; ++part) {
    std::vector<uint32_t> in(count);
    group.receive(std::as_writable_bytes(std::span(in)), before);
    QUIRE_CHECK(in == contract_words(before, round + part, count));
  }
  group.barrier();
}

}  // namespace quire::distributed
