// SPDX-License-Identifier: Apache-2.0
// Every home of Group moves bytes as its contract says.
#include "distributed/group.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

namespace quire::distributed {
namespace {

// Runs `rank` on a thread for each rank of a group.
template <typename Rank>
void on_threads(int size, const Rank& rank) {
  std::vector<std::unique_ptr<Group>> groups = make_thread_group(size);
  std::vector<std::jthread> threads;
  for (const std::unique_ptr<Group>& group : groups) threads.emplace_back([&rank, &group] { rank(*group); });
}

TEST(ThreadGroup, GathersBroadcastsAndPassesOn) {
  for (const int size : {1, 2, 3, 4}) {
    on_threads(size, [](Group& group) {
      for (int round = 0; round < 50; ++round) {
        std::vector<int> all(static_cast<size_t>(group.size()) * 3, -1);
        const std::vector<int> mine = {group.rank(), round, group.rank() * round};
        group.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
        for (int r = 0; r < group.size(); ++r) {
          const size_t at = static_cast<size_t>(r) * 3;
          EXPECT_EQ((std::vector<int>{all[at], all[at + 1], all[at + 2]}), (std::vector<int>{r, round, r * round}));
        }

        const int root = round % group.size();
        std::vector<int> word = {group.rank() == root ? round : -1};
        group.broadcast(std::as_writable_bytes(std::span(word)), root);
        EXPECT_EQ(word[0], round);

        // A ring: two messages each, which arrive in order.
        const int next = (group.rank() + 1) % group.size();
        const int before = (group.rank() + group.size() - 1) % group.size();
        for (int part = 0; part < 2; ++part) {
          const std::vector<int> out = {group.rank(), part};
          group.send(std::as_bytes(std::span(out)), next);
        }
        for (int part = 0; part < 2; ++part) {
          std::vector<int> in(2);
          group.receive(std::as_writable_bytes(std::span(in)), before);
          EXPECT_EQ(in, (std::vector<int>{before, part}));
        }
        group.barrier();
      }
    });
  }
}

Rows rows_of(std::vector<int>& values, int64_t count, int64_t columns, int64_t stride, int64_t first = 0) {
  const auto bytes = static_cast<int64_t>(sizeof(int));
  return {reinterpret_cast<std::byte*>(values.data() + first), count, columns * bytes, stride * bytes};
}

// Columns of three rows: two of each rank, in their own places among ten. The last rank's second column is too much.
// Then rows of several owners. `base`: by the calls that every home has, instead of the home's own.
void gather_rows_and_columns(Group& group, bool base) {
  const int64_t width = 2, columns = width * group.size() - 1, stride = 10;
  for (const int root : {Group::kEvery, group.size() - 1}) {
    std::vector<int> all(3 * stride, -1);
    std::vector<int> mine(3 * 4, -1);
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < width; ++j) mine[static_cast<size_t>(i * 4 + j)] = 100 * i + 10 * group.rank() + j;
    }
    const Rows from = rows_of(mine, 3, width, 4), to = rows_of(all, 3, columns, stride);
    base ? group.Group::gather_columns(from, to, root) : group.gather_columns(from, to, root);
    const bool has = root == Group::kEvery || root == group.rank();
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < stride; ++j) {
        const int64_t expected = has && j < columns ? 100 * i + 10 * (j / width) + j % width : -1;
        EXPECT_EQ(all[static_cast<size_t>(i * stride + j)], expected);
      }
    }
  }
  std::vector<int> rows(5 * 3);
  std::vector<int32_t> owner;
  for (int i = 0; i < 5; ++i) owner.push_back((i * i) % group.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = group.rank() * 100 + static_cast<int>(i);
  const Rows both = rows_of(rows, 5, 2, 3);
  base ? group.Group::gather_rows(both, owner) : group.gather_rows(both, owner);
  for (int i = 0; i < 15; ++i) {
    const int of = i % 3 < 2 ? owner[static_cast<size_t>(i / 3)] : group.rank();
    EXPECT_EQ(rows[static_cast<size_t>(i)], of * 100 + i);
  }
}

TEST(ThreadGroup, GathersColumnsAndRows) {
  for (const int size : {1, 2, 3, 4}) {
    on_threads(size, [](Group& group) {
      for (const bool base : {false, true}) gather_rows_and_columns(group, base);
    });
  }
}

TEST(ThreadGroup, SplitsIntoGroups) {
  on_threads(5, [](Group& group) {
    const int first = group.rank() < 2 ? 0 : 2;
    const std::unique_ptr<Group> part = group.split(first, first == 0 ? 2 : 3);
    EXPECT_EQ(part->size(), first == 0 ? 2 : 3);
    EXPECT_EQ(part->rank(), group.rank() - first);
    for (int round = 0; round < 20; ++round) {
      std::vector<int> word = {group.rank() * 100 + round};
      part->broadcast(std::as_writable_bytes(std::span(word)), part->size() - 1);
      EXPECT_EQ(word[0], (first + part->size() - 1) * 100 + round);
    }
    group.barrier();
  });
}

}  // namespace
}  // namespace quire::distributed
