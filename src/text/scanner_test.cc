// SPDX-License-Identifier: Apache-2.0
// The scanners against the regular expressions that they replace, and the two modes of a regular expression.
#include "text/scanner.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/test_sanitized.h"
#include "base/utf8.h"
#include "text/regex.h"

namespace quire::text {
namespace {

// Text that reaches every branch: apostrophes, letters with and without case, marks, digits, spaces, breaks, anything.
std::string random_text(std::mt19937& rng) {
  static const std::vector<std::string> kParts = {"'",
                                                  "'s",
                                                  "'S",
                                                  "'\xc5\xbf",
                                                  "'ll",
                                                  "'Re",
                                                  "'vE",
                                                  "'t",
                                                  "'D",
                                                  "'m",
                                                  " ",
                                                  "  ",
                                                  "\t",
                                                  "\n",
                                                  "\r\n",
                                                  "\r",
                                                  "/",
                                                  "\xc2\xa0",
                                                  "\xe3\x80\x80",
                                                  "a",
                                                  "bc",
                                                  "B",
                                                  "AB",
                                                  "aB",
                                                  "1",
                                                  "23",
                                                  "4567",
                                                  "\xc2\xbd",
                                                  "\xd9\xa3",
                                                  "!",
                                                  "?!",
                                                  "$",
                                                  "_",
                                                  "\xcc\x81",
                                                  "\xe0\xa4\xbe",
                                                  "\xe4\xb8\xad",
                                                  "\xe3\x81\x82",
                                                  "\xca\xb0",
                                                  "\xc7\x85",
                                                  "\xc3\x89",
                                                  "\xc3\x9f",
                                                  "\xf0\x9f\x98\x80",
                                                  "\xe2\x80\x8d"};
  std::string text;
  const int parts = std::uniform_int_distribution<int>(0, 24)(rng);
  for (int i = 0; i < parts; ++i) {
    if (rng() % 4 == 0) {
      char32_t cp = rng() % 3 == 0 ? rng() % 0x110000 : rng() % 0x3000;
      if (cp >= 0xd800 && cp < 0xe000) cp = 'x';
      utf8::append(text, cp);
    } else {
      text += kParts[rng() % kParts.size()];
    }
  }
  return text;
}

std::vector<Regex::Span> pieces_by_regex(const Regex& regex, const std::string& text) {
  std::vector<Regex::Span> matches;
  regex.find_all(text, matches);
  std::vector<Regex::Span> pieces;
  split_around(text.size(), matches, SplitBehavior::kIsolated, false, pieces);
  return pieces;
}

TEST(Scanner, CutsAsItsRegularExpressionDoes) {
  for (const std::string_view pattern : scanned_patterns()) {
    const Scanner scanner = scanner_for(pattern);
    ASSERT_NE(scanner, nullptr);
    const Regex regex = Regex::compile(pattern).value();
    std::mt19937 rng(1);
    for (int i = 0; i < 6000; ++i) {
      const std::string text = random_text(rng);
      std::vector<Piece> pieces;
      scanner(text, 0, pieces);
      std::vector<Regex::Span> got;
      for (const Piece& piece : pieces) got.emplace_back(piece.begin, piece.end);
      ASSERT_EQ(got, pieces_by_regex(regex, text))
          << "pattern " << pattern << "\ntext " << ::testing::PrintToString(text);
    }
  }
}

TEST(Scanner, CutsEveryCodePointAsItsRegularExpressionDoes) {
  for (const std::string_view pattern : scanned_patterns()) {
    const Regex regex = Regex::compile(pattern).value();
    std::string text;
    for (char32_t cp = 0; cp < 0x110000; ++cp) {
      if (cp >= 0xd800 && cp < 0xe000) continue;
      // Most of the higher planes is one class; sanitizers see its first and last 4,096 code points in each.
      if (kSanitized && cp >= 0x20000 && (cp & 0xf000) != 0 && (cp & 0xf000) != 0xf000) continue;
      text += 'a';
      utf8::append(text, cp);
      text += "1 ";
      if ((cp & 0xfff) != 0xfff) continue;
      std::vector<Piece> pieces;
      scanner_for(pattern)(text, 0, pieces);
      std::vector<Regex::Span> got;
      for (const Piece& piece : pieces) got.emplace_back(piece.begin, piece.end);
      ASSERT_EQ(got, pieces_by_regex(regex, text))
          << "pattern " << pattern << " before " << std::hex << static_cast<int>(cp);
      text.clear();
    }
  }
}

TEST(Regex, MatchesTheSameByClassesAndInUtfMode) {
  for (const std::string_view pattern : scanned_patterns()) {
    const Regex by_class = Regex::compile(pattern).value();
    const Regex in_utf = Regex::compile(pattern, Regex::Mode::kUtf).value();
    std::mt19937 rng(2);
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_text(rng);
      std::vector<Regex::Span> a;
      std::vector<Regex::Span> b;
      by_class.find_all(text, a);
      in_utf.find_all(text, b);
      ASSERT_EQ(a, b) << pattern;
    }
  }
}

std::vector<std::string> found(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.error().message;
  if (!regex.ok()) return {};
  std::vector<Regex::Span> spans;
  regex->find_all(text, spans);
  std::vector<std::string> out;
  for (const auto& [begin, end] : spans) out.emplace_back(text.substr(begin, end - begin));
  return out;
}

using Strings = std::vector<std::string>;

TEST(Regex, ReadsOnigurumasSyntax) {
  EXPECT_EQ(found("[a-c&&[^b]]+", "abcca"), (Strings{"a", "cca"}));
  EXPECT_EQ(found("[[:digit:]x]+", "1x2y3"), (Strings{"1x2", "3"}));
  EXPECT_EQ(found("(?<=a)b|\\Aa", "abab"), (Strings{"a", "b", "b"}));
  EXPECT_EQ(found("a{2}", "aaaaa"), (Strings{"aa", "aa"}));
  EXPECT_EQ(found("a{,2}b", "aaab"), (Strings{"aab"}));
  EXPECT_EQ(found("(.)\\1", "abbccd"), (Strings{"bb", "cc"}));
  EXPECT_EQ(found("\\bfoo\\b", "foo food foo"), (Strings{"foo", "foo"}));
  EXPECT_EQ(found("(?i)stra\xc3\x9f", "STRA\xc3\x9f"), (Strings{"STRA\xc3\x9f"}));
  EXPECT_EQ(found("(?i:k)", "kK\xe2\x84\xaa"), (Strings{"k", "K", "\xe2\x84\xaa"}));
  EXPECT_EQ(found("^b$", "a\nb\nc"), (Strings{"b"}));
  EXPECT_EQ(found("\\p{^L}+", "ab12"), (Strings{"12"}));
  EXPECT_EQ(found("[\\]\\-]", "a]-"), (Strings{"]", "-"}));
}

TEST(Regex, GivesEmptyMatchesOnce) {
  std::vector<Regex::Span> spans;
  Regex::compile("x*").value().find_all("axb", spans);
  EXPECT_EQ(spans, (std::vector<Regex::Span>{{0, 0}, {1, 2}, {3, 3}}));
}

TEST(Regex, SaysWhatIsWrongWithAPattern) {
  for (const char* bad : {"(", ")", "[a", "\\p{Nonsense}", "*a", "[z-a]", "\\X", "a{2000}", "(?(1)a)", "\\"}) {
    const auto regex = Regex::compile(bad);
    ASSERT_FALSE(regex.ok()) << bad;
    EXPECT_NE(regex.error().message.find("regular expression"), std::string::npos) << bad;
  }
}

TEST(Regex, EndsOnAPatternThatBacktracksWithoutBound) {
  std::vector<Regex::Span> spans;
  Regex::compile("(a|aa)+$x").value().find_all(std::string(60, 'a') + "b", spans);
  EXPECT_TRUE(spans.empty());
}

}  // namespace
}  // namespace quire::text
