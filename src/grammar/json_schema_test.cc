// SPDX-License-Identifier: Apache-2.0
// JSON Schema, keyword by keyword: which texts a schema accepts, and what it is refused for.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/test_sanitized.h"
#include "grammar/compile.h"
#include "grammar/matcher.h"

namespace quire::grammar {
namespace {

std::shared_ptr<const Vocabulary> bytes_vocabulary() {
  static const std::shared_ptr<const Vocabulary> vocabulary = [] {
    std::vector<Vocabulary::Token> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.push_back({std::string(1, static_cast<char>(byte)), false});
    return Vocabulary::make(std::move(tokens), 256);
  }();
  return vocabulary;
}

// A schema that is ready to try texts on.
class Schema {
 public:
  explicit Schema(std::string_view text, const JsonOptions& options = {}) {
    const Result<json::Value> schema = json::parse(text);
    Grammar grammar;
    const Result<Symbol> symbol = add_json_schema(grammar, schema.value(), options);
    if (!symbol.ok()) {
      error_ = symbol.error().message;
      return;
    }
    grammar.set_start(*symbol);
    Result<std::shared_ptr<const CompiledGrammar>> compiled =
        CompiledGrammar::make(std::move(grammar), bytes_vocabulary());
    if (compiled.ok()) {
      compiled_ = *compiled;
    } else {
      error_ = compiled.error().message;
    }
  }
  bool accepts(std::string_view text) const {
    EXPECT_EQ(error_, "");
    if (compiled_ == nullptr) return false;
    Matcher matcher(compiled_);
    return matcher.accept_bytes(text) && matcher.may_end();
  }
  const std::string& error() const { return error_; }

 private:
  std::shared_ptr<const CompiledGrammar> compiled_;
  std::string error_;
};

struct SchemaCase {
  const char* schema;
  std::vector<const char*> accepted;
  std::vector<const char*> refused;
};

void check(const std::vector<SchemaCase>& cases) {
  for (const SchemaCase& each : cases) {
    const Schema schema(each.schema);
    EXPECT_EQ(schema.error(), "") << each.schema;
    for (const char* text : each.accepted) EXPECT_TRUE(schema.accepts(text)) << each.schema << " accepts " << text;
    for (const char* text : each.refused) EXPECT_FALSE(schema.accepts(text)) << each.schema << " refuses " << text;
  }
}

TEST(JsonSchema, TypesAndConstants) {
  check({
      {R"({"type":"string"})", {R"("")", R"("a\n\u00e9\ud83d\ude00é")"}, {"1", R"("a)", R"("\ud83d")", "\"\n\""}},
      {R"({"type":["integer","null"]})", {"0", "-12", "null"}, {"1.5", "1.0", "01", "\"1\"", "true"}},
      {R"({"type":"number"})", {"1.5e-3", "0", "-0.1"}, {"1.", ".5", "NaN", "+1"}},
      {R"({"enum":["a","é",1,null,[1,{"x":2}]]})",
       {R"("a")", R"("\u00e9")", "1", "null", R"([1, {"x": 2}])"},
       {R"("\u0061")", "1.0", "2", "[1]", R"([1,{"x":3}])", R"("b")"}},
      {R"({"const":{"b":1,"a":2}})",
       {R"({"b":1,"a":2})", R"({"a":2,"b":1})"},
       {R"({"b":1})", R"({"b":1,"a":2,"c":3})"}},
      {"true", {"1", "[]", R"({"a":[{}]})", "\"x\""}, {"", "tru", "[1,]"}},
      {R"({"$schema":"http://json-schema.org/draft-04/schema#","type":"integer"})", {"1"}, {"1.0"}},
  });
}

TEST(JsonSchema, Numbers) {
  check({
      {R"({"type":"integer","minimum":-3,"maximum":120})",
       {"-3", "0", "-0", "7", "99", "120"},
       {"-4", "120.0", "121", "1000", "120.5", "1e1"}},
      {R"({"minimum":0.5,"exclusiveMaximum":10})",
       {"0.5", "0.50", "1", "9.999", "\"x\""},
       {"0.49", "0", "10", "10.0", "-1", "11", "1e5"}},
      {R"({"minimum":0,"maximum":1})", {"1e-05", "2.5e-7", "1"}, {"1e-04", "-1e-05", "1e5", "0.5e-5"}},
      {R"({"minimum":-1,"exclusiveMaximum":0})", {"-1e-05", "-2.5E-12"}, {"1e-05", "-1e5"}},
      {R"({"enum":[1e-7,1e20,-2.5e-9,7]})",
       {"1e-07", "1e-7", "0.0000001", "1e+20", "1e20", "100000000000000000000", "-2.5e-09", "7", "7.0"},
       {"1e-08", "1e+21", "2.5e-09", "70", "7e0"}},
      {R"({"type":"number","minimum":0})", {"0", "-0.0", "1e5", "3.25e-7"}, {"-1", "-0.1", "-1e-9"}},
      {R"({"minimum":5,"exclusiveMinimum":true})", {"5.1", "6"}, {"5", "5.0", "4"}},
      {R"({"type":"integer","multipleOf":7})", {"0", "7", "-49", "7007"}, {"1", "8", "50"}},
      {R"({"multipleOf":0.01})", {"1", "19.99", "0.5", "1.230"}, {"0.001", "1.234"}},
      // The bug: every remainder was a state, so round divisors above 3,000 or so were too much for the lexer.
      {R"({"type":"integer","multipleOf":86400})", {"0", "86400", "-172800", "864000000"}, {"8640", "86401", "400"}},
      {R"({"type":"integer","multipleOf":1000000})", {"0", "1000000", "-90000000"}, {"100000", "1500000", "1"}},
      {R"({"multipleOf":0.075})", {"0.075", "0.15", "3", "-0.3"}, {"0.1", "0.0075"}},
      {R"({"type":"integer","not":{"enum":[3,5]},"minimum":2,"maximum":6})",
       {"2", "4", "6"},
       {"3", "3.0", "4.0", "5", "7"}},
      // Integers are digits alone: many programs read 2.0 as no integer. Other numbers may have the point.
      {R"({"type":"integer"})", {"2", "-0", "2000000"}, {"2.0", "2.00", "0.0", "-0.0", "2e0"}},
      {R"({"type":"integer","not":{"const":3}})", {"2", "33"}, {"3", "2.0", "2e3", "0e5"}},
      {R"({"type":"integer","not":{"minimum":5}})", {"4", "-2000"}, {"5", "-2e3", "-9E19597", "0E2"}},
      // Exponents that no double has would be read as infinity or zero.
      {R"({"type":"number"})", {"1e307", "2.5E-07", "1e-300"}, {"1e308", "1e-400", "1e+1000", "0e99999"}},
      {R"({"type":"number","exclusiveMinimum":0})",
       {"1e307", "1e-05", "1e-99", "2e-307"},
       {"1e-308", "6E-465", "1e99999"}},
      {R"({"type":"number","not":{"const":3}})", {"2", "2.0", "3.5"}, {"3", "3.0"}},
      {R"({"type":"number","not":{"type":"integer"}})", {"2.5"}, {"2", "2.0"}},
      {R"({"enum":[0.5,1,2]})", {"0.5", "1", "1.0", "2.0"}, {"0.50", "3"}},
      {R"({"type":"integer","enum":[1,2]})", {"1", "2"}, {"1.0", "3"}},
      {R"({"const":0})", {"0", "-0"}, {"0.0", "-0.0"}},
      {R"({"const":18446744073709551615})",
       {"18446744073709551615"},
       {"18446744073709551615.0", "1.8446744073709551615e19", "18446744073709551616", "18446744073709552000",
        "18446744073709551614"}},
      {R"({"enum":[9223372036854775808,-9223372036854775809]})",
       {"9223372036854775808", "-9223372036854775809"},
       {"9223372036854775807", "-9223372036854775808", "9223372036854775808.5"}},
      {R"({"enum":[9007199254740992,9007199254740993,7]})",
       {"9007199254740992", "9007199254740993", "7"},
       {"9007199254740992.0", "9007199254740993.0", "9007199254740994", "7.0"}},
      {R"({"const":1.2345678901234567e+20})",
       {"1.2345678901234567e+20", "123456789012345670000"},
       {"1.2345678901234568e+20"}},
      {R"({"type":"integer","minimum":18446744073709551614,"exclusiveMaximum":18446744073709551616})",
       {"18446744073709551614", "18446744073709551615"},
       {"18446744073709551613", "18446744073709551616", "18446744073709552000"}},
  });
}

TEST(JsonSchema, Strings) {
  check({
      {R"({"minLength":2,"maxLength":3})", {R"("é日")", R"("a\nb")", R"("\u0041bc")", "5"}, {R"("a")", R"("abcd")"}},
      {R"({"type":"string","pattern":"^a+\"b$"})", {R"("a\"b")", R"("aaa\"b")"}, {R"("ab")", R"("xa\"b")"}},
      {R"({"type":"string","pattern":"[ab]{2,250}c*"})", {R"("ab")", R"("xxbbbc")"}, {R"("a")", R"("axb")", R"("")"}},
      {R"({"type":"string","pattern":"x?[ab]{1,250}$"})", {R"("ab")", R"("xxb")"}, {R"("ax")", R"("")"}},
      {R"({"type":"string","pattern":"xé*"})", {R"("x")", R"("axé")"}, {R"("é")"}},
      {R"({"type":"string","pattern":"a(b|c)*"})", {R"("a")", R"("xabd")"}, {R"("b")"}},
      {R"({"type":"string","pattern":"(a$|b)+"})", {R"("xa")", R"("bx")"}, {R"("ax")"}},
      {R"({"type":"string","pattern":"b"})", {R"("abc")", R"("\nb\\")"}, {R"("ac")"}},
      {R"({"type":"string","pattern":"^[a-z]*$","maxLength":3})", {R"("abc")", R"("")"}, {R"("abcd")", R"("a1")"}},
      {R"({"type":"string","not":{"pattern":"^x"}})", {R"("ax")", R"("")"}, {R"("x")", R"("xa")"}},
      {R"({"format":"date-time","type":"string"})",
       {R"("2024-02-29T12:00:00Z")", R"("1998-12-31T23:59:60Z")", R"("1990-12-31T15:59:60.1-08:00")"},
       {R"("2023-02-29T12:00:00Z")", R"("1998-12-31T22:59:60Z")", R"("2024-01-01")"}},
      {R"({"format":"ipv6","type":"string"})", {R"("::1")", R"("1:2::ffff:1.2.3.4")"}, {R"("1:2")", R"("::1%a")"}},
      {R"({"format":"uuid","type":"string"})", {R"("2EB8AA08-aa98-11ea-b4aa-73b441d16380")"}, {R"("2EB8AA08")"}},
      {R"({"format":"hostname","type":"string"})", {R"("a-b.example")"}, {R"("xn--x")", R"("-a")", R"("a..b")"}},
      {R"({"$schema":"http://json-schema.org/draft-04/schema#","format":"hostname","type":"string"})",
       {R"("xn--4gbwdl.xn--wgbh1c")", R"("ab--cd.example")"},
       {R"("a-")", R"("")"}},
      {R"({"format":"email","type":"string"})", {R"("a@xn--x.org")"}, {R"("a@-b")"}},
      {R"({"type":"string","contentEncoding":"base64"})", {R"("%")"}, {}},
      {R"({"format":"int32","type":"integer"})", {"5"}, {"\"a\""}},
  });
}

TEST(JsonSchema, Objects) {
  check({
      {R"({"properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["b"]})",
       {R"({"a":1,"b":"x"})", R"({"b":"x"})", R"({ "b" : "x" , "c" : [1] })", "7"},
       {R"({"a":1})", R"({"a":"1","b":"x"})", R"({"b":"x","b":"y"})", R"({"b":"x",})", R"({"b":"x","\u0061":"no"})"}},
      {R"({"properties":{"a":{}},"additionalProperties":false})",
       {"{}", R"({"a":1})"},
       {R"({"b":1})", R"({"a":1,"a":1})"}},
      {R"({"patternProperties":{"^x":{"type":"integer"},"y$":{"minimum":5}},"additionalProperties":{"type":"null"}})",
       {R"({"xy":5,"x":1,"b":null,"ay":6})"},
       {R"({"xy":4})", R"({"x":null})", R"({"b":1})"}},
      {R"({"propertyNames":{"maxLength":2}})", {"{}", R"({"ab":1})"}, {R"({"abc":1})"}},
      {R"({"minProperties":1,"maxProperties":2,"properties":{"a":{},"b":{}}})",
       {R"({"a":1})", R"({"a":1,"z":2})", R"({"z":1})"},
       {"{}", R"({"a":1,"b":2,"z":3})"}},
      {R"({"required":["p","q"]})", {R"({"q":1,"x":2,"p":3})"}, {R"({"q":1})", R"({"p":1,"x":2})"}},
      {R"({"dependentRequired":{"a":["b"]},"properties":{"a":{},"b":{},"c":{}}})",
       {"{}", R"({"b":1})", R"({"a":1,"b":2})", R"({"c":1})"},
       {R"({"a":1})", R"({"a":1,"c":2})"}},
      {R"({"properties":{"a":true},"unevaluatedProperties":false,"allOf":[{"properties":{"b":true}}]})",
       {R"({"a":1,"b":2})"},
       {R"({"a":1,"c":2})"}},
  });
}

TEST(JsonSchema, Arrays) {
  check({
      {R"({"items":{"type":"integer"},"minItems":1,"maxItems":3})",
       {"[1]", "[1, 2,\n3]"},
       {"[]", "[1,2,3,4]", "[\"a\"]"}},
      {R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
       {"[]", "[1]", "[1,\"a\"]"},
       {"[\"a\"]", "[1,\"a\",2]"}},
      {R"({"items":[{"type":"integer"}],"additionalItems":{"type":"null"}})", {"[1,null,null]"}, {"[1,2]"}},
      {R"({"uniqueItems":true,"items":{"enum":["a","b",","]}})",
       {"[]", R"(["b","a"])", R"([",","a", "b"])"},
       {R"(["a","a"])", R"(["a","b","a"])", R"(["c"])"}},
      {R"({"contains":{"type":"integer"},"maxContains":2})", {"[1]", "[\"a\",1,2]"}, {"[]", "[\"a\"]", "[1,2,3]"}},
      {R"({"contains":{"const":1},"minContains":2})", {"[1,0,1]", "[1,1,1]"}, {"[1]", "[0,0]"}},
  });
}

TEST(JsonSchema, Combinations) {
  check({
      {R"({"oneOf":[{"type":"integer"},{"minimum":2}]})", {"1", "2.5", "\"x\""}, {"3", "1.5"}},
      {R"({"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object"})",
       {R"({"a":1})", R"({"b":1,"c":2})"},
       {"{}", R"({"a":1,"b":2})", R"({"b":1,"a":2})"}},
      {R"({"oneOf":[{"properties":{"k":{"const":"x"},"v":{"type":"integer"}},"required":["k"]},
                    {"properties":{"k":{"const":"y"},"v":{"type":"string"}},"required":["k"]}],"type":"object"})",
       {R"({"k":"x","v":1})", R"({"k":"y","v":"s"})"},
       {R"({"k":"x","v":"s"})", R"({"k":"z"})"}},
      {R"({"anyOf":[{"type":"string","maxLength":1},{"type":"null"}]})", {"\"a\"", "null"}, {"\"ab\"", "1"}},
      {R"({"allOf":[{"properties":{"a":{"minimum":2}}},{"properties":{"a":{"maximum":4}},"required":["a"]}]})",
       {R"({"a":3})"},
       {R"({"a":1})", R"({"a":5})", "{}"}},
      {R"({"not":{"type":["object","array"]}})", {"1", "\"a\"", "null"}, {"{}", "[]"}},
      {R"({"type":"object","not":{"required":["a"]}})", {"{}", R"({"b":1})"}, {R"({"a":1})"}},
      {R"({"type":"object","properties":{"k":{"enum":["x","y"]},"v":true},"required":["k"],
           "if":{"properties":{"k":{"const":"x"}}},"then":{"required":["v"]},"else":{"properties":{"v":false}}})",
       {R"({"k":"x","v":1})", R"({"k":"y"})"},
       {R"({"k":"x"})", R"({"k":"y","v":1})"}},
  });
}

TEST(JsonSchema, References) {
  check({
      {R"({"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#"}},"additionalProperties":false})",
       {R"({"v":1,"next":{"next":{"v":2}}})"},
       {R"({"next":{"w":1}})", R"({"next":1})"}},
      {R"({"$id":"http://x/y","$ref":"z#p","$defs":{"q":{"$id":"z","$anchor":"n","$defs":{"r":{"$anchor":"p","type":"null"}}}}})",
       {"null"},
       {"1"}},
      {R"({"$ref":"#/$defs/a~1b%25","$defs":{"a/b%":{"type":"integer"}}})", {"1"}, {"\"a\""}},
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"s":{"type":"string"}},
           "properties":{"a":{"$ref":"#/definitions/s","maxLength":1}}})",
       {R"({"a":"long"})"},
       {R"({"a":1})"}},
  });
}

TEST(JsonSchema, RefusesWithTheKeywordAndItsPlace) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"properties":{"a":{"items":{"type":"string"},"uniqueItems":true}}})", "uniqueItems"},
      {R"({"properties":{"a/b":{"$ref":"http://elsewhere/x"}}})", "\"$ref\" at /properties/a~1b"},
      {R"({"$ref":"#"})", "refers to itself"},
      {R"({"allOf":[{"$ref":"#/allOf/0"}]})", "refers to itself"},
      {R"({"items":{"type":"text"}})", "\"type\" at /items"},
      {R"({"properties":{"a":{"pattern":"(a)\\1"}}})", "\"pattern\" at /properties/a"},
      {R"({"format":"idn-hostname"})", "\"format\" at /"},
      {R"({"minLength":-1})", "\"minLength\" at /"},
      {R"({"multipleOf":0})", "\"multipleOf\" at /"},
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","items":{"contentEncoding":"base64"}})",
       "\"contentEncoding\" at /items"},
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","contentMediaType":"application/json"})",
       "\"contentMediaType\" at /"},
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","format":"hostname"})", "\"format\" at /"},
      {R"({"items":{"$id":"x","$ref":"#/$defs/a"},"$defs":{"a":true}})", "\"$ref\" at /items"},
      {R"({"pattern":"(a{1000}){1000}"})", "\"pattern\" at /"},
  };
  for (const auto& [schema, part] : cases)
    EXPECT_NE(Schema(schema).error().find(part), std::string::npos) << schema << ": " << Schema(schema).error();
  EXPECT_NE(Schema("false").error(), "");
}

TEST(JsonSchema, WritesNoEndlessNumbers) {
  const std::string most(64, '3'), more(65, '3');
  for (const char* schema : {R"({"type":"integer"})", R"({"type":"integer","minimum":2})", R"({"type":"number"})",
                             R"({"type":"number","exclusiveMinimum":0.5})", R"({"multipleOf":3})", "{}",
                             R"({"type":"integer","not":{"const":7}})", R"({"type":"number","not":{"const":7}})"}) {
    EXPECT_TRUE(Schema(schema).accepts(most)) << schema;
    EXPECT_FALSE(Schema(schema).accepts(more)) << schema;
    EXPECT_FALSE(Schema(schema).accepts(more + "e5")) << schema;
  }
  for (const char* schema : {R"({"type":"number"})", R"({"minimum":-3})", R"({"not":{"const":7}})"}) {
    EXPECT_TRUE(Schema(schema).accepts("1." + most)) << schema;
    EXPECT_FALSE(Schema(schema).accepts("1." + more)) << schema;
    EXPECT_FALSE(Schema(schema).accepts("1." + more + "e5")) << schema;
  }
}

TEST(JsonSchema, WhiteSpaceIsBoundedUnlessAPatternSaysOtherwise) {
  const char* schema = R"({"type":"object","properties":{"a":{"type":"array"}}})";
  for (const std::string space : {"", " ", "\t", "\n", "\r\n", "\n\n", "\n\t\t"}) {
    EXPECT_TRUE(Schema(schema).accepts("{" + space + "\"a\"" + space + ":" + space + "[" + space + "1" + space + "," +
                                       space + "2" + space + "]" + space + "}"))
        << json::dump(space);
  }
  EXPECT_TRUE(Schema(schema).accepts("{\n" + std::string(40, ' ') + "\"a\":[{\n\t\"b\": {\n}}]\n}"));
  for (const std::string space : {"  ", "\t ", "\n\n\n", "\n \n \n"}) {
    for (const char* gap : {"{_\"a\":[]}", "{\"a\"_:[]}", "{\"a\":_[]}", "{\"a\":[_]}", "{\"a\":[1_,2]}", "{\"a\":[]_}",
                            "{_}", "{\"a\":[{_}]}", "{\"a\":[{\"b\":1,_\"c\":2}]}"}) {
      std::string text = gap;
      text.replace(text.find('_'), 1, space);
      EXPECT_FALSE(Schema(schema).accepts(text)) << text;
    }
  }
  EXPECT_FALSE(Schema(schema).accepts("{\n" + std::string(41, ' ') + "\"a\":[]}"));
  JsonOptions any;
  any.whitespace_pattern = "[ \\t\\n\\r]*";
  EXPECT_TRUE(Schema(schema, any).accepts("{\n\n\n \"a\"" + std::string(100, '\t') + ":[]}"));
}

TEST(JsonSchema, Options) {
  const char* schema = R"({"properties":{"a":{"type":"array"}}})";
  JsonOptions compact;
  compact.any_whitespace = false;
  EXPECT_TRUE(Schema(schema, compact).accepts(R"({"a":[1,2]})"));
  EXPECT_FALSE(Schema(schema, compact).accepts(R"({"a": [1,2]})"));
  JsonOptions pattern;
  pattern.whitespace_pattern = " ?";
  EXPECT_TRUE(Schema(schema, pattern).accepts(R"({ "a" : [ 1 , 2 ] })"));
  EXPECT_FALSE(Schema(schema, pattern).accepts(R"({  "a":[1,2]})"));
  EXPECT_FALSE(Schema(schema).accepts(R"( {"a":[1,2]})"));
  pattern.whitespace_pattern = "[\\sx]?";  // only what JSON takes for white space
  EXPECT_TRUE(Schema(schema, pattern).accepts("{\"a\":\n[]}"));
  EXPECT_FALSE(Schema(schema, pattern).accepts("{\"a\":\v[]}"));
  EXPECT_FALSE(Schema(schema, pattern).accepts(R"({"a":x[]})"));
  for (const char* wrong : {"x", "(", " +x"}) {
    pattern.whitespace_pattern = wrong;
    EXPECT_NE(Schema(schema, pattern).error().find("whitespace_pattern"), std::string::npos) << wrong;
  }
  JsonOptions closed;
  closed.additional_properties = false;
  EXPECT_TRUE(Schema(schema, closed).accepts(R"({"a":[]})"));
  EXPECT_FALSE(Schema(schema, closed).accepts(R"({"b":[]})"));
  EXPECT_TRUE(Schema(R"({"type":"object"})", closed).accepts(R"({"b":[]})"));
}

TEST(JsonSchema, TaggedStyles) {
  const char* schema =
      R"({"type":"object","properties":{"s":{"type":"string"},"n":{"type":"integer"}},"required":["s"],"additionalProperties":false})";
  JsonOptions options;
  options.style = "qwen_xml";
  EXPECT_TRUE(
      Schema(schema, options).accepts("<parameter=s>\na <b> \"c\"\n</parameter>\n<parameter=n>\n5\n</parameter>"));
  EXPECT_FALSE(Schema(schema, options).accepts("<parameter=n>\n5\n</parameter>"));
  EXPECT_FALSE(Schema(schema, options).accepts("<parameter=s>\na\n</parameter>\n<parameter=n>\nx\n</parameter>"));
  options.style = "glm_xml";
  EXPECT_TRUE(Schema(schema, options).accepts("<arg_key>s</arg_key>\n<arg_value>hi</arg_value>"));
  options.style = "minimax_xml";
  EXPECT_TRUE(
      Schema(schema, options).accepts("<parameter name=\"s\">hi</parameter>\n<parameter name=\"n\">1</parameter>"));
  options.style = "deepseek_xml";
  EXPECT_TRUE(Schema(schema, options)
                  .accepts("<｜DSML｜parameter name=\"s\" string=\"true\">hi</｜DSML｜parameter>\n"
                           "<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>"));
  options.any_order = true;
  options.style = "qwen_xml";
  EXPECT_TRUE(Schema(schema, options).accepts("<parameter=n>\n5\n</parameter>\n<parameter=s>\nx\n</parameter>"));
  options.style = "yaml";
  EXPECT_NE(Schema(schema, options).error(), "");
}

TEST(JsonSchema, MembersMayComeInAnyOrder) {
  const std::string text =
      R"({"properties":{"a":{"type":"integer"},"b":{"enum":[1]},"c":true},"required":["c","a","z"],"type":"object"})";
  JsonOptions options;
  EXPECT_TRUE(Schema(text, options).accepts(R"({"c":1,"z":2,"a":3})"));
  EXPECT_TRUE(Schema(text, options).accepts(R"({"y":0,"b":1,"z":{},"a":3,"x":0,"c":[]})"));
  EXPECT_FALSE(Schema(text, options).accepts(R"({"c":1,"a":3})"));              // z is missing
  EXPECT_FALSE(Schema(text, options).accepts(R"({"c":1,"z":2,"a":3,"a":3})"));  // a twice
  EXPECT_FALSE(Schema(text, options).accepts(R"({"c":1,"b":2,"z":2,"a":3})"));  // b has a wrong value
  EXPECT_FALSE(Schema(text, options).accepts(R"({,"c":1,"z":2,"a":3})"));
  EXPECT_TRUE(Schema(R"({"properties":{"a":true,"b":true}})", options).accepts("{}"));
  EXPECT_FALSE(Schema(R"({"properties":{"a":true,"b":true},"minProperties":1})", options).accepts("{}"));
  options.any_order = false;
  EXPECT_TRUE(Schema(text, options).accepts(R"({"a":3,"b":1,"c":1,"z":2})"));
  EXPECT_FALSE(Schema(text, options).accepts(R"({"c":1,"z":2,"a":3})"));
}

TEST(JsonSchema, OrderIsTrackedForManyMembersAndInNestedObjects) {
  json::Object properties;
  json::Array required;
  for (int i = 0; i < 150; ++i) {
    properties.emplace_back("m" + std::to_string(i), json::Object{{"type", "integer"}});
    if (i % 2 == 0) required.emplace_back("m" + std::to_string(i));
  }
  json::Value object{json::Object{{"type", "object"}, {"additionalProperties", false}}};
  object.set("properties", properties);
  object.set("required", required);
  const Schema schema(json::dump(json::Object{{"type", "array"}, {"items", object}}), {});
  std::vector<int> order(150);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(7);
  std::string list = "[";
  for (int round = 0; round < 4; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    std::string one;
    for (const int i : order) {
      if (i % 2 == 1 && random() % 2 == 0) continue;
      one += std::string(one.empty() ? "{" : ", ") + "\"m" + std::to_string(i) + "\": " + std::to_string(i);
    }
    list += std::string(round == 0 ? "" : ", ") + one + "}";
    EXPECT_TRUE(schema.accepts(list + "]"));
    const std::string again = ", \"m" + std::to_string(order[0] / 2 * 2) + "\": 1";
    EXPECT_FALSE(schema.accepts("[" + one + again + "}]"));
  }
  EXPECT_FALSE(schema.accepts("[{\"m0\": 1}]"));
}

// Hostile schemas end within bounded time, with an error or without one.
TEST(JsonSchema, HostileSchemasAreBounded) {
  std::vector<json::Value> schemas;
  json::Array many;
  for (int i = 0; i < trials(200'000); ++i) many.push_back("value" + std::to_string(i * 7919));
  schemas.push_back(json::Object{{"enum", std::move(many)}});
  std::string nested = "true";
  for (int i = 0; i < 100; ++i) nested = "{\"items\":" + nested + "}";
  schemas.push_back(*json::parse(nested));
  json::Array product;
  for (int i = 0; i < 20; ++i) {
    json::Array options;
    for (int j = 0; j < 10; ++j)
      options.push_back(json::Object{{"required", json::Array{"k" + std::to_string(i * 10 + j)}}});
    product.push_back(json::Object{{"anyOf", std::move(options)}});
  }
  schemas.push_back(json::Object{{"allOf", std::move(product)}});
  schemas.push_back(*json::parse(R"({"minItems":1000000000,"items":{"maxLength":1000000000,"minLength":999999999}})"));
  schemas.push_back(*json::parse(R"({"pattern":"((((a{1,100}){1,100}){1,100}){1,100})b","type":"string"})"));
  json::Object patterns;
  for (int i = 0; i < 16; ++i) patterns.emplace_back("a.{" + std::to_string(i) + "}b", json::Object{{"minimum", i}});
  schemas.push_back(json::Object{{"patternProperties", std::move(patterns)}});
  json::Object members;
  json::Array names, numbers, more;
  for (int i = 0; i < trials(100'000); ++i) {
    members.emplace_back("p" + std::to_string(i), json::Object{});
    names.push_back("p" + std::to_string(i));
    if (i % 2 == 0) numbers.push_back(int64_t{i} * 7919);
  }
  for (int i = 0; i < 200; ++i) more.push_back(json::Object{{"pattern", "a.{" + std::to_string(i + 50) + "}b"}});
  schemas.push_back(json::Object{{"required", names}});
  schemas.push_back(json::Object{{"properties", std::move(members)}, {"required", std::move(names)}});
  schemas.push_back(json::Object{{"enum", std::move(numbers)}});
  schemas.push_back(json::Object{{"type", "string"}, {"allOf", std::move(more)}});
  for (const json::Value& schema : schemas) {
    Grammar grammar;
    (void)add_json_schema(grammar, schema, {}).ok();
  }
}

// The most memory this program has had so far, in MiB.
int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return static_cast<int64_t>(usage.ru_maxrss) >> 20;
#else
  return static_cast<int64_t>(usage.ru_maxrss) >> 10;
#endif
}

std::string error_of(const json::Value& schema) {
  Grammar grammar;
  const Result<Symbol> symbol = add_json_schema(grammar, schema, {});
  return symbol.ok() ? "" : symbol.error().message;
}

// Sanitizers keep what was freed, and more besides.
void expect_little_memory_since(int64_t before) {
  if (kSanitized) return;
  EXPECT_LT(peak_memory() - before, 400) << "MiB";
}

TEST(JsonSchema, NegatedListsTakeLittleMemory) {
  const int64_t before = peak_memory();
  const json::Value never(false);
  const std::string many =
      error_of(json::Object{{"not", json::Object{{"type", "array"}, {"prefixItems", json::Array(20'000, never)}}}});
  EXPECT_NE(many.find("combinations of cases are too many"), std::string::npos) << many;
  json::Array late(15'000, json::Value(true));
  late.resize(15'900, never);
  const std::string far =
      error_of(json::Object{{"not", json::Object{{"type", "array"}, {"prefixItems", std::move(late)}}}});
  EXPECT_NE(far.find("\"not\" at /not is not supported: its list of items is too long"), std::string::npos) << far;
  expect_little_memory_since(before);
  const json::Array nulls(500, json::Object{{"type", "null"}});
  EXPECT_EQ(error_of(json::Object{{"not", json::Object{{"type", "array"}, {"prefixItems", nulls}}}}), "");
  json::Object members;
  for (int i = 0; i < 5'000; ++i) members.emplace_back("p" + std::to_string(i), json::Object{{"type", "null"}});
  const std::string object =
      error_of(json::Object{{"not", json::Object{{"type", "object"}, {"properties", std::move(members)}}}});
  EXPECT_NE(object.find("combinations of cases are too many"), std::string::npos) << object;
}

TEST(JsonSchema, NestedConstantsAreNotCopied) {
  auto nested = [](json::Value value) {
    for (int i = 0; i < 58; ++i) value = json::Array{std::move(value)};
    return json::Value(json::Object{{"properties", json::Object{{"a", json::Object{{"const", std::move(value)}}}}}});
  };
  const int64_t before = peak_memory();
  EXPECT_EQ(error_of(nested(json::Array(5'000, json::Value(true)))), "");
  const std::string error = error_of(nested(json::Array(200'000, json::Value(true))));
  EXPECT_EQ(error, "The schema's keyword \"const\" at /properties/a is not supported: its list of items is too long.");
  expect_little_memory_since(before);
  check({
      {R"({"const":[[true,{"a":[false,null]}],[],{},"x",1.5]})",
       {R"([[true,{"a":[false,null]}],[],{},"x",1.5])"},
       {R"([[false,{"a":[false,null]}],[],{},"x",1.5])", R"([[true,{"a":[true,null]}],[],{},"x",1.5])",
        R"([[true,{"a":[false,null]}],[1],{},"x",1.5])", R"([[true,{"a":[false,null]}],[],{"b":1},"x",1.5])"}},
      {R"({"type":"array","not":{"const":[true,[false]]}})", {"[true,[true]]", "[]"}, {"[true,[false]]"}},
  });
}

// Constants as the branches of a schema are as legal as an enum, and as quick.
TEST(JsonSchema, ManyConstantsMayBeBranches) {
  json::Array branches;
  for (int i = 0; i < 30; ++i) branches.push_back(json::Object{{"const", json::Array{i}}});
  for (int i = 0; i < 20'000; ++i) {
    branches.push_back(json::Object{{"const", "s" + std::to_string(i)}});
    branches.push_back(json::Object{{"const", i}});
  }
  branches.push_back(json::Object{{"type", "string"}, {"pattern", "^t"}});
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const Schema schema(json::dump(json::Object{{keyword, branches}}));
    EXPECT_EQ(schema.error(), "") << keyword;
    for (const char* text : {"[29]", "\"s0\"", "\"s19999\"", "0", "19999", "\"to\""})
      EXPECT_TRUE(schema.accepts(text)) << text;
    for (const char* text : {"[30]", "\"s20000\"", "20000", "\"u\"", "-1"}) EXPECT_FALSE(schema.accepts(text)) << text;
  }
  check({
      {R"({"oneOf":[{"enum":["a","b",1,2]},{"const":"b"},{"enum":[2,3,"c"]},{"pattern":"^c","type":"string"}]})",
       {"\"a\"", "1", "3", "\"cc\""},
       {"\"b\"", "2", "\"c\"", "4"}},
      {R"({"anyOf":[{"const":"b"},{"enum":[3,1,"a"]},{"type":"integer","minimum":10},{"const":"b"},{"enum":[2,1]}]})",
       {"\"a\"", "\"b\"", "1", "2", "3", "10", "11"},
       {"\"c\"", "4", "9"}},
      {R"({"allOf":[{"enum":[5,1,3,"a","b"]},{"enum":["b",3,5,7]}],"not":{"const":5}})",
       {"3", "\"b\""},
       {"1", "5", "7", "\"a\""}},
  });
}

// Each reference to a long list stands for a copy of it.
TEST(JsonSchema, CopiesOfLongListsAreBounded) {
  json::Array values, names;
  for (int i = 0; i < 40'000; ++i) values.push_back("value" + std::to_string(i));
  for (int i = 0; i < 10'000; ++i) names.push_back("name" + std::to_string(i));
  const json::Value lists(
      json::Object{{"e", json::Object{{"enum", values}}}, {"o", json::Object{{"required", names}}}});
  auto refer = [&](const char* keyword, const char* list, size_t count) {
    const json::Array references(count, json::Object{{"$ref", std::string("#/$defs/") + list}});
    return error_of(json::Object{{"$defs", lists}, {keyword, references}});
  };
  const int64_t before = peak_memory();
  EXPECT_EQ(refer("anyOf", "e", 20), "");
  EXPECT_EQ(refer("allOf", "e", 20), "");
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const std::string error = refer(keyword, "e", 1'000);
    EXPECT_NE(error.find("takes too long to translate"), std::string::npos) << keyword << ": " << error;
  }
  const std::string error = refer("anyOf", "o", 900);
  EXPECT_NE(error.find("takes too long to translate"), std::string::npos) << error;
  expect_little_memory_since(before);
  EXPECT_EQ(error_of(json::Object{{"type", "string"}, {"enum", values}}), "");
}

// Bytes and the numbers of two and three digits, as most tokenizers have them.
std::shared_ptr<const Vocabulary> digits_vocabulary() {
  std::vector<Vocabulary::Token> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back({std::string(1, static_cast<char>(byte)), false});
  for (int number = 100; number < 2000; ++number) tokens.push_back({std::to_string(number).substr(1), false});
  const auto size = static_cast<int64_t>(tokens.size());
  return Vocabulary::make(std::move(tokens), size);
}

// What comes of the mask after a text, with a matcher of its own: the error, or "".
std::string mask_error(const std::shared_ptr<const CompiledGrammar>& compiled, std::string_view text) {
  Matcher matcher(compiled);
  if (!matcher.accept_bytes(text)) return "refused";
  std::vector<uint32_t> mask(compiled->vocabulary().mask_words());
  const Status status = matcher.fill_mask(mask, {});
  return status.ok() ? "" : status.error().message;
}

std::shared_ptr<const CompiledGrammar> compiled_schema(std::string_view text, std::shared_ptr<const Vocabulary> words,
                                                       const MatcherLimits& limits = {}) {
  const Result<json::Value> schema = json::parse(text);
  Grammar grammar;
  const Result<Symbol> symbol = add_json_schema(grammar, schema.value(), {});
  EXPECT_TRUE(symbol.ok());
  grammar.set_start(*symbol);
  return CompiledGrammar::make(std::move(grammar), std::move(words), limits).value();
}

TEST(JsonSchema, AFirstRequestHasTheOutcomeOfLaterOnes) {
  // A mask was charged for making the automaton, which was then known: multipleOf 3001 failed once, and then worked.
  const auto words = digits_vocabulary();
  const auto first_and_later = [&](const char* schema, const char* text, const MatcherLimits& limits = {}) {
    const auto compiled = compiled_schema(schema, words, limits);
    const std::string first = mask_error(compiled, text);
    for (int again = 0; again < 3; ++again) EXPECT_EQ(mask_error(compiled, text), first) << schema;
    return first;
  };
  EXPECT_EQ(first_and_later(R"({"type":"integer","multipleOf":3001})", ""), "");
  EXPECT_EQ(first_and_later(R"({"type":"integer","multipleOf":701,"minimum":0,"maximum":1000000})", ""), "");
  // What costs too much is an error each time, also where the same number stands behind something else.
  MatcherLimits limits;
  limits.fuel_to_build = 20'000;
  const char* number = R"({"properties":{"a":{"type":"integer","multipleOf":3001}},"required":["a"]})";
  const std::string error = first_and_later(number, R"({"a":)", limits);
  EXPECT_NE(error.find("takes too long to make; make patterns simpler"), std::string::npos) << error;
  const auto compiled = compiled_schema(number, words, limits);
  EXPECT_EQ(mask_error(compiled, R"({"a":)"), error);
  EXPECT_EQ(mask_error(compiled, R"({ "a": )"), error);
}

TEST(JsonSchema, ObjectsHaveUpToTenThousandOptionalMembers) {
  // Objects of more than about 1,500 optional members were too expensive or too ambiguous, though 10,000 are allowed.
  for (const bool required : {false, true}) {
    json::Object properties;
    json::Array names;
    for (int i = 0; i < 10'000; ++i) {
      const std::string name = "name_" + std::to_string(i);
      properties.emplace_back(name, json::Object{{"type", "integer"}});
      if (required) names.emplace_back(name);
    }
    const json::Value schema(
        json::Object{{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(names)}});
    const auto compiled = compiled_schema(json::dump(schema), digits_vocabulary());
    if (required) {
      EXPECT_EQ(mask_error(compiled, R"({"name_0":1,"name_1":1,)"), "");
      continue;
    }
    for (const char* text : {"", "{", R"({"name_)", R"({"name_7)", R"({"name_7":)", R"({"name_7": 1)"}) {
      EXPECT_EQ(mask_error(compiled, text), "") << text;
    }
    Matcher matcher(compiled);
    EXPECT_TRUE(matcher.accept_bytes(R"({"name_7":1,"name_9999":2})") && matcher.may_end());
    EXPECT_FALSE(Matcher(compiled).accept_bytes(R"({"name_9":1,"name_7":2)"));
  }
}

}  // namespace
}  // namespace quire::grammar
