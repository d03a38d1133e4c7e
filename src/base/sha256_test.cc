// SPDX-License-Identifier: Apache-2.0
// SHA-256 against the examples of its standard, and in pieces of every length.
#include "base/sha256.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::string of(std::string_view text) {
  return hex(Sha256().add(text).finish());
}

TEST(Sha256Test, GivesThePublishedValues) {
  EXPECT_EQ(of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(of(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, DoesNotDependOnThePieces) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 7);
  for (size_t length = 0; length <= text.size(); ++length) {
    const std::string_view whole = std::string_view(text).substr(0, length);
    for (const size_t cut : {length / 2, length / 3, size_t{0}}) {
      EXPECT_EQ(hex(Sha256().add(whole.substr(0, cut)).add(whole.substr(cut)).finish()), of(whole)) << length;
    }
  }
}

}  // namespace
}  // namespace quire
