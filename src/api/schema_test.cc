// SPDX-License-Identifier: Apache-2.0
// The tables of fields, the check of a request against them, and the documents that are made from them.
#include "api/schema.h"

#include <gtest/gtest.h>

#include <set>

#include "api/documents.h"
#include "api/routes.h"

namespace quire::api {
namespace {

const Schema& small_schema() {
  static const Schema schema{"Small",
                             "For this test.",
                             {{"text", FieldType::kString, "", {.required = true, .no_empty_text = true}},
                              {"share", FieldType::kNumber, "", {.min = 0, .max = 1, .above_min = true}},
                              {"count", FieldType::kInt, "", {.min = 1}},
                              {"list", FieldType::kInts, "", {.no_empty_list = true}},
                              {"side", FieldType::kString, "", {.choices = {"left", "right", "both"}}},
                              {"tools", FieldType::kObjects, "", {.refused = "cannot be called."}}}};
  return schema;
}

TEST(Body, ReadsFieldsByType) {
  auto body = Body::parse(R"({"text": "a", "share": 1, "count": 3.0, "list": [1, 2], "side": null, "unknown": {}})",
                          small_schema());
  ASSERT_TRUE(body.ok()) << body.error().message;
  EXPECT_EQ(body->string("text"), "a");
  EXPECT_EQ(body->number("share"), 1.0);
  EXPECT_EQ(body->integer("count"), 3);
  EXPECT_EQ(body->ints("list"), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(body->strings("text"), std::vector<std::string>{"a"});
  EXPECT_FALSE(body->has("side")) << "null is the same as absent";
  EXPECT_EQ(body->string("side", "left"), "left");
  EXPECT_FALSE(body->has("unknown")) << "a field without a row is ignored";
  EXPECT_TRUE(body->take("unknown").is_null());
}

TEST(Body, NamesTheFieldThatIsWrong) {
  const std::pair<const char*, std::pair<const char*, const char*>> cases[] = {
      {R"({})", {"text", "text is missing; it is required."}},
      {R"({"text": ""})", {"text", "text must not be empty."}},
      {R"({"text": 1})", {"text", "text must be a string, got 1."}},
      {R"({"text": "a", "share": 0})", {"share", "share must be above 0 to 1, got 0."}},
      {R"({"text": "a", "count": 0})", {"count", "count must be at least 1, got 0."}},
      {R"({"text": "a", "count": 1.5})", {"count", "count must be an integer, got 1.5."}},
      {R"({"text": "a", "count": 9223372036854775808})",
       {"count",
        "count must be an integer from -9223372036854775808 to 9223372036854775807, written with digits alone, got "
        "9223372036854775808."}},
      {R"({"text": "a", "list": []})", {"list", "list must not be empty."}},
      {R"({"text": "a", "list": [-1]})", {"list", "list must be a list of token ids, got [-1]."}},
      {R"({"text": "a", "side": "top"})", {"side", "side must be left, right or both, got \"top\"."}},
      {R"({"text": "a", "tools": [{}]})", {"tools", "tools cannot be called."}},
      {R"([])", {"", "the body must be a JSON object."}},
  };
  for (const auto& [text, expected] : cases) {
    const auto body = Body::parse(text, small_schema());
    ASSERT_FALSE(body.ok()) << text;
    EXPECT_EQ(body.error().status, 400);
    EXPECT_EQ(body.error().param, expected.first) << text;
    EXPECT_EQ(body.error().message, expected.second) << text;
  }
  EXPECT_TRUE(Body::parse(R"({"text": "a", "tools": []})", small_schema()).ok()) << "a neutral value is not refused";
  EXPECT_FALSE(Body::parse("{", small_schema()).ok());
  EXPECT_FALSE(Body::parse(std::string(100, '['), small_schema()).ok());
}

TEST(Schema, ShortensLongValuesInErrors) {
  const auto body = Body::parse(R"({"text": "a", "side": ")" + std::string(5000, 'x') + "\"}", small_schema());
  ASSERT_FALSE(body.ok());
  EXPECT_LT(body.error().message.size(), 300u);
}

TEST(Schema, TablesHaveNoFieldTwice) {
  for (const Route& route : routes()) {
    if (route.options.schema == nullptr) continue;
    std::set<std::string_view> names;
    for (const Field& field : route.options.schema().fields) {
      EXPECT_TRUE(names.insert(field.name).second) << route.path << " has " << field.name << " twice";
      EXPECT_TRUE(*field.doc != '\0' || field.rules.refused != nullptr || field.rules.max == -1)
          << route.path << ": " << field.name << " has no description";
    }
  }
}

TEST(Schema, DescribesRanges) {
  EXPECT_EQ(range_text({}), "");
  EXPECT_EQ(range_text({.min = 0, .max = 2}), "from 0 to 2");
  EXPECT_EQ(range_text({.min = 0.5}), "at least 0.5");
  EXPECT_EQ(range_text({.max = 7}), "at most 7");
  EXPECT_EQ(bound_text(9223372036854775808.0), "9223372036854775807");
  EXPECT_EQ(bound_text(-9223372036854775808.0), "-9223372036854775808");
}

TEST(Documents, HaveEveryRoute) {
  const auto document = json::parse(openapi_json("1.2.3"));
  ASSERT_TRUE(document.ok()) << document.error().message;
  const std::string markdown = api_markdown(), page = docs_page("1.2.3", "<model>");
  for (const Route& route : routes()) {
    EXPECT_NE(document->find("paths")->find(route.path), nullptr) << route.path;
    EXPECT_NE(markdown.find("`" + std::string(route.path) + "`"), std::string::npos) << route.path;
    EXPECT_NE(page.find(" " + std::string(route.path) + "</code>"), std::string::npos) << route.path;
  }
  EXPECT_NE(page.find("&lt;model&gt;"), std::string::npos);
}

}  // namespace
}  // namespace quire::api
