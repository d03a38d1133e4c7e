// SPDX-License-Identifier: Apache-2.0
// Pages that engines copy from each other, while their owners overwrite them.
#include "kv/peer_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

namespace quire::kv {
namespace {

// So large that an owner has time to write while another engine copies.
constexpr size_t kPeerBytes = 1 << 19;
using PeerPage = std::vector<std::byte>;

PageKey peer_key(uint8_t number) {
  PageKey key;
  key.prefix[0] = number;
  return key;
}

PeerPage peer_page(uint8_t number) {
  return PeerPage(kPeerBytes, std::byte{number});
}

TEST(PeerPagesTest, APageIsFoundWhileSomeEngineHasIt) {
  PeerPages peers;
  const PeerPage one = peer_page(7), same = peer_page(7);
  PeerPage to(kPeerBytes);
  EXPECT_FALSE(peers.has(peer_key(7)) || peers.copy(peer_key(7), to));
  peers.add(peer_key(7), one.data());
  peers.add(peer_key(7), one.data());
  peers.add(peer_key(7), same.data());
  peers.remove(peer_key(7), one.data());
  EXPECT_TRUE(peers.has(peer_key(7)));
  EXPECT_TRUE(peers.copy(peer_key(7), to));
  EXPECT_EQ(to, same);
  EXPECT_FALSE(peers.has(peer_key(8)));
  peers.remove(peer_key(7), same.data());
  peers.remove(peer_key(7), same.data());
  EXPECT_FALSE(peers.has(peer_key(7)) || peers.copy(peer_key(7), to));
}

TEST(PeerPagesTest, ACopyIsWholeWhileTheOwnerOverwritesItsPages) {
  PeerPages peers;
  std::atomic<bool> stop = false;
  std::thread owner([&] {
    std::array<PeerPage, 2> pages = {peer_page(9), peer_page(9)};  // of three contents, two are there
    for (int round = 0; !stop; ++round) {
      PeerPage& page = pages[static_cast<size_t>(round % 2)];
      peers.remove(peer_key(static_cast<uint8_t>((round + 1) % 3)), page.data());
      std::ranges::fill(page, static_cast<std::byte>(round % 3));
      peers.add(peer_key(static_cast<uint8_t>(round % 3)), page.data());
    }
  });
  PeerPage to(kPeerBytes);
  for (int copies = 0, round = 0; copies < 200; ++round) {
    const auto number = static_cast<uint8_t>(round % 3);
    if (!peers.copy(peer_key(number), to)) continue;
    EXPECT_TRUE(to == peer_page(number));
    ++copies;
  }
  stop = true;
  owner.join();
}

}  // namespace
}  // namespace quire::kv
