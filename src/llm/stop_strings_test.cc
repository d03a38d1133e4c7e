// SPDX-License-Identifier: Apache-2.0
// Stop strings against a plain search, cut into pieces in every way.
#include "llm/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace quire::llm {
namespace {

struct Run {
  std::string text;
  bool stopped;
};

Run run(const std::vector<std::string>& stops, bool include, const std::string& text, size_t piece) {
  StopStrings watch(stops, include);
  std::string out;
  for (size_t i = 0; i < text.size(); i += piece) out += watch.push(text.substr(i, piece));
  out += watch.flush();
  return {out, watch.stopped()};
}

TEST(StopStrings, CutsBeforeTheStopHoweverTheTextArrives) {
  for (size_t piece = 1; piece < 12; ++piece) {
    EXPECT_EQ(run({"END"}, false, "hello END world", piece).text, "hello ") << piece;
    EXPECT_EQ(run({"END"}, true, "hello END world", piece).text, "hello END") << piece;
    EXPECT_EQ(run({"absent"}, false, "hello END world", piece).text, "hello END world") << piece;
  }
}

TEST(StopStrings, TheMatchThatCompletesFirstWins) {
  StopStrings watch({"lo wor", "ell"}, false);
  EXPECT_EQ(watch.push("hello world"), "h");
  EXPECT_EQ(watch.matched(), "ell");
}

TEST(StopStrings, HoldsBackWhatCouldBecomeAStop) {
  StopStrings watch({"abcd"}, false);
  EXPECT_EQ(watch.push("xxabc"), "xx");
  EXPECT_EQ(watch.push("e"), "a");  // as many characters as the longest stop has less one
  EXPECT_EQ(watch.flush(), "bce");
}

TEST(StopStrings, IgnoresMatchesThatEndBeforeItIsArmed) {
  StopStrings watch({"stop"}, false);
  std::string out = watch.push("a stop", false);
  out += watch.push(" b st", true);
  out += watch.push("op c", true);
  EXPECT_TRUE(watch.stopped());
  EXPECT_EQ(out, "a stop b ");
}

TEST(StopStrings, RandomTextsAgreeWithAWholeSearch) {
  std::mt19937 rng(7);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += static_cast<char>('a' + rng() % 3);
    std::vector<std::string> stops;
    for (unsigned s = 0; s < 1 + rng() % 3; ++s) {
      std::string stop;
      for (unsigned i = 0; i < 1 + rng() % 5; ++i) stop += static_cast<char>('a' + rng() % 3);
      stops.push_back(stop);
    }
    // One character at a time: the first prefix that ends in a stop decides.
    std::string expected = text;
    for (size_t end = 1; end <= text.size() && expected == text; ++end) {
      for (const std::string& stop : stops) {
        if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) {
          expected = text.substr(0, end - stop.size());
          break;
        }
      }
    }
    ASSERT_EQ(run(stops, false, text, 1).text, expected) << text;
  }
}

}  // namespace
}  // namespace quire::llm
