// SPDX-License-Identifier: Apache-2.0
// The hash of pages: published values of SipHash, and what enters the chain.
#include "kv/prefix_hash.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>
#include <vector>

namespace quire::kv {
namespace {

constexpr uint64_t kKeyLo = 0x0706050403020100ull;  // the key 00 01 .. 0f of the published vectors
constexpr uint64_t kKeyHi = 0x0f0e0d0c0b0a0908ull;

std::vector<std::byte> counting_bytes(size_t n) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

TEST(PrefixHash, SipHashGivesThePublishedValues) {
  // The reference's vectors for 128-bit output, messages 00 01 02 .. of length 0, 1 and 2.
  const std::array<BlockHash, 3> expected = {BlockHash{0xe6a825ba047f81a3ull, 0x930255c71472f66dull},
                                             BlockHash{0x44af996bd8c187daull, 0x45fc229b11597634ull},
                                             BlockHash{0xc75da4a48d227781ull, 0xe4ff0af6de8ba3fcull}};
  for (size_t n = 0; n < expected.size(); ++n) {
    const BlockHash hash = siphash128(kKeyLo, kKeyHi, counting_bytes(n));
    EXPECT_EQ(hash.lo, expected[n].lo) << n;
    EXPECT_EQ(hash.hi, expected[n].hi) << n;
  }
}

TEST(PrefixHash, EveryPartOfAPageEnters) {
  const PrefixHasher hasher(1, 2);
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  const BlockHash base = hasher.hash({}, tokens);
  EXPECT_EQ(hasher.hash({}, tokens), base);
  std::set<std::pair<uint64_t, uint64_t>> seen;
  const auto add = [&seen](const BlockHash& h) { return seen.insert({h.lo, h.hi}).second; };
  EXPECT_TRUE(add(base));
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto other = tokens;
    other[i] += 1;
    EXPECT_TRUE(add(hasher.hash({}, other))) << "token " << i;
  }
  EXPECT_TRUE(add(hasher.hash({.lo = 1, .hi = 0}, tokens)));
  EXPECT_TRUE(add(hasher.hash({.lo = 0, .hi = 1}, tokens)));
  EXPECT_TRUE(add(hasher.hash({}, tokens, "salt")));
  EXPECT_TRUE(add(hasher.hash({}, tokens, std::string_view("\0", 1))));
  EXPECT_TRUE(add(hasher.hash({}, tokens, std::string_view("\0\0", 2))));
  EXPECT_TRUE(add(hasher.hash({}, std::span(tokens).first(3))));
  EXPECT_TRUE(add(hasher.hash({}, std::vector<int32_t>{1, 2, 3, 0})));
  EXPECT_TRUE(add(PrefixHasher(1, 3).hash({}, tokens)));
  EXPECT_TRUE(add(PrefixHasher(2, 2).hash({}, tokens)));
}

TEST(PrefixHash, RandomKeysDiffer) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  EXPECT_NE(PrefixHasher::random().hash({}, tokens), PrefixHasher::random().hash({}, tokens));
}

TEST(PrefixHash, TheTestHookForcesCollisions) {
  const PrefixHasher hasher = PrefixHasher::colliding(0);
  EXPECT_EQ(hasher.hash({}, std::vector<int32_t>{1}), hasher.hash({}, std::vector<int32_t>{2}, "x"));
}

}  // namespace
}  // namespace quire::kv
