// SPDX-License-Identifier: Apache-2.0
// Edit distances, and which words count as near.
#include "base/suggest.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(Suggest, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("port", ""), 4u);
  EXPECT_EQ(edit_distance("", "port"), 4u);
  EXPECT_EQ(edit_distance("port", "prt"), 1u);
  EXPECT_EQ(edit_distance("port", "ports"), 1u);
  EXPECT_EQ(edit_distance("port", "pork"), 1u);
  EXPECT_EQ(edit_distance("port", "prot"), 1u);  // a swap is one edit
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Suggest, FindsTheNearestWord) {
  const std::vector<std::string> commands = {"serve", "run", "chat", "tokenize", "inspect", "pull", "bench"};
  EXPECT_EQ(closest_word("sevre", commands), "serve");
  EXPECT_EQ(closest_word("tokenise", commands), "tokenize");
  EXPECT_EQ(closest_word("SERVE", commands), "serve");
  EXPECT_EQ(closest_word("insp", commands), "inspect");     // cut short
  EXPECT_EQ(closest_word("benchmark", commands), "bench");  // too long
  EXPECT_EQ(closest_word("chatt", commands), "chat");
}

TEST(Suggest, SaysNothingWhenNothingIsNear) {
  const std::vector<std::string> commands = {"serve", "run", "chat"};
  EXPECT_EQ(closest_word("frobnicate", commands), std::nullopt);
  EXPECT_EQ(closest_word("", commands), std::nullopt);
  EXPECT_EQ(closest_word("x", commands), std::nullopt);
  EXPECT_EQ(closest_word("a", {"n"}), std::nullopt);
  EXPECT_EQ(closest_word("chats-of-mine", commands), "chat");
  EXPECT_EQ(closest_word("chats-of-mine", commands, false), std::nullopt);
  EXPECT_EQ(closest_word(std::string(100'000, 'a'), commands), std::nullopt);
  EXPECT_EQ(did_you_mean("frobnicate", commands), "");
  EXPECT_EQ(did_you_mean("srve", commands), "; did you mean 'serve'?");
}

}  // namespace
}  // namespace quire
