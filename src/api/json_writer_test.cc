// SPDX-License-Identifier: Apache-2.0
// JSON as the writer spells it, and the bodies of errors that are written with it.
#include "api/json_writer.h"

#include <gtest/gtest.h>

#include <limits>

#include "api/error.h"

namespace quire::api {
namespace {

TEST(JsonWriter, PutsCommasAndQuotes) {
  JsonWriter w;
  w.open_object().member("a", "x\"\n").member_int("b", -1).key("c").open_array().integer(1).boolean(true).null();
  w.close_array().key("d").open_object().close_object().member_bool("e", false).member_null("f");
  w.key("g").value(json::Array{1, "y"}).close_object();
  EXPECT_EQ(w.take(), R"({"a":"x\"\n","b":-1,"c":[1,true,null],"d":{},"e":false,"f":null,"g":[1,"y"]})");
}

TEST(JsonWriter, WritesNumbersThatReadersTakeForFloats) {
  JsonWriter w;
  w.open_array().number(1).number(0.1).number(-2.5e-300).number(std::numeric_limits<double>::infinity());
  w.number(std::numeric_limits<double>::quiet_NaN()).close_array();
  EXPECT_EQ(w.take(), "[1.0,0.1,-2.5e-300,null,null]");
}

TEST(JsonWriter, WritesAValueOrNull) {
  JsonWriter w;
  w.open_object().key("a").value_or_null(true, [&] { w.open_array().integer(1).close_array(); });
  w.key("b").value_or_null(false, [&] { w.integer(2); }).close_object();
  EXPECT_EQ(w.text(), R"({"a":[1],"b":null})");
}

TEST(ApiError, HasTheShapesOfOpenAiAndAnthropic) {
  const ApiError error = bad_field("top_p", "must be \"small\".");
  EXPECT_EQ(error.body(),
            R"({"error":{"message":"top_p must be \"small\".","type":"BadRequestError","param":"top_p","code":400}})");
  EXPECT_EQ(error.anthropic_body(),
            R"({"type":"error","error":{"type":"invalid_request_error","message":"top_p must be \"small\"."}})");
  EXPECT_NE(bad_request("no.").get().body().find(R"("param":null)"), std::string::npos);
  EXPECT_TRUE(error.headers().empty());
  const ApiError later{429, "RateLimitError", "slow down", "", 7};
  EXPECT_EQ(later.headers(), (Headers{{"Retry-After", "7"}}));
}

TEST(ApiError, ComesFromTheErrorsOfTheLayersBelow) {
  const std::pair<Error, int> cases[] = {
      {invalid_argument("a"), 400},
      {unsupported("a"), 400},
      {corrupt("a"), 400},
      {not_found("a"), 404},
      {exhausted("a"), 503},
      {unavailable("a"), 503},
      {{ErrorCode::kCancelled, "a"}, 499},
      {{ErrorCode::kInternal, "a"}, 500},
  };
  for (const auto& [error, status] : cases) {
    EXPECT_EQ(to_api_error(error).get().status, status);
    EXPECT_EQ(to_api_error(error).get().param, "") << "the field is not read out of the message";
  }
  const ApiError wrong = to_api_error(invalid_field("n", "must be 1."));
  EXPECT_EQ(wrong.message, "n must be 1.");
  EXPECT_EQ(wrong.param, "n");
  EXPECT_EQ(to_api_error(unsupported("stop strings need a tokenizer", "stop")).get().param, "stop");
}

TEST(ApiResult, WorksWithTheMacros) {
  const auto twice = [](Result<int> from) -> ApiResult<int> {
    QUIRE_ASSIGN(const int value, std::move(from));
    return 2 * value;
  };
  auto good = twice(21);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, 42);
  EXPECT_EQ(twice(invalid_field("x", "is bad.")).error().param, "x");
}

}  // namespace
}  // namespace quire::api
