// SPDX-License-Identifier: Apache-2.0
// Tests of EBNF and GBNF grammars: what they accept, what is refused, and hostile ones.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/test_sanitized.h"
#include "grammar/dialect_test_tools.h"
#include "grammar/test_grammars.h"

namespace quire::grammar {
namespace {

void check_ebnf(const std::string& text, const std::vector<std::string>& yes, const std::vector<std::string>& no) {
  SCOPED_TRACE(text);
  check_spec(grammar_spec(text), yes, no);
}

TEST(Ebnf, LiteralsClassesGroupsAndRepetition) {
  check_ebnf("root ::= \"a\" \"b\" | \"c\"", {"ab", "c"}, {"a", "", "abc"});
  check_ebnf("root ::= \"\" | \"x\"", {"", "x"}, {"xx"});
  check_ebnf("root ::= () \"x\"", {"x"}, {""});
  check_ebnf("root ::= \"\\n\\t\\r\\b\\f\\\\\\\"\\x41\\u00e9\\U0001F600\"", {"\n\t\r\b\f\\\"Aé😀"}, {});
  check_ebnf("root ::= \"中文\"", {"中文"}, {"中"});
  check_ebnf("root ::= [a-z0-9_]+", {"a", "z9_"}, {"", "A", "-"});
  check_ebnf("root ::= [^\"\\\\\\n]*", {"", "aé"}, {"\"", "\n"});
  check_ebnf("root ::= [\\]\\-\\^a]", {"]", "-", "^", "a"}, {"\\"});
  check_ebnf("root ::= [a-] [\\u4e00-\\u9fff]", {"-中"}, {"b中"});
  check_ebnf("root ::= [^] .", {"\nx", "😀😀"}, {"a"});
  check_ebnf("root ::= (\"a\" | \"b\")? \"c\"", {"c", "ac", "bc"}, {"abc"});
  check_ebnf("root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2}", {"aab", "aabbcc"}, {"ab", "aabccc"});
  check_ebnf("root ::= (\"ab\"+)+ [0-9]*", {"ab", "abab12"}, {"a", "12"});
}

TEST(Ebnf, RulesMayStandInAnyOrderAndSpanLines) {
  check_ebnf(
      "# a comment\nroot ::= first |  # another\n  second\n\nfirst ::= \"1\" third\nsecond ::=\n  \"2\"\nthird ::= "
      "\"#\"",
      {"1#", "2"}, {"1", "#"});
  check_ebnf("my-rule.x ::= \"a\"\nroot ::= my-rule.x my-rule.x", {"aa"}, {"a"});
}

// The bug: names that begin with a digit or "-" were refused, so that no grammar worked that llama.cpp's converter made
// from a schema with a property such as _id or 2fa.
TEST(Ebnf, NamesOfRulesMayBeginWithADigitOrAMinus) {
  check_ebnf("root ::= \"{\" -id-kv (\",\" 2fa-kv)? \"}\"\n-id-kv ::= \"i:\" 0-9\n2fa-kv ::= \"2\"\n0-9 ::= [0-9]{2}",
             {"{i:12}", "{i:12,2}"}, {"{}", "{i:1}"});
  check_ebnf("-kv ::= \"x\"\nroot ::= -kv{2} -kv?", {"xx", "xxx"}, {"x"});
  EXPECT_EQ(spec_error(grammar_spec("root ::= 5")), "The grammar uses the rule \"5\" on line 1, which is not defined.");
}

TEST(Ebnf, RecursionOfEveryKind) {
  check_ebnf("root ::= \"a\" root | \"b\"", {"b", "ab", "aaab"}, {"", "a", "ba"});
  check_ebnf("root ::= root \"a\" | \"b\"", {"b", "ba", "baaa"}, {"", "ab"});
  check_ebnf("root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())"});
  check_ebnf("root ::= ws \"x\" ws\nws ::= ([ \\n] ws)?", {"x", "  x\n"}, {"", "x y"});
  check_ebnf("root ::= a\na ::= \"1\" b | \"\"\nb ::= \"2\" a", {"", "12", "1212"}, {"1", "121"});
  check_ebnf("root ::= e\ne ::= e \"+\" t | t\nt ::= t \"*\" f | f\nf ::= \"(\" e \")\" | [0-9]+", {"1", "1+2*(3+4)*5"},
             {"1+", "(1", "1 + 2"});
  check_ebnf("root ::= (root \",\")? \"x\"", {"x", "x,x,x"}, {",x"});
  check_ebnf("root ::= (\"-\" root)? \"x\"", {"x", "-xx"}, {"-x"});
}

TEST(Ebnf, TokensOfTheModel) {
  const std::string end =
                        "\x01"
                        "0",
                    call =
                        "\x01"
                        "1";
  check_ebnf("root ::= \"a\" <|end|>", {"a" + end}, {"a", "a<|end|>", end});
  check_ebnf("root ::= <[257]> [a-z]+", {call + "x"}, {"x", end + "x"});
  check_ebnf("root ::= !<|end|> !<[257,97-98]>", {"zz", call + "c"}, {end + "c", "z" + call, "za"});
  check_ebnf("root ::= Token(256, 257) ExcludeToken(97)", {end + "b", call + end}, {end + "a", "bb"});
}

TEST(Ebnf, MacroRegexAndRuleOptions) {
  check_ebnf("root ::= \"ID-\" Regex(\"[0-9]{3}\")", {"ID-123"}, {"ID-12"});
  check_ebnf("root ::= Regex(\"a.b\") Regex(\"\\\\d\", flags=\"i\")", {"a\nb1"}, {"ab1"});
  check_ebnf("root ::= \"<\" name \">\" rest\nname[lazy] ::= [a-z]+\nrest ::= [a-z]+", {"<a>bc"}, {"<ab>c"});
  check_ebnf("root ::= x \".\"\nx[max_chars=3, capture=\"n\"] ::= [^]*", {"äöü.", ".."}, {"abcd."});
}

TEST(Ebnf, ErrorsNameTheLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"root ::= a\n\nb ::= c", "The grammar uses the rule \"a\" on line 1, which is not defined."},
      {"x ::= \"a\"", "The grammar has no rule \"root\", where it would begin."},
      {"root ::= \"a\nb ::= \"c\"", "The grammar is wrong on line 1: the text in quotes is not closed on its line."},
      {"root ::= \"a\"\nroot ::= \"b\"", "The grammar is wrong on line 2: the rule \"root\" is defined a second time."},
      {"root ::= \"\\q\"", "The grammar is wrong on line 1: the escape \\q has no meaning here."},
      {"root ::= [\\d]", "The grammar is wrong on line 1: the escape \\d has no meaning here."},
      {"root ::= \"\\x4\"",
       "The grammar is wrong on line 1: an escape \\x, \\u or \\U needs 2, 4 or 8 hexadecimal digits."},
      {"root ::= \"\\ud800\"", "The grammar is wrong on line 1: the escape is no character."},
      {"root ::= [a-z", "The grammar is wrong on line 1: the class is not closed by \"]\"."},
      {"root ::= [z-a]", "The grammar is wrong on line 1: a range of the class is out of order."},
      {"root ::= []", "The grammar is wrong on line 1: a class without characters matches nothing; write \\]."},
      {"root ::= (\"a\"", "The grammar is wrong on line 1: the group is not closed by \")\"."},
      {"root ::= \"a\")", "The grammar is wrong on line 1: \")\" closes no group."},
      {"root ::= \"a\"++",
       "The grammar is wrong on line 1: a repetition follows another; put the first one in a group."},
      {"root ::= \"a\"{,3}", "The grammar is wrong on line 1: a number is missing."},
      {"root ::= \"a\"{3,2}",
       "The grammar is wrong on line 1: the repetition's upper bound is less than its lower bound."},
      {"root ::= \"a\"{1;2}", "The grammar is wrong on line 1: a repetition is written {n}, {n,} or {m,n}."},
      {"root ::= \"a\"{9999999}", "The grammar is wrong on line 1: the number is larger than 1000000."},
      {"root ::= 'a'", "The grammar is wrong on line 1: \"'\" is not expected here."},
      {"root ::= \"a\" x ::= \"b\"", "The grammar is wrong on line 1: a rule must begin on a line of its own."},
      {"\"a\"\nroot ::= \"a\"", "The grammar is wrong on line 1: a rule is written: name ::= expression."},
      {"root ::= <|nope|>", "The grammar is wrong on line 1: the model has no special token <|nope|>."},
      {"root ::= <|end", "The grammar is wrong on line 1: a token's name is not closed by \">\"."},
      {"root ::= <[a]>", "The grammar is wrong on line 1: a number is missing."},
      {"root ::= <[9-1]>", "The grammar is wrong on line 1: the range of token ids is out of order."},
      {"root ::= <[1]", "The grammar is wrong on line 1: a set of tokens is written <[1,3-8]>, <[^1]> or <[*]>."},
      {"root[max_tokens=3] ::= \"a\"",
       "The grammar is wrong on line 1: the option \"max_tokens\" of a rule is not supported."},
      {"root[temperature=1] ::= \"a\"",
       "The grammar is wrong on line 1: the option \"temperature\" of a rule is not supported."},
      {"root ::= (= \"a\")", "The grammar is wrong on line 1: a look-ahead (= ...) is not supported."},
      {"root ::= TagDispatch((\"a\", x))",
       "The grammar is wrong on line 1: the macro TagDispatch is not supported (a structural tag can do what the "
       "dispatching ones do)."},
      {"root ::= Regex(\"(?<=a)\")",
       "The grammar is wrong on line 1: in Regex: The pattern has a look-behind at offset 0, which is not supported."},
      {"root[lazy] ::= \"a\" root \"b\" | \"\"",
       "The rule \"root\" has the option lazy, suffix, stop or max_chars, which works only if the rule is one "
       "expression "
       "of texts, without tokens, JSON or recursion."},
      {"root ::= \"\xff\"", "The grammar is wrong on line 1: it is not valid UTF-8 there."},
      {" \n\t", "The grammar is empty."},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(spec_error(grammar_spec(text)), message) << text;
  EXPECT_EQ(spec_error(grammar_spec("root ::= " + std::string(2 << 20, '('))), "The grammar is longer than 1 MiB.");
}

TEST(Ebnf, AGrammarWithoutAnyTextIsRefused) {
  const auto grammar = compile_spec(grammar_spec("root ::= \"a\" root"));
  EXPECT_FALSE(grammar.ok());
}

TEST(Ebnf, HostileGrammarsAreBounded) {
  std::string chain = "root ::= r0\n", wide = "root ::= r0\n", sets = "root ::= ";
  for (int i = 0; i < 20'000; ++i) {
    chain += "r" + std::to_string(i) + " ::= \"a\" r" + std::to_string(i + 1) + "\n";
    if (i < 5'000) sets += "<[" + std::to_string(i) + "]> ";
  }
  chain += "r20000 ::= r0 | \"\"\n";
  for (int i = 0; i < 60; ++i) {
    const std::string next = " r" + std::to_string(i + 1);
    wide += "r" + std::to_string(i) + " ::=" + next + next + " | \"x\"" + next + "\n";
  }
  wide += "r60 ::= \"a\"\n";
  const std::vector<std::string> texts = {
      chain,
      wide,
      sets,
      "root ::= " + many("(", 100'000),
      "root ::= " + many("(", 190) + "\"a\"" + many(")*", 190),
      "root ::= " + many("(\"a\" | ", 190) + "root" + many(")", 190),
      "root ::= (((\"a\"{1000}){1000}){1000}){1000}",
      "root ::= ((((root \"a\"){1000}){1000}){1000}){1000} | \"b\"",
      "root ::= " + many("\"a\" | ", trials(100'000)) + "\"b\"",
      "root ::= " + many("[^a]", trials(100'000)),
      "root ::= " + many("root ", trials(100'000)),
  };
  for (const std::string& text : texts) (void)compile_spec(grammar_spec(text));
}

}  // namespace
}  // namespace quire::grammar
