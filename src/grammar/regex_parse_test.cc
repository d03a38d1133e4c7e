// SPDX-License-Identifier: Apache-2.0
// Tests of parse_regex: what patterns match, what they are refused for, and that hostile ones end quickly.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/regex.h"

namespace quire::grammar {
namespace {

struct Case {
  std::string pattern;
  std::vector<std::string> yes;
  std::vector<std::string> no;
};

void check(const std::vector<Case>& cases, const RegexSyntax& syntax) {
  for (const Case& c : cases) {
    SCOPED_TRACE("pattern " + c.pattern);
    RegexStore store;
    const auto regex = parse_regex(store, c.pattern, syntax);
    ASSERT_TRUE(regex.ok()) << regex.error().message;
    for (const std::string& text : c.yes) EXPECT_TRUE(store.matches(*regex, text)) << "should match: " << text;
    for (const std::string& text : c.no) EXPECT_FALSE(store.matches(*regex, text)) << "should not match: " << text;
  }
}

TEST(RegexParse, WholeTextsMatch) {
  check({{"", {""}, {"a"}},
         {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
         {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
         {"(a|b)c", {"ac", "bc"}, {"a", "c", "abc"}},
         {"a*b+c?", {"b", "aabbc"}, {"", "a", "acc", "bcc"}},
         {"a{2}", {"aa"}, {"a", "aaa"}},
         {"a{2,}", {"aa", "aaaaa"}, {"a"}},
         {"a{1,3}?", {"a", "aa", "aaa"}, {"", "aaaa"}},
         {"a{,x}", {"a{,x}"}, {"a"}},
         {"{}x{y}", {"{}x{y}"}, {}},
         {"(?:ab)+", {"abab"}, {"aba"}},
         {"(?<name>a)(?P<other>b)", {"ab"}, {"a"}},
         {"a(?#a comment)b", {"ab"}, {"a"}},
         {".", {"a", "\r", "é", "😀"}, {"", "\n", "ab", "\xff"}},
         {"(?s).", {"\n"}, {""}},
         {"(?s:.)(?-s:.)", {"\na"}, {"\n\n"}}},
        {});
}

TEST(RegexParse, Escapes) {
  check({{"\\n\\r\\t\\f\\v\\a\\0", {std::string("\n\r\t\f\v\a\0", 7)}, {"n"}},
         {"\\x41\\u00e9\\u{1F600}\\U0001F600\\x{42}", {"Aé😀😀B"}, {}},
         {"\\uD83D\\uDE00", {"😀"}, {}},
         {"\\cA\\cz", {"\x01\x1a"}, {}},
         {"\\d\\D\\w\\W\\s\\S", {"1a_-\t."}, {"aa_-\t.", "11_-\t."}},
         {"\\d", {"0", "9"}, {"٣"}},
         {"\\s", {" ", "\u00a0", "\u2028", "\ufeff", "\u3000"}, {"a", "\u200b"}},
         {"\\.\\*\\/\\-\\_\\\"\\{", {".*/-_\"{"}, {}},
         {"\\p{L}+", {"aéЖ漢"}, {"1", "a1"}},
         {"\\p{Lu}\\p{Ll}\\pN", {"Aa1", "Жж٣"}, {"aA1"}},
         {"\\P{L}", {"1", " "}, {"a"}},
         {"\\p{^L}", {"1"}, {"a"}},
         {"\\p{Script=Greek}\\p{sc=Han}\\p{gc=Nd}\\p{Any}", {"α漢1x"}, {"a漢1x"}},
         {"[\\p{Lu}\\d]", {"A", "Ж", "7"}, {"a"}},
         {"[\\b]", {"\b"}, {"b"}}},
        {});
}

TEST(RegexParse, Classes) {
  check({{"[abc]", {"a", "b"}, {"d", "ab"}},
         {"[a-cx-z]", {"b", "y"}, {"d", "-"}},
         {"[^a-c]", {"d", "\n", "😀"}, {"b", "\xff"}},
         {"[-a]", {"-", "a"}, {"b"}},
         {"[a-]", {"-", "a"}, {"b"}},
         {"[\\w-.]", {"-", ".", "a"}, {"!"}},
         {"[\\]\\[]", {"]", "["}, {"\\"}},
         {"[[(.*$]", {"[", "(", ".", "*", "$"}, {"a"}},
         {"[α-ω]", {"β"}, {"b"}},
         {"[\\u4e00-\\u9fff]", {"漢"}, {"a"}},
         {"[+--]", {"+", ",", "-"}, {"."}},
         {"[a&&b]", {"a", "&", "b"}, {"c"}}},
        {});
}

TEST(RegexParse, IgnoresCase) {
  check({{"(?i)abcß", {"ABCß", "aBcß"}, {"abd"}},
         {"(?i:a)b", {"Ab", "ab"}, {"aB"}},
         {"a(?i)b|c", {"aB", "C"}, {"AB"}},
         {"((?i)a)b", {"Ab"}, {"AB"}},
         {"(?i)[a-c]Ж", {"Bж"}, {"dж"}},
         {"(?i)[^a]", {"b"}, {"a", "A"}}},
        {});
  check({{"ab", {"AB", "Ab"}, {"a"}}}, {.ignore_case = true});
}

TEST(RegexParse, AnchorsOfWholeTexts) {
  check({{"^abc$", {"abc"}, {"ab", "xabc"}},
         {"^a|b$", {"a", "b"}, {"ab"}},
         {"\\Aab\\z", {"ab"}, {}},
         {"\\Aab\\Z", {"ab"}, {"ab\n"}},
         {"(^a)(b$)", {"ab"}, {}},
         {"a^b", {}, {"ab", "a^b"}},
         {"a$b", {}, {"ab"}}},
        {});
}

TEST(RegexParse, SearchFindsTheMatchAnywhere) {
  check({{"b", {"b", "abc", "xxb\n"}, {"", "a"}},
         {"^b", {"b", "bc"}, {"ab"}},
         {"b$", {"b", "ab"}, {"ba", "b\n"}},
         {"^b$", {"b"}, {"ab", "bb"}},
         {"^a|b$", {"ax", "xb", "a", "b"}, {"xa", "bx"}},
         {"^(a|b)$", {"a", "b"}, {"ab", ""}},
         {"(^|-)a(-|$)", {"a", "x-a", "a-x", "x-a-y"}, {"xa", "ax", ""}},
         {"(^a|b)*c", {"c", "xc", "abbc", "zbc"}, {"", "b"}},
         {"^(^a|b){2}$", {"ab", "bb"}, {"aa", "ba"}},
         {"^(?:a|b$)*$", {"", "a", "aab", "b"}, {"aba", "bb"}},
         {"^(?:a|b$)+$", {"aab", "b"}, {"", "bb"}},
         {"^()*^a", {"a"}, {"ba"}},
         {"^a?^b", {"b", "bx"}, {"ab"}},
         {"", {"", "anything"}, {"\xff"}},
         {".", {"a", "\na"}, {"", "\n", "\r\u2028\u2029"}},
         {"a.b", {"a b"}, {"a\rb"}}},
        {.search = true});
}

TEST(RegexParse, LookAheads) {
  check({{"^(?=.*[A-Z])(?=.*\\d).{4,}$", {"aB1x", "1Zzz"}, {"ab1x", "aBcd", "B1"}},
         {"^(?!foo)[a-z]+$", {"bar", "fo", "xfoo"}, {"foo", "foobar"}},
         {"^(?!.*--)[a-z-]+$", {"a-b-c"}, {"a--b"}},
         {"^a(?=b)", {"ab", "abc"}, {"a", "ac"}},
         {"a(?!b)", {"a", "ac", "aba"}, {"ab", "b"}},
         {"^(?:(?!x)[a-z]){0,3}$", {"", "abc"}, {"x", "axb", "abcd"}},
         {"^(?!(?:a|b)$).*$", {"", "c", "ab"}, {"a", "b"}},
         {"^(?=^a)", {"a", "ab"}, {"b"}}},
        {.search = true});
  check({{"(?!no)[a-z]+", {"yes", "n"}, {"no", "none"}}, {"a(?=b)b", {"ab"}, {"a"}}}, {});
}

std::string error_of(const std::string& pattern) {
  RegexStore store;
  const auto regex = parse_regex(store, pattern);
  return regex.ok() ? "" : regex.error().message;
}

TEST(RegexParse, RefusalsNameTheConstructAndItsOffset) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ab(?<=c)", "The pattern has a look-behind at offset 2, which is not supported."},
      {"(?<!c)", "The pattern has a look-behind at offset 0, which is not supported."},
      {"(a)\\1", "The pattern has a backreference at offset 3, which is not supported."},
      {"(?<n>a)\\k<n>", "The pattern has a backreference at offset 7, which is not supported."},
      {"(?P=n)", "The pattern has a reference to a group at offset 0, which is not supported."},
      {"\\bword", "The pattern has a word boundary \\b or \\B at offset 0, which is not supported."},
      {"a++", "The pattern has a possessive quantifier at offset 1, which is not supported."},
      {"a{2}+", "The pattern has a possessive quantifier at offset 1, which is not supported."},
      {"(?>a)", "The pattern has an atomic group at offset 0, which is not supported."},
      {"(?|a)", "The pattern has a branch-reset group at offset 0, which is not supported."},
      {"(?(1)a)", "The pattern has a conditional group at offset 0, which is not supported."},
      {"(*SKIP)", "The pattern has a verb (*...) at offset 0, which is not supported."},
      // The opening of the group stood outside of the quotation marks: (?"m".
      {"(?m)^a", "The pattern has the flag or group \"(?m\" at offset 2, which is not supported."},
      {"a(?i-x)b", "The pattern has the flag or group \"(?i-x\" at offset 5, which is not supported."},
      {"(?:(?!a).)*", "The pattern has a repeated look-ahead at offset 0, which is not supported."},
      {"\\p{Nope}", "The pattern has the Unicode property \"Nope\" at offset 0, which is not supported."},
      {"\\p{scx=Greek}", "The pattern has a property of script extensions at offset 0, which is not supported."},
      {"\\q", "The pattern has the escape \\q at offset 0, which is not supported."},
      {"\\012", "The pattern has an octal escape (write \\xHH) at offset 0, which is not supported."},
      {"[[:alpha:]]",
       "The pattern has a POSIX class [:...:] (write its characters out) at offset 1, which is not supported."},
      {"[]a]",
       "The pattern has \"]\" as the first character of a class (dialects disagree on it; write \\]) at offset 1, "
       "which is not supported."},
      {"a{,3}",
       "The pattern has a quantifier without a lower bound (write {0,3}) at offset 1, which is not supported."},
      {"a**", "The pattern is wrong at offset 2: a quantifier follows another; put the first one in a group."},
      {"*a", "The pattern is wrong at offset 0: there is nothing to repeat."},
      {"a|+", "The pattern is wrong at offset 2: there is nothing to repeat."},
      {"{2}", "The pattern is wrong at offset 0: there is nothing to repeat."},
      {"(?i)*", "The pattern is wrong at offset 4: there is nothing to repeat."},
      {"^*", "The pattern is wrong at offset 1: an anchor or a look-ahead cannot be repeated."},
      {"(a", "The pattern is wrong at offset 0: the group is not closed."},
      {"(?i", "The pattern is wrong at offset 0: the group is not closed."},
      {"(?#a", "The pattern is wrong at offset 0: the comment is not closed."},
      {"(?<n", "The pattern is wrong at offset 0: the name of the group is not closed by \">\"."},
      {"(?i--s)", "The pattern is wrong at offset 4: \"-\" stands twice among the flags."},
      {"a)", "The pattern is wrong at offset 1: \")\" closes no group; write \\) for the character."},
      {"[a", "The pattern is wrong at offset 0: the class is not closed by \"]\"."},
      {"[", "The pattern is wrong at offset 0: the class is not closed by \"]\"."},
      {"[z-a]", "The pattern is wrong at offset 1: the range of the class is out of order."},
      {"[a-\\d]", "The pattern is wrong at offset 1: a range of a class must end in a character."},
      {"a{3,2}", "The pattern is wrong at offset 1: the quantifier's upper bound is less than its lower bound."},
      {"a{9999999}", "The pattern is wrong at offset 2: a quantifier may count up to 1000000."},
      {"a\\", "The pattern is wrong at offset 1: the pattern ends in a backslash."},
      {"\\xZZ", "The pattern is wrong at offset 0: the escape needs hexadecimal digits."},
      {"\\u{}", "The pattern is wrong at offset 0: the escape needs hexadecimal digits."},
      {"\\u{110000}", "The pattern is wrong at offset 0: the escape is beyond U+10FFFF."},
      {"\\ud800", "The pattern is wrong at offset 0: a surrogate alone is not a character."},
      {"\\p{L", "The pattern is wrong at offset 0: the escape is not closed by \"}\"."},
      {"\\c1", "The pattern is wrong at offset 0: \\c needs a letter after it."},
      {"a\xff", "The pattern is wrong at offset 1: it is not valid UTF-8 there."},
  };
  for (const auto& [pattern, message] : cases) EXPECT_EQ(error_of(pattern), message) << pattern;
  EXPECT_EQ(error_of(std::string(1 << 20, 'a')), "The pattern is longer than 256 KiB.");
}

TEST(RegexParse, HostilePatternsAreBounded) {
  const auto many = [](const std::string& part, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += part;
    return out;
  };
  const std::vector<std::string> patterns = {
      "(((a{1000}){1000}){1000}){1000}",
      many("(", 150) + "a" + many(")*", 150),
      many("(", 100'000),
      many("(?:a|", 190) + many(")", 190),
      many("(a|b)", 20'000),
      many("a|", 100'000),
      many("(?=a)", 2'000),
      many("(?:(?!a)", 100) + many("){0,64}", 100),
      many("(?:^a|", 60) + many("){0,64}", 60),
      many("\\p{L}", 20'000),
      "(?i)" + many("[\\p{L}]", 1'000),
      many("[^a]{0,1000}", 1'000),
      many("(^|a)", 10'000),
  };
  for (const std::string& pattern : patterns) {
    for (const bool search : {false, true}) {
      RegexStore store;
      (void)parse_regex(store, pattern, {.search = search});
    }
  }
}

}  // namespace
}  // namespace quire::grammar
