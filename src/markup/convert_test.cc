// SPDX-License-Identifier: Apache-2.0
// Typing of argument values by schemas, and conversion of the values that are not JSON.
#include "markup/convert.h"

#include <gtest/gtest.h>

namespace quire::markup {
namespace {

std::string typed(std::string_view text, std::string_view schema_text) {
  const json::Value schema = json::parse(schema_text).value();
  return convert_text(text, {&schema, &schema});
}

TEST(Typing, FollowsTheOrderOfTypes) {
  struct Case {
    std::string_view schema, text, json;
  };
  const Case cases[] = {
      {R"({"type": "string"})", "12", R"("12")"},
      {R"({"type": "string"})", "null", R"("null")"},
      {R"({"type": "integer"})", "12", "12"},
      {R"({"type": "integer"})", " -007 ", "-7"},
      {R"({"type": "integer"})", "3.0", "3"},
      {R"({"type": "integer"})", "123456789012345678901234567890", "123456789012345678901234567890"},
      {R"({"type": "integer"})", "3.5", "3.5"},
      {R"({"type": "integer"})", "many", R"("many")"},
      {R"({"type": "number"})", "1e3", "1000"},
      {R"({"type": "number"})", "0.25", "0.25"},
      {R"({"type": "number"})", "nan", R"("nan")"},
      {R"({"type": "boolean"})", "True", "true"},
      {R"({"type": "boolean"})", "0", "false"},
      {R"({"type": "boolean"})", "yes", R"("yes")"},
      {R"({"type": ["integer", "null"]})", "NULL", "null"},
      {R"({"type": ["string", "null"]})", "null", "null"},
      {R"({"type": ["string", "integer"]})", "12", "12"},
      {R"({"type": ["string", "integer"]})", "x", R"("x")"},
      {R"({"enum": [1, 2]})", "2", "2"},
      {R"({"const": true})", "1", "true"},
      {R"({"anyOf": [{"type": "integer"}, {"type": "boolean"}]})", "1", "1"},
      {R"({"anyOf": [{"type": "string"}, {"type": "object"}]})", R"({"a":1})", R"({"a": 1})"},
      {R"({"oneOf": [{"type": "array"}]})", "[1,[2]]", "[1, [2]]"},
      {R"({"type": "object"})", "{'a': True, 'b': None}", R"({"a": true, "b": null})"},
      {R"({"type": "object", "properties": {"n": {"type": "integer"}, "l": {"items": {"type": "number"}}}})",
       R"({"n": "5", "l": ["1", 2]})", R"({"n": 5, "l": [1, 2]})"},
      {R"({"type": "array"})", "not a list", R"("not a list")"},
      {R"({"type": "int32"})", "5", "5"},
      {R"({"type": "float"})", "5.5", "5.5"},
      {R"({"type": "bool"})", "false", "false"},
      {R"({"type": "dict"})", "{}", "{}"},
      {R"({"type": "list"})", "[]", "[]"},
      {R"({"type": "str"})", "5", R"("5")"},
      {R"({})", "5", R"("5")"},
      {R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}})", "5", "5"},
      {R"({"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}})", "5", R"("5")"},
      {R"({"type": "string"})", "é\"\\\n\x01", R"("é\"\\\n\u0001")"},
  };
  for (const Case& one : cases) EXPECT_EQ(typed(one.text, one.schema), one.json) << one.schema << " " << one.text;
  EXPECT_EQ(convert_text("5", Schema{}), R"("5")");
}

TEST(Typing, EndsOnSchemasThatReferToThemselves) {
  // Each level names the one below twice: 2^30 paths, of which only some are looked at.
  std::string schema = R"({"$ref": "#/$defs/a0", "$defs": {)";
  for (int i = 0; i < 30; ++i) {
    const std::string next = "{\"$ref\": \"#/$defs/a" + std::to_string(i + 1) + "\"}";
    schema += "\"a" + std::to_string(i) + "\": {\"anyOf\": [" + next + ", " + next + "]}, ";
  }
  schema += R"("a30": {"type": "integer"}}})";
  EXPECT_FALSE(typed("5", schema).empty());
}

TEST(PythonLiterals, BecomeJson) {
  struct Case {
    std::string_view python, json;
  };
  const Case cases[] = {
      {"1", "1"},
      {"-2.50", "-2.5"},
      {"+3", "3"},
      {"1.0", "1.0"},
      {"1_000", "1000"},
      {"None", "null"},
      {"[True, false, null]", "[true, false, null]"},
      {"(1, 2,)", "[1, 2]"},
      {"(1)", "1"},
      {"()", "[]"},
      {"((1,),)", "[[1]]"},
      {"{1, 2}", "[1, 2]"},
      {"{'a': {'b': [1]}, 2: 'x'}", R"({"a": {"b": [1]}, "2": "x"})"},
      {"{}", "{}"},
      {R"('a"b')", R"("a\"b")"},
      {R"("it's\n\x41\u00e9\q")", R"("it's\nAé\\q")"},
      {R"(r"\n")", R"("\\n")"},
      {R"(f"plain")", R"("plain")"},
      {R"('a' "b")", R"("ab")"},
      {R"('''a
'b' ''')",
       R"("a\n'b' ")"},
  };
  for (const Case& one : cases) {
    const auto json = python_literal(one.python);
    ASSERT_TRUE(json.has_value()) << one.python;
    EXPECT_EQ(*json, one.json) << one.python;
  }
  for (const std::string_view wrong :
       {"", "x", "f(1)", "1 + 2", "[1", "'a", "{'a': }", "f\"{x}\"", "1 2", "[1,,2]", "{[1]: 2}", "__import__('os')"}) {
    EXPECT_FALSE(python_literal(wrong).has_value()) << wrong;
  }
  EXPECT_FALSE(python_literal(std::string(100'000, '[')).has_value());
  EXPECT_FALSE(python_literal(std::string(100'000, '(')).has_value());
}

TEST(GemmaValues, BecomeJson) {
  const json::Value schema = json::parse(R"({"type": "object", "properties": {"n": {"type": "string"}}})").value();
  const Schema root = {&schema, &schema};
  const std::string_view quote = "<|\"|>";
  EXPECT_EQ(gemma_value("{a:1,<|\"|>b c<|\"|>:[true,<|\"|>x,}<|\"|>]}", quote, root, false).value(),
            R"({"a": 1, "b c": [true, "x,}"]})");
  EXPECT_EQ(gemma_value("{n:5,m:word}", quote, root, false).value(), R"({"n": "5", "m": "word"})");
  EXPECT_FALSE(gemma_value("{a:1", quote, root, false).has_value());
  EXPECT_FALSE(gemma_value(std::string(100'000, '['), quote, root, false).has_value());
}

TEST(NestedElements, BecomeJson) {
  const json::Value schema =
      json::parse(
          R"({"type": "object", "properties": {"o": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "l": {"type": "array", "items": {"type": "integer"}}, "e": {"type": "array"}}})")
          .value();
  const Schema root = {&schema, &schema};
  EXPECT_EQ(nested_elements("#<o>#<n>5#</n>#</o>#<l>#<item>1#</item>#<item>2#</item>#</l>#<e>#</e>", "#", root),
            R"({"o": {"n": 5}, "l": [1, 2], "e": []})");
  EXPECT_EQ(nested_elements("junk", "#", root), "{}");
  EXPECT_EQ(nested_elements("#<o>#<n>5", "#", root), R"({"o": {"n": 5}})");
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += "#<a>";
  EXPECT_FALSE(nested_elements(deep, "#", root).empty());
}

}  // namespace
}  // namespace quire::markup
