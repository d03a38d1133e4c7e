// SPDX-License-Identifier: Apache-2.0
// A RankWatch names the rank that ended, and tells its end from a rank that left in order.
#include "distributed/rank_watch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <future>

namespace quire::distributed {
namespace {

using namespace std::chrono_literals;
using Told = std::pair<int, Loss>;

// The ends of `size` ranks in one process. What end r is told arrives in told[r].
struct Star {
  explicit Star(int size, std::chrono::duration<double> silence = 60s) : told(static_cast<size_t>(size)) {
    WatchAddress address;
    ends.push_back(RankWatch::listen(size, address).value());
    // Strangers on the port: one says nothing, one talks nonsense.
    for (const char* words : {"", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"}) {
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(address.port);
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      strangers.push_back(::socket(AF_INET, SOCK_STREAM, 0));
      EXPECT_EQ(::connect(strangers.back(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
      EXPECT_EQ(::send(strangers.back(), words, std::strlen(words), 0), std::ssize(std::string(words)));
    }
    std::vector<std::future<Result<std::unique_ptr<RankWatch>>>> joining;
    for (int r = 1; r < size; ++r) {
      joining.push_back(std::async(std::launch::async, [=] { return RankWatch::connect(r, size, address, 60s); }));
    }
    const auto on_lost = [this](size_t r) { return [this, r](int rank, Loss why) { told[r].set_value({rank, why}); }; };
    EXPECT_TRUE(ends[0]->start(60s, silence, on_lost(0)).ok());
    for (auto& joined : joining) ends.push_back(joined.get().value());
    for (size_t r = 1; r < ends.size(); ++r) EXPECT_TRUE(ends[r]->start(60s, silence, on_lost(r)).ok());
  }
  ~Star() {
    for (const int fd : strangers) ::close(fd);
  }

  std::vector<std::promise<Told>> told;
  std::vector<std::unique_ptr<RankWatch>> ends;
  std::vector<int> strangers;
};

TEST(RankWatch, EveryRankLearnsWhichOneEnded) {
  for (const int lost : {0, 2}) {
    Star star(4);
    star.ends[static_cast<size_t>(lost)].reset();
    for (int r = 0; r < 4; ++r) {
      if (r == lost) continue;
      EXPECT_EQ(star.told[static_cast<size_t>(r)].get_future().get(), Told(lost, Loss::kEnded)) << r;
    }
  }
}

TEST(RankWatch, EveryRankLearnsWhoStalled) {
  for (const size_t teller : {0u, 1u}) {
    Star star(3);
    star.ends[teller]->tell_lost(2, Loss::kStalled);
    const size_t other = 1 - teller;
    EXPECT_EQ(star.told[other].get_future().get(), Told(2, Loss::kStalled));
  }
}

TEST(RankWatch, RanksLeaveTogether) {
  Star star(4);
  std::vector<std::future<bool>> leaving;
  for (const auto& end : star.ends) leaving.push_back(std::async(std::launch::async, [&end] { return end->leave(); }));
  for (std::future<bool>& left : leaving) EXPECT_TRUE(left.get());
}

TEST(RankWatch, WhoeverGoesOnLearnsWhoLeft) {
  for (const int early : {0, 1}) {
    Star star(3);
    auto leaving = std::async(std::launch::async, [&] { return star.ends[static_cast<size_t>(early)]->leave(); });
    for (int r = 0; r < 3; ++r) {
      if (r == early) continue;
      EXPECT_EQ(star.told[static_cast<size_t>(r)].get_future().get(), Told(early, Loss::kLeft)) << r;
      star.ends[static_cast<size_t>(r)].reset();  // as the process would end
    }
    EXPECT_FALSE(leaving.get());
  }
}

TEST(RankWatch, ARankThatNobodyReachesIsAnError) {
  WatchAddress address;
  { const auto listening = RankWatch::listen(2, address); }
  const auto joined = RankWatch::connect(1, 2, address, 60s);
  ASSERT_FALSE(joined.ok());
  EXPECT_TRUE(joined.error().message.starts_with("rank 1 cannot reach rank 0 on port ")) << joined.error().message;
}

}  // namespace
}  // namespace quire::distributed
