// SPDX-License-Identifier: Apache-2.0
// Gathers of rows in terms of the calls that every home of Group has.
#include "distributed/group.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace quire::distributed {

void Group::gather_columns(const Rows& mine, const Rows& all, int root) {
  const int64_t block = mine.count * mine.bytes;
  staged_.resize(static_cast<size_t>(block));
  gathered_.resize(static_cast<size_t>(block * size()));
  if (block == 0) return;
  for (int64_t i = 0; i < mine.count; ++i) {
    std::memcpy(staged_.data() + i * mine.bytes, mine.row(i), static_cast<size_t>(mine.bytes));
  }
  all_gather(staged_, gathered_);
  if (root != kEvery && root != rank()) return;
  QUIRE_CHECK(all.count == mine.count);
  for (int r = 0; r < size(); ++r) {
    const int64_t first = r * mine.bytes;
    const int64_t bytes = std::min(mine.bytes, all.bytes - first);
    for (int64_t i = 0; i < mine.count && bytes > 0; ++i) {
      std::memcpy(all.row(i) + first, gathered_.data() + r * block + i * mine.bytes, static_cast<size_t>(bytes));
    }
  }
}

void Group::gather_rows(const Rows& rows, std::span<const int32_t> owner) {
  QUIRE_CHECK(std::ssize(owner) == rows.count);
  for (int r = 0; r < size(); ++r) {
    staged_.clear();
    const int64_t count = std::ranges::count(owner, r);
    if (count == 0) continue;
    staged_.resize(static_cast<size_t>(count * rows.bytes));
    const auto each_row = [&](const auto& copy) {
      std::byte* at = staged_.data();
      for (int64_t i = 0; i < rows.count; ++i) {
        if (owner[static_cast<size_t>(i)] != r) continue;
        copy(at, rows.row(i));
        at += rows.bytes;
      }
    };
    const auto bytes = static_cast<size_t>(rows.bytes);
    if (r == rank()) each_row([&](std::byte* at, const std::byte* row) { std::memcpy(at, row, bytes); });
    broadcast(staged_, r);
    if (r != rank()) each_row([&](const std::byte* at, std::byte* row) { std::memcpy(row, at, bytes); });
  }
}

}  // namespace quire::distributed
