// SPDX-License-Identifier: Apache-2.0
// The JSON reader against good, bad and hostile texts.
#include "base/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/json_object.h"

namespace quire::json {
namespace {

TEST(Json, ReadsEveryKindAndKeepsMemberOrder) {
  const Value v = parse(R"({"z":1,"a":[true,false,null,-2.5,"x\u00e9\ud83d\ude00"],"z2":{"k":-7}})").value();
  EXPECT_EQ(v.as_object()[0].first, "z");
  EXPECT_EQ(v.as_object()[2].first, "z2");
  EXPECT_EQ(v.find("a")->as_array()[4].as_string(), "x\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(v.find("z2")->find("k")->as_int(), -7);
  EXPECT_EQ(parse(dump(v)).value(), v);
  EXPECT_EQ(parse(dump(v, 2)).value(), v);
}

TEST(Json, RepeatedNameKeepsFirstPlaceAndLastValue) {
  const Value v = parse(R"({"a":1,"b":2,"a":3})").value();
  EXPECT_EQ(dump(v), R"({"a":3,"b":2})");
}

TEST(Json, RepeatedNamesAmongManyKeepFirstPlaceAndLastValue) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const size_t size = random() % 60;
    Object members, expected;
    for (size_t i = 0; i < size; ++i) {
      const std::string name = std::to_string(random() % 25);
      const Value value(static_cast<int>(i));
      members.emplace_back(name, value);
      const auto same = [&](const Member& member) { return member.first == name; };
      const auto found = std::find_if(expected.begin(), expected.end(), same);
      if (found == expected.end()) {
        expected.emplace_back(name, value);
      } else {
        found->second = value;
      }
    }
    remove_repeats(members);
    EXPECT_EQ(dump(Value(members)), dump(Value(expected)));
  }
}

// Building an object was once quadratic in its members. With 200,000 members that takes minutes, so this test needs no
// clock: it would run into its timeout.
TEST(Json, ObjectsOfManyMembersAreReadAndComparedQuickly) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":1";
  const Value value = parse(text + "}").value();
  EXPECT_EQ(value.as_object().size(), 200'000u);
  Object reversed = value.as_object();
  std::ranges::reverse(reversed);
  EXPECT_TRUE(Value(std::move(reversed)) == value);
}

TEST(Json, ComparesObjectsInAnyOrderOfMembers) {
  EXPECT_EQ(parse(R"({"a":1,"b":[2]})").value(), parse(R"({"b":[2],"a":1})").value());
  EXPECT_FALSE(parse(R"({"a":1,"b":[2]})").value() == parse(R"({"b":[2],"c":1})").value());
  EXPECT_FALSE(parse(R"({"a":1})").value() == parse(R"({"a":2})").value());
}

TEST(Json, RefusesBrokenTextsAndSaysWhere) {
  for (const char* bad : {"", "{", "[1,", "[1 2]", "{\"a\" 1}", "{a:1}", "01", "1.", "1e", "\"abc", "\"\\x\"",
                          "\"\\u12g4\"", "tru", "[1]]", "\"\n\"", "{\"a\":1,}", "-"}) {
    const auto result = parse(bad);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_NE(result.error().message.find("line"), std::string::npos) << bad;
  }
}

TEST(Json, DepthIsBounded) {
  EXPECT_TRUE(parse(std::string(100, '[') + std::string(100, ']')).ok());
  EXPECT_FALSE(parse(std::string(1'000'000, '[')).ok());
}

TEST(Json, NumbersOutOfRangeBecomeDoubles) {
  EXPECT_EQ(parse("9223372036854775807").value().as_int(), INT64_MAX);
  EXPECT_EQ(parse("9223372036854775808").value().kind(), Kind::kDouble);
  EXPECT_TRUE(std::isinf(parse("1e999").value().as_double()));
  EXPECT_TRUE(std::isnan(parse("NaN").value().as_double()));
}

TEST(Json, LongIntegersKeepTheirDigits) {
  for (const char* digits : {"9223372036854775808", "18446744073709551615", "-9223372036854775809"}) {
    const Value value = parse(digits).value();
    ASSERT_NE(value.long_digits(), nullptr);
    EXPECT_EQ(dump(value), digits);
    EXPECT_EQ(dump(Value(Array{value, Value(value)})), "[" + std::string(digits) + "," + digits + "]");
    EXPECT_EQ(value, parse(digits).value());
  }
  EXPECT_EQ(parse("9223372036854775807").value().long_digits(), nullptr);
  EXPECT_EQ(parse("18446744073709551615.0").value().long_digits(), nullptr);
  const auto same = [](const char* a, const char* b) { return parse(a).value() == parse(b).value(); };
  EXPECT_FALSE(same("18446744073709551615", "18446744073709551616"));
  EXPECT_FALSE(same("9223372036854775807", "9223372036854775808"));
  EXPECT_TRUE(same("18446744073709551616", "18446744073709551616.0"));
}

TEST(Json, InvalidUtf8AndLoneSurrogatesBecomeReplacementCharacters) {
  EXPECT_EQ(parse("\"a\xFFz\"").value().as_string(), "a\xEF\xBF\xBDz");
  EXPECT_EQ(parse("\"\\ud800x\"").value().as_string(), "\xEF\xBF\xBDx");
}

TEST(Json, TypedLookUpsNameTheField) {
  const Value v = parse(R"({"n":"x","f":4096.0,"big":70})").value();
  EXPECT_NE(get_int(v, "n", 0, 10).error().message.find("'n' must be an integer, not a string"), std::string::npos);
  EXPECT_EQ(get_int(v, "f", 0, 5000).value(), 4096);
  EXPECT_NE(get_int(v, "big", 0, 10).error().message.find("outside of 0 to 10"), std::string::npos);
  EXPECT_NE(get_int(v, "gone", 0, 10).error().message.find("missing"), std::string::npos);
  EXPECT_EQ(get_int_or(v, "gone", 5, 0, 10).value(), 5);
}

}  // namespace
}  // namespace quire::json
