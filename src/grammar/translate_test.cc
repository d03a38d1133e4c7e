// SPDX-License-Identifier: Apache-2.0
// Tests of translate() for every kind of constraint, of the cache of compiled ones, and of SpecialTokens.
#include <gtest/gtest.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <string>
#include <thread>
#include <vector>

#include "base/test_sanitized.h"
#include "grammar/dialect_test_tools.h"

namespace quire::grammar {
namespace {

Spec regex_spec(std::string pattern) {
  Spec spec;
  spec.kind = Spec::Kind::kRegex;
  spec.text = std::move(pattern);
  return spec;
}

Spec choice_spec(std::vector<std::string> choice) {
  Spec spec;
  spec.kind = Spec::Kind::kChoice;
  spec.choice = std::move(choice);
  return spec;
}

Spec json_spec(std::string_view text) {
  Spec spec = tag_spec(text);
  spec.kind = Spec::Kind::kJson;
  return spec;
}

TEST(Translate, RegexMatchesTheWholeAnswer) {
  check_spec(regex_spec("\\d{3}-\\d{2}"), {"123-45"}, {"123-456", "x123-45"});
  check_spec(regex_spec(""), {""}, {"a"});
  check_spec(regex_spec("^(yes|no)$"), {"yes", "no"}, {"yesno"});
  EXPECT_EQ(spec_error(regex_spec(std::string("a\0b", 3))),
            "The regex must not contain the character NUL; write \\x00.");
  EXPECT_EQ(spec_error(regex_spec("(")), "The pattern is wrong at offset 0: the group is not closed.");
}

TEST(Translate, ChoiceIsOneOfTheStrings) {
  check_spec(choice_spec({"positive", "negative", "neg", "a\n.*"}), {"positive", "neg", "negative", "a\n.*"},
             {"", "pos", "a\nb"});
  check_spec(choice_spec({"", "x"}), {"", "x"}, {"xx"});
  EXPECT_EQ(spec_error(choice_spec({})), "The list of choices must have at least one string.");
  EXPECT_EQ(spec_error(choice_spec({"\xff"})), "A choice is not valid UTF-8.");
}

TEST(Translate, JsonSchema) {
  check_spec(json_spec(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})"),
             {"{\"a\": 1}"}, {"{}", "[]"});
  EXPECT_EQ(spec_error(json_spec("[]")), "The JSON Schema must be an object, not an array.");
  std::string deep = "{}";
  for (int i = 0; i < 70; ++i) deep = "{\"items\": " + deep + "}";
  EXPECT_EQ(spec_error(json_spec(deep)),
            "The JSON Schema is nested too deeply: at most 64 levels of objects and lists are allowed.");
  Spec tag = json_spec(deep);
  for (int i = 0; i < 20; ++i) tag.json = json::Object{{"x", tag.json}};
  tag.kind = Spec::Kind::kStructuralTag;
  EXPECT_EQ(spec_error(tag),
            "The structural tag is nested too deeply: at most 80 levels of objects and lists are allowed.");
}

TEST(Translate, CompactJsonHasNoWhiteSpace) {
  Spec spec = json_spec(R"({"type": "array", "items": {"type": "integer"}})");
  check_spec(spec, {"[1, 2]", "[1,2]"}, {});
  spec.any_whitespace = false;
  check_spec(spec, {"[1,2]"}, {"[1, 2]"});
}

TEST(Translate, TellsEbnfFromLark) {
  check_spec(grammar_spec("root ::= \"a\""), {"a"}, {"b"});
  check_spec(grammar_spec("root[capture] ::= \"a\""), {"a"}, {"b"});
  check_spec(grammar_spec("// x ::= y\nstart: \"::=\""), {"::="}, {"a"});
  check_spec(grammar_spec("# x ::= y\nstart: \"a\""), {"a"}, {"b"});
}

TEST(SpecialTokensTest, FindsTheLongest) {
  const SpecialTokens tokens({{"<a>", 7}, {"", 1}, {"<a>", 3}, {"<a>b", 4}, {"<", 5}});
  EXPECT_EQ(tokens.tokens().size(), 3u);
  EXPECT_EQ(tokens.find("<a>"), 3);
  EXPECT_EQ(tokens.find("<a"), std::nullopt);
  EXPECT_EQ(tokens.find_longest_at("x<a>bc", 1)->id, 4);
  EXPECT_EQ(tokens.find_longest_at("x<a>c", 1)->size, 3u);
  EXPECT_EQ(tokens.find_longest_at("x<b", 1)->id, 5);
  EXPECT_FALSE(tokens.find_longest_at("x<b", 2).has_value());
  EXPECT_FALSE(tokens.find_longest_at("x", 1).has_value());
}

TEST(CompilerCacheTest, KeepsWhatWasCompiled) {
  CompilerCache cache(byte_vocabulary({}, special_texts()), special_tokens());
  const auto first = cache.get(choice_spec({"a", "b"}));
  ASSERT_TRUE(first.ok());
  const auto second = cache.get(choice_spec({"a", "b"}));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_NE(*first, *cache.get(choice_spec({"ab"})));
  EXPECT_NE(*first, *cache.get(regex_spec("a|b")));
  EXPECT_FALSE(cache.get(choice_spec({})).ok());
  EXPECT_EQ(cache.stats().hits, 1);
  EXPECT_EQ(cache.stats().misses, 4);
  EXPECT_EQ(cache.stats().entries, 3);
  EXPECT_GT(cache.stats().bytes, 0u);
}

TEST(CompilerCacheTest, OptionsArePartOfTheKey) {
  CompilerCache cache(byte_vocabulary({}, special_texts()), special_tokens());
  Spec spec = json_spec(R"({"type": "array"})");
  const auto loose = cache.get(spec);
  spec.any_whitespace = false;
  const auto compact = cache.get(spec);
  ASSERT_TRUE(loose.ok() && compact.ok());
  EXPECT_NE(*loose, *compact);
  // Members in another order are another constraint: the answer follows the order.
  EXPECT_NE(*cache.get(json_spec(R"({"properties": {"a": {}, "b": {}}})")),
            *cache.get(json_spec(R"({"properties": {"b": {}, "a": {}}})")));
}

TEST(CompilerCacheTest, DropsTheLeastRecentlyUsed) {
  size_t one = 0;
  {
    CompilerCache cache(byte_vocabulary({}, special_texts()), special_tokens());
    ASSERT_TRUE(cache.get(choice_spec({"a"})).ok());
    one = cache.stats().bytes;
  }
  CompilerCache cache(byte_vocabulary({}, special_texts()), special_tokens(), 2 * one + one / 2);
  ASSERT_TRUE(cache.get(choice_spec({"a"})).ok());
  ASSERT_TRUE(cache.get(choice_spec({"b"})).ok());
  ASSERT_TRUE(cache.get(choice_spec({"a"})).ok());
  ASSERT_TRUE(cache.get(choice_spec({"c"})).ok());  // drops "b"
  EXPECT_EQ(cache.stats().entries, 2);
  EXPECT_LE(cache.stats().bytes, 2 * one + one / 2);
  ASSERT_TRUE(cache.get(choice_spec({"a"})).ok());
  EXPECT_EQ(cache.stats().hits, 2);
  ASSERT_TRUE(cache.get(choice_spec({"b"})).ok());
  EXPECT_EQ(cache.stats().misses, 4);
}

#if defined(__GLIBC__)
// The bug: tables that every lexer has were not counted, so the cache of many small constraints outgrew its bound.
TEST(CompilerCacheTest, CountsTheMemoryThatItTakes) {
  if (kSanitized) GTEST_SKIP() << "mallinfo2() knows nothing of a sanitizer's memory";
  constexpr int kConstraints = 400;
  for (const bool json : {false, true}) {
    CompilerCache cache(byte_vocabulary({}, special_texts()), special_tokens());
    const size_t before = mallinfo2().uordblks;
    for (int i = 0; i < kConstraints; ++i) {
      const std::string name = std::to_string(i);
      const auto grammar = cache.get(json ? json_spec(R"({"properties": {"k)" + name + R"(": {"type": "string"}}})")
                                          : regex_spec("[a-z]{1," + std::to_string(1 + i % 40) + "}x" + name));
      ASSERT_TRUE(grammar.ok());
      Matcher matcher(*grammar);
      std::vector<uint32_t> mask((*grammar)->vocabulary().mask_words());
      ASSERT_TRUE(matcher.fill_mask(mask, {}).ok());
      ASSERT_TRUE(matcher.accept_bytes(json ? "{" : "a"));
      ASSERT_TRUE(matcher.fill_mask(mask, {}).ok());
    }
    const size_t taken = mallinfo2().uordblks - before;
    ASSERT_TRUE(cache.get(regex_spec("the others are measured again")).ok());
    const size_t counted = cache.stats().bytes;
    EXPECT_GT(counted, taken - taken / 10) << (json ? "JSON Schema" : "regex") << ", each " << taken / kConstraints;
    EXPECT_LT(counted, taken + taken / 4) << (json ? "JSON Schema" : "regex") << ", each " << taken / kConstraints;
  }
}
#endif

TEST(CompilerCacheTest, ThreadsCompileTheSameConstraintOnce) {
  CompilerCache cache(byte_vocabulary({}, special_texts()), special_tokens());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        const auto grammar = cache.get(regex_spec("[a-z]{" + std::to_string(round) + "}x"));
        EXPECT_TRUE(grammar.ok());
        Matcher matcher(*grammar);
        EXPECT_TRUE(matcher.accept_bytes("x"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.stats().misses, 20);
  EXPECT_EQ(cache.stats().hits, 140);
}

}  // namespace
}  // namespace quire::grammar
