// SPDX-License-Identifier: Apache-2.0
// Digests: they notice every changed bit, and their values never change.
#include "base/digest.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace quire {
namespace {

std::vector<std::byte> sample(size_t size) {
  std::vector<std::byte> bytes(size);
  uint32_t x = 1;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((x = x * 1664525 + 1013904223) >> 24);
  return bytes;
}

TEST(Digest, NoticesEveryBit) {
  for (const size_t size : {1, 4, 255, 256, 257, 1000}) {
    std::vector<std::byte> bytes = sample(size);
    std::set<std::string> seen = {digest_of(bytes).hex()};
    for (size_t bit = 0; bit < size * 8; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      EXPECT_TRUE(seen.insert(digest_of(bytes).hex()).second) << size << " bytes, bit " << bit;
      bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
  }
}

TEST(Digest, NoticesTwoBitsOfOneLane) {
  // The difference that the first bit leaves in the state of a lane is undone by a bit of its next word.
  std::vector<std::byte> bytes = sample(1024);
  const Digest before = digest_of(bytes);
  bytes[3] ^= std::byte{0x80};
  for (size_t bit = 0; bit < 32; ++bit) {
    bytes[128 + bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_NE(digest_of(bytes), before) << bit;
    bytes[128 + bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
}

TEST(Digest, NoticesLengthAndOrder) {
  std::set<std::string> seen;
  const std::vector<std::byte> zeros(600);
  for (size_t size = 0; size <= zeros.size(); ++size) {
    EXPECT_TRUE(seen.insert(digest_of(std::span(zeros).first(size)).hex()).second) << size;
  }
  EXPECT_NE(digest_of("ab"), digest_of("ba"));
}

// Receipts are kept for years, so a digest may never change.
TEST(Digest, KeepsItsValues) {
  EXPECT_EQ(digest_of("").hex(), "5c187aeb32a4be8e7592b0bafff076f6");
  EXPECT_EQ(digest_of("quire").hex(), "a7b33430b5563e3ae9754841d64e9152");
  EXPECT_EQ(digest_of(sample(1000)).hex(), "56447c6b26a981abe1ac66920255bed6");
  EXPECT_EQ(hex_digits(0x1a2b), "0000000000001a2b");
}

}  // namespace
}  // namespace quire
