// SPDX-License-Identifier: Apache-2.0
// Tests of Lark grammars: what they accept, what is refused, and hostile ones.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/dialect_test_tools.h"
#include "grammar/test_grammars.h"

namespace quire::grammar {
namespace {

void check_lark(const std::string& text, const std::vector<std::string>& yes, const std::vector<std::string>& no) {
  SCOPED_TRACE(text);
  check_spec(grammar_spec(text), yes, no);
}

TEST(Lark, RulesTerminalsAndOperators) {
  check_lark("start: \"a\" | \"b\" \"c\"", {"a", "bc"}, {"b", "abc"});
  check_lark("start: \"a\"\n     | \"b\"\n\n// a comment\n     | \"c\" -> third\n", {"a", "b", "c"}, {"d"});
  check_lark("?start: value (\";\" value)*\n!value: INT | NAME\nINT.2: /[0-9]+/\nNAME: /[a-z]+/", {"1;a;22"},
             {";", "1;"});
  check_lark("start: [\"a\" \"b\"] \"c\"", {"c", "abc"}, {"ac"});
  check_lark("start: \"a\"~2 \"b\"~1..3 \"c\"{2} \"d\"{,1} \"e\"{1,}", {"aabcce", "aabbbccdee"},
             {"abcce", "aabbbbcce"});
  check_lark("start: (\n  \"a\" |\n  \"b\"\n)+", {"a", "ba"}, {""});
  check_lark("start:\n", {""}, {"a"});
  check_lark("start: | \"a\"", {"", "a"}, {"aa"});
  check_lark("start: \"a\"..\"c\" X\nX: \"α\"..\"γ\"+", {"aβ", "cαγ"}, {"d", "ad"});
  check_lark("start: \"yes\"i /no+/i /a.b/s /c.d/", {"YesNOOa\nbcxd"}, {"yesnoa\nbc\nd"});
  check_lark("start: \"[?]\\n\\u03bb\"i", {"[?]\nλ", "[?]\nΛ"}, {"x"});
  check_lark("start: value\nvalue: \"x\" | \"(\" value \")\" | value \"!\"", {"x", "((x))!", "(x!)!!"}, {"(x", "!"});
}

TEST(Lark, TerminalsWithAndAndNot) {
  check_lark("start: NAME\nNAME: /[a-z]+/ & ~KEYWORD\nKEYWORD: \"if\" | \"else\"", {"iff", "x"}, {"if", "else", "1"});
  check_lark("start: A\nA: ~(/.*x.*/s)", {"", "abc\n"}, {"axb"});
}

TEST(Lark, IgnoredTextFollowsEveryTerminal) {
  check_lark("%import common.INT\n%import common.WS\n%ignore WS\nstart: item (\",\" item)*\nitem: \"id=\" INT",
             {"id=1", "id= 1 , id=42\n"}, {" id=1", "i d=1", "id=1 2"});
  check_lark("%ignore /;+/\n%ignore \" \"\nstart: \"a\" B\nB: \"b\" \"c\"", {"abc", "a;; ;bc "}, {"ab c", ";abc"});
  check_lark("%llguidance {}\n%grammar_options {\"allow_initial_skip\": true}\n%ignore \" \"\nstart: \"a\"", {"  a "},
             {"b"});
}

TEST(Lark, ImportsOfTheCommonLibrary) {
  check_lark("%import common (SIGNED_NUMBER, ESCAPED_STRING)\nstart: SIGNED_NUMBER ESCAPED_STRING",
             {"-1.5e+3\"a\\\"b\"", "7\"\""}, {"--1\"\"", "1\"a", "1\"a\nb\""});
  check_lark("%import common.CNAME -> NAME\n%import common.C_COMMENT\nstart: NAME C_COMMENT", {"_a1/* x **/"},
             {"1/**/", "a/*"});
  check_lark("%import common.FLOAT\n%import common.NEWLINE\nstart: FLOAT NEWLINE", {"1e5\n", "1.\r\n", ".5e-1\n\n"},
             {"1\n"});
  for (const char* name : {"DIGIT",          "HEXDIGIT",     "INT",          "SIGNED_INT", "DECIMAL",
                           "_EXP",           "FLOAT",        "SIGNED_FLOAT", "NUMBER",     "SIGNED_NUMBER",
                           "ESCAPED_STRING", "LCASE_LETTER", "UCASE_LETTER", "LETTER",     "WORD",
                           "CNAME",          "WS_INLINE",    "WS",           "CR",         "LF",
                           "NEWLINE",        "SH_COMMENT",   "CPP_COMMENT",  "C_COMMENT",  "SQL_COMMENT"}) {
    const std::string text = "%import common." + std::string(name) + "\nstart: " + name;
    EXPECT_TRUE(compile_spec(grammar_spec(text)).ok()) << name;
  }
}

TEST(Lark, TokensAndJson) {
  const std::string end =
                        "\x01"
                        "0",
                    call =
                        "\x01"
                        "1";
  check_lark("start: <|call|> /[a-z]+/ <[256]>", {call + "a" + end}, {"a" + end, call + "a"});
  check_lark("start: <[^256-257]> <[*]>", {"a" + call, "b" + end}, {call + "a"});
  check_lark(
      "start: \"<\" %json {\n  \"type\": \"object\", \"properties\": {\"x\": {\"type\": \"integer\"}},\n"
      "  \"required\": [\"x\"], \"additionalProperties\": false\n} \">\"",
      {"<{\"x\": 1}>"}, {"<{}>", "<{\"x\": \"1\"}>"});
}

TEST(Lark, LazyRulesEndAtTheFirstPlace) {
  check_lark("start: head rest\nhead[suffix=\"</a>\"]: TEXT\nrest: /[0-9]+/\nTEXT: /(.|\\n)*/", {"x</a>1", "</a>22"},
             {"x</a>", "x</a></a>1"});
  check_lark("start: \"<\" name \">\" rest\nname[lazy]: /[a-z]+/\nrest: /[a-z]+/", {"<a>b"}, {"<ab>b"});
  check_lark("start: a\na[stop=/!+/, capture=\"n\"]: /[a-z!]*/", {"ab!", "!"}, {"ab", "ab!!", "a!b!"});
  check_lark("start: a \"z\"\na[max_chars=2]: /[a-z]*/", {"abz", "z"}, {"abcz"});
}

TEST(Lark, ErrorsNameTheLine) {
  const auto line = [](int number, const std::string& what) {
    return "The grammar is wrong on line " + std::to_string(number) + ": " + what + ".";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"x: \"a\"", "The grammar has no rule \"start\", where it would begin."},
      {"start: x\ny: z", "The grammar uses the rule \"x\" on line 1, which is not defined."},
      {"start: \"a\"\nstart: \"b\"", line(2, "\"start\" is defined a second time")},
      {"start \"a\"", line(1, "\":\" is missing after the name \"start\"")},
      {"start: \"a\" )", line(1, "\")\" is not expected here")},
      {"start: (\"a\"", line(1, "the group is not closed")},
      {"start: $", line(1, "\"$\" is not expected here")},
      {"start: /a", line(1, "the regular expression is not closed by \"/\" on its line")},
      {"start: /a/m", line(1, "the flag m of a regular expression is not supported")},
      {"start: /a\\b/", line(1, "The pattern has a word boundary \\b or \\B at offset 1, which is not supported")},
      {"start: \"a\"..5", line(1, "a range is written \"a\"..\"z\"")},
      {"start: \"ab\"..\"z\"", line(1, "the ends of a range must be one character each")},
      {"start: \"z\"..\"a\"", line(1, "the range is out of order")},
      {"start: \"a\"~3..2", line(1, "the upper bound is less than the lower bound")},
      {"start: \"a\"+*", line(1, "a repetition follows another; put the first one in a group")},
      {"start: A & B\nA: \"a\"\nB: \"b\"", line(1, "\"&\" works only between terminals")},
      {"start: ~A\nA: \"a\"", line(1, "\"~\" works only on terminals")},
      {"start: A\nA: ~\"a\"+", line(2, "a repetition of ~ is not clear; put ~ in a group")},
      {"start: A\nA: x\nx: \"a\"", line(2, "a terminal or an option cannot use the rule \"x\"")},
      {"start: A\nA: <|end|>", line(2, "tokens and directives cannot stand in a terminal")},
      {"start: <|nope|>", line(1, "the model has no special token <|nope|>")},
      {"start: @x", line(1, "named grammars are not supported")},
      {"start: %regex {\"substring_words\": \"a\"}", line(1, "%regex is not supported inside a rule")},
      {"start: %json 5", line(1, "%json needs a JSON Schema in braces")},
      {"start: %json {\"a\"", line(1, "the JSON value is not closed")},
      {"%declare A\nstart: A", line(1, "the directive %declare is not supported")},
      {"%import python.NAME\nstart: NAME", line(1, "only the library \"common\" can be imported")},
      {"%import common.NOPE\nstart: NOPE", line(1, "the library \"common\" has no terminal \"NOPE\"")},
      {"%import common.INT -> x\nstart: x", line(1, "an imported terminal needs a name in capital letters")},
      {"%import common.INT\nINT: \"1\"\nstart: INT", line(2, "\"INT\" is defined a second time")},
      {"%grammar_options {\"x\": 1}\nstart: \"a\"", line(1, "the option \"x\" of the grammar is not supported")},
      {"%grammar_options 1\nstart: \"a\"", line(1, "the options of the grammar must be a JSON object")},
      {"start[max_tokens=3]: \"a\"", line(1, "the option \"max_tokens\" of a rule is not supported")},
      {"start[suffix=\"\"]: \"a\"", line(1, "an empty text as suffix is not supported")},
      {"start{a}: \"a\"", line(1, "templates are not supported")},
      {"start: \"a\" ->", line(1, "a name is missing after \"->\"")},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(spec_error(grammar_spec(text)), message) << text;
}

TEST(Lark, HostileGrammarsAreBounded) {
  std::string chain = "start: T0\n";
  for (int i = 0; i < 20'000; ++i) chain += "T" + std::to_string(i) + ": \"a\" T" + std::to_string(i + 1) + "\n";
  const std::vector<std::string> texts = {
      chain + "T20000: \"b\"\n",
      chain + "T20000: T0 | \"b\"\n",
      "start: " + many("(", 100'000),
      "start: " + many("[", 190) + "\"a\"" + many("]+", 190),
      "start: A\nA: " + many("~", 100'000),
      "start: A\nA: " + many("~(", 180) + "\"a\"" + many(")", 180),
      "%ignore /[ab]*/\nstart: " + many("/[ab]+/ ", 5'000),
      "%ignore start\nstart: A\nA: A A | A",
  };
  for (const std::string& text : texts) (void)compile_spec(grammar_spec(text));
}

}  // namespace
}  // namespace quire::grammar
