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

}  // namespace
}  // namespace quire::distributed
