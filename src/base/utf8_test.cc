// SPDX-License-Identifier: Apache-2.0
// UTF-8 round trips and the replacement of ill-formed bytes.
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire::utf8 {
namespace {

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string s;
    append(s, c);
    const Decoded d = decode(s, 0);
    ASSERT_TRUE(d.valid && d.code_point == c && d.size == s.size()) << static_cast<uint32_t>(c);
    for (size_t n = 1; n < s.size(); ++n) ASSERT_EQ(incomplete_suffix(s.substr(0, n)), n);
    ASSERT_EQ(incomplete_suffix(s), 0u);
  }
}

TEST(Utf8, IllFormedSubpartsAreReplacedAsPythonDoes) {
  const auto fix = [](std::string_view s) {
    std::string out;
    append_valid(out, s);
    return out;
  };
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(fix("a\xC0\xAFz"), "a" + r + r + "z");  // overlong
  EXPECT_EQ(fix("\xE2\x82"), r);                    // truncated
  EXPECT_EQ(fix("\xF0\x9F\x98x"), r + "x");
  EXPECT_EQ(fix("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(fix("\xF4\x90\x80\x80"), r + r + r + r);  // past U+10FFFF
  EXPECT_EQ(fix("plain"), "plain");
}

// The bytes after the end of the text would complete the character: a reader that looks past the end would take them.
TEST(Utf8, NothingIsReadPastTheEnd) {
  for (const std::string_view whole : {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (size_t n = 1; n < whole.size(); ++n) {
      const Decoded d = decode(whole.substr(0, n), 0);
      EXPECT_FALSE(d.valid);
      EXPECT_EQ(d.size, n);
      EXPECT_FALSE(is_valid(whole.substr(0, n)));
    }
  }
}

TEST(Utf8, ABeginningEndsBetweenCharacters) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC";  // of 1, 2 and 3 bytes
  const std::vector<std::string> expected = {"", "a", "a", "a\xC3\xA9", "a\xC3\xA9", "a\xC3\xA9", text, text};
  for (size_t bytes = 0; bytes < expected.size(); ++bytes) EXPECT_EQ(beginning(text, bytes), expected[bytes]) << bytes;
}

TEST(Utf8, AMiddleIsCutBetweenCharacters) {
  EXPECT_EQ(without_middle("héllo", 6), "héllo");
  EXPECT_EQ(without_middle("0123456789", 9), "012345 ... 789");
  const std::string many = std::string(5, 'a') + "éééééééé";
  for (size_t bytes = 0; bytes < many.size(); ++bytes) EXPECT_TRUE(is_valid(without_middle(many, bytes))) << bytes;
}

}  // namespace
}  // namespace quire::utf8
