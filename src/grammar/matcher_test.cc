// SPDX-License-Identifier: Apache-2.0
// Matcher: what grammars accept, masks against a brute-force oracle, rollback, limits, and threads.
#include "grammar/matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "grammar/test_grammars.h"

namespace quire::grammar {
namespace {

constexpr int32_t kByteTokens = 256;

std::shared_ptr<const CompiledGrammar> compile(Grammar grammar, std::shared_ptr<const Vocabulary> vocabulary = nullptr,
                                               const MatcherLimits& limits = {}) {
  if (!vocabulary) vocabulary = byte_vocabulary({});
  auto compiled = CompiledGrammar::make(std::move(grammar), std::move(vocabulary), limits);
  EXPECT_TRUE(compiled.ok()) << (compiled.ok() ? "" : compiled.error().message);
  return compiled.ok() ? *compiled : nullptr;
}

bool takes(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return matcher.accept_bytes(text) && matcher.may_end();
}

std::vector<bool> mask_of(Matcher& matcher, const Vocabulary& vocabulary, std::vector<int32_t> ends = {}) {
  std::vector<uint32_t> mask(vocabulary.mask_words());
  Status status = matcher.fill_mask(mask, ends);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  std::vector<bool> bits(static_cast<size_t>(vocabulary.size()));
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = (mask[i / 32] >> (i % 32)) & 1;
  return bits;
}

// Every token, tried one by one through accept_bytes().
std::vector<bool> brute_force(Matcher& matcher, const Vocabulary& vocabulary) {
  std::vector<bool> bits(static_cast<size_t>(vocabulary.size()));
  for (size_t i = 0; i < bits.size(); ++i) {
    const Vocabulary::Token& token = vocabulary.token(static_cast<int32_t>(i));
    if (token.special || token.bytes.empty() || !matcher.accept_bytes(token.bytes)) continue;
    bits[i] = true;
    matcher.rollback(1);
  }
  return bits;
}

const std::vector<std::string>& json_texts() {
  static const std::vector<std::string> texts = {
      R"({"name": "Ada", "tags": ["a", "b\n\u00e9", ""], "n": -12.5e+3, "ok": true, "none": null})",
      "[[[1, 2], [3]], {\"\": {}}, []]", "\"Gr\xC3\xBC\xC3\x9F \xF0\x9F\x98\x80\"", "0", "{\n\t\"k\" : [ ]\n}"};
  return texts;
}

const std::vector<std::string>& json_tokens() {
  static const std::vector<std::string> tokens = {"{\"",
                                                  "\":",
                                                  "\": \"",
                                                  "\",",
                                                  "\", \"",
                                                  "\"}",
                                                  "}}",
                                                  "]]",
                                                  "],",
                                                  "name",
                                                  "tags",
                                                  " the",
                                                  "true",
                                                  "tru",
                                                  "e,",
                                                  "null}",
                                                  "12",
                                                  "-1",
                                                  "1.5",
                                                  "e+",
                                                  "\n  ",
                                                  "  \"",
                                                  "\\u00",
                                                  "\\n",
                                                  "\xC3",
                                                  "\xA9\"",
                                                  "\xC3\xA9",
                                                  "\xF0\x9F",
                                                  "\x98\x80",
                                                  "abcdefghijklmn",
                                                  "a\"b",
                                                  "[[",
                                                  "[]",
                                                  "[1",
                                                  "1]",
                                                  "\"\"",
                                                  "a long token of more than thirty characters",
                                                  "x\xE2\x82\xAC",
                                                  "12",
                                                  "name"};
  return tokens;
}

TEST(Matcher, AcceptsJsonAndNothingElse) {
  auto grammar = compile(json_grammar());
  for (const std::string& text : json_texts()) EXPECT_TRUE(takes(grammar, text)) << text;
  for (std::string text :
       {"", "{", "[1,]", "{\"a\":}", "01", "\"\x01\"", "nul", "[1 2]", "\"\\x\"", "\"\xC3\"", "1.", " 1"}) {
    EXPECT_FALSE(takes(grammar, text)) << text;
  }
}

TEST(Matcher, MasksEqualTryingEveryToken) {
  auto vocabulary = byte_vocabulary(json_tokens(), {"<end>"});
  auto grammar = compile(json_grammar(), vocabulary);
  for (const std::string& text : json_texts()) {
    Matcher matcher(grammar);
    for (size_t i = 0;; ++i) {
      ASSERT_EQ(mask_of(matcher, *vocabulary), brute_force(matcher, *vocabulary)) << text.substr(0, i);
      if (i == text.size()) break;
      ASSERT_TRUE(matcher.accept_bytes(text.substr(i, 1)));
    }
    EXPECT_TRUE(matcher.may_end());
  }
}

// Names with exceptions take whole slices of tokens; they must not take too much.
TEST(Matcher, MasksOfNamesWithExceptionsEqualTryingEveryToken) {
  auto vocabulary = byte_vocabulary(json_tokens());
  for (bool bounded : {false, true}) {
    Grammar grammar;
    RegexStore& r = grammar.regexes();
    Regex quote = r.literal("\"");
    Regex plain = r.chars_except(std::vector<CodePointRange>{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
    Regex name = r.concat(quote, r.concat(bounded ? r.repeat(plain, 0, 12) : r.repeat(plain, 0), quote));
    Regex names = r.either(r.literal("\"name\""), r.literal("\"tags\""));
    Symbol other = grammar.terminal(r.concat(r.both(name, r.complement(names)), r.literal(":")));
    grammar.set_start(grammar.sequence({other, grammar.terminal(r.repeat(r.bytes(ByteSet::range('0', '9')), 1))}));
    auto compiled = compile(std::move(grammar), vocabulary);
    for (std::string text : {"\"names\":12", "\"tag\":1", "\"\xC3\xA9 the the\":1"}) {
      Matcher matcher(compiled);
      for (size_t i = 0; i < text.size(); ++i) {
        ASSERT_EQ(mask_of(matcher, *vocabulary), brute_force(matcher, *vocabulary)) << text.substr(0, i);
        ASSERT_TRUE(matcher.accept_bytes(text.substr(i, 1)));
      }
    }
    Matcher matcher(compiled);
    ASSERT_TRUE(matcher.accept_bytes("\"name"));
    EXPECT_FALSE(matcher.accept_bytes("\""));
  }
}

TEST(Matcher, EndTokensAreAllowedExactlyWhereTheTextMayEnd) {
  auto vocabulary = byte_vocabulary({"ab"}, {"<end>"});
  const int32_t end = kByteTokens + 1;
  Grammar grammar;
  grammar.set_start(grammar.repeat(grammar.literal("ab"), 1, 2));
  auto compiled = compile(std::move(grammar), vocabulary);
  Matcher matcher(compiled);
  EXPECT_FALSE(mask_of(matcher, *vocabulary, {end})[end]);
  EXPECT_FALSE(matcher.accept(end, std::vector{end}).ok());
  ASSERT_TRUE(matcher.accept(kByteTokens, std::vector{end}).ok());
  EXPECT_TRUE(mask_of(matcher, *vocabulary, {end})[end]);
  EXPECT_TRUE(mask_of(matcher, *vocabulary, {end})[kByteTokens]);
  // An ordinary token that the request stops at is allowed where the text may end and nowhere else.
  EXPECT_TRUE(mask_of(matcher, *vocabulary, {'x'})['x']);
  EXPECT_TRUE(matcher.accept(end, std::vector{end}).ok());
  EXPECT_FALSE(matcher.is_over());
  matcher.rollback(1);
  ASSERT_TRUE(matcher.accept('a', std::vector{end}).ok());
  EXPECT_FALSE(mask_of(matcher, *vocabulary, {end, 'b'})[end]);
  EXPECT_FALSE(mask_of(matcher, *vocabulary, {end, 'b'})['b']);
  ASSERT_TRUE(matcher.accept('b', std::vector{end}).ok());
  EXPECT_TRUE(matcher.is_over());
  std::vector<bool> mask = mask_of(matcher, *vocabulary, {end});
  EXPECT_EQ(std::ranges::count(mask, true), 1);
  EXPECT_TRUE(mask[end]);
}

TEST(Matcher, SpecialTokensMatchByTheirIdAlone) {
  auto vocabulary = byte_vocabulary({}, {"<tool>", "</tool>", "<end>"});
  const int32_t open = kByteTokens, close = open + 1, end = open + 2;
  Grammar grammar;
  Symbol text = grammar.terminal(grammar.regexes().repeat(grammar.regexes().bytes(ByteSet::of("<tol>x")), 0));
  Symbol begin = grammar.token({{{open, open}}});
  Symbol other = grammar.token({{{open, open}}, true});
  grammar.set_start(grammar.sequence({text, begin, grammar.literal("x"), other}));
  auto compiled = compile(std::move(grammar), vocabulary);
  Matcher matcher(compiled);
  std::vector<bool> mask = mask_of(matcher, *vocabulary, {end});
  EXPECT_TRUE(mask[open]);
  EXPECT_FALSE(mask[close]);
  EXPECT_TRUE(mask['<']);
  ASSERT_TRUE(matcher.accept_bytes("<tool>"));
  EXPECT_FALSE(mask_of(matcher, *vocabulary)[close]);
  ASSERT_TRUE(matcher.accept(open, {}).ok());
  EXPECT_FALSE(mask_of(matcher, *vocabulary)[open]);
  EXPECT_FALSE(matcher.accept('<', {}).ok());
  ASSERT_TRUE(matcher.accept('x', {}).ok());
  mask = mask_of(matcher, *vocabulary, {end});
  EXPECT_FALSE(mask[open]);
  EXPECT_TRUE(mask[close]);
  EXPECT_FALSE(mask[end]) << "a set of any other tokens has no end tokens";
  EXPECT_TRUE(mask['a']) << "an ordinary token may be matched by its id";
  EXPECT_FALSE(mask[static_cast<size_t>(vocabulary->size()) - 1]);
  ASSERT_TRUE(matcher.accept(close, {}).ok());
  EXPECT_TRUE(matcher.is_over());
}

TEST(Matcher, AnEndTokenThatTheGrammarNamesIsPartOfTheText) {
  auto vocabulary = byte_vocabulary({}, {"<end>"});
  const int32_t end = kByteTokens;
  Grammar grammar;
  grammar.set_start(grammar.sequence({grammar.token({{{end, end}}}), grammar.literal("x")}));
  Matcher matcher(compile(std::move(grammar), vocabulary));
  EXPECT_TRUE(mask_of(matcher, *vocabulary, {end})[end]);
  ASSERT_TRUE(matcher.accept(end, std::vector{end}).ok());
  EXPECT_FALSE(matcher.may_end());
  ASSERT_TRUE(matcher.accept('x', std::vector{end}).ok());
  EXPECT_TRUE(matcher.is_over());
}

TEST(Matcher, ATokenMayMatchByIdAndByBytesAtOnce) {
  auto vocabulary = byte_vocabulary({"ab"});
  Grammar grammar;
  Symbol by_id = grammar.sequence({grammar.token({{{kByteTokens, kByteTokens}}}), grammar.literal("1")});
  Symbol by_bytes = grammar.terminal(grammar.regexes().concat(
      grammar.regexes().repeat(grammar.regexes().literal("ab"), 1), grammar.regexes().literal("2")));
  grammar.set_start(grammar.choice({by_id, by_bytes}));
  Matcher matcher(compile(std::move(grammar), vocabulary));
  ASSERT_TRUE(matcher.accept(kByteTokens, {}).ok());
  std::vector<bool> mask = mask_of(matcher, *vocabulary);
  EXPECT_TRUE(mask['1'] && mask['2'] && mask['a']);
  EXPECT_EQ(std::ranges::count(mask, true), 4);
}

TEST(Matcher, RollbackIsAsIfTheTokensHadNotCome) {
  auto vocabulary = byte_vocabulary(json_tokens());
  auto grammar = compile(json_grammar(), vocabulary);
  std::mt19937 random(7);
  Matcher matcher(grammar);
  std::vector<int32_t> tokens;
  for (int step = 0; step < 300; ++step) {
    std::vector<bool> mask = mask_of(matcher, *vocabulary);
    Matcher fresh(grammar);
    for (int32_t token : tokens) ASSERT_TRUE(fresh.accept(token, {}).ok());
    ASSERT_EQ(mask, mask_of(fresh, *vocabulary));
    EXPECT_EQ(matcher.may_end(), fresh.may_end());
    std::vector<int32_t> allowed;
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i]) allowed.push_back(static_cast<int32_t>(i));
    }
    if (allowed.empty() || (random() % 4 == 0 && !tokens.empty())) {
      size_t count = 1 + random() % tokens.size();
      matcher.rollback(static_cast<int64_t>(count));
      tokens.resize(tokens.size() - count);
    } else {
      tokens.push_back(allowed[random() % allowed.size()]);
      ASSERT_TRUE(matcher.accept(tokens.back(), {}).ok());
    }
  }
}

TEST(Matcher, RefusedTokensChangeNothing) {
  auto vocabulary = byte_vocabulary(json_tokens());
  Matcher matcher(compile(json_grammar(), vocabulary));
  ASSERT_TRUE(matcher.accept_bytes("{\"a"));
  std::vector<bool> before = mask_of(matcher, *vocabulary);
  EXPECT_FALSE(matcher.accept('\n', {}).ok());
  EXPECT_FALSE(matcher.accept(-1, {}).ok());
  EXPECT_FALSE(matcher.accept(1 << 30, {}).ok());
  EXPECT_FALSE(matcher.accept(static_cast<int32_t>(vocabulary->size()) - 1, {}).ok());
  EXPECT_FALSE(matcher.accept_bytes("bc\":]"));
  EXPECT_EQ(mask_of(matcher, *vocabulary), before);
}

TEST(Matcher, ForcedBytesAreTheOnlyWayOn) {
  Grammar grammar;
  Symbol key = grammar.choice({grammar.literal("{\"name\": \"Ada\""), grammar.literal("{\"name\": \"Alan\"")});
  grammar.set_start(
      grammar.sequence({key, grammar.terminal(grammar.regexes().repeat(grammar.regexes().literal(" "), 0)),
                        grammar.literal("}"), grammar.optional(grammar.literal("!"))}));
  Matcher matcher(compile(std::move(grammar)));
  EXPECT_EQ(matcher.forced_bytes(), "{\"name\": \"A");
  EXPECT_EQ(matcher.forced_bytes(3), "{\"n");
  ASSERT_TRUE(matcher.accept_bytes("{\"name\": \"Al"));
  EXPECT_EQ(matcher.forced_bytes(), "an\"");
  ASSERT_TRUE(matcher.accept_bytes("an\"}"));
  EXPECT_EQ(matcher.forced_bytes(), "");
}

TEST(Matcher, ForcedTokensSpellTheForcedBytes) {
  Grammar grammar;
  grammar.set_start(
      grammar.sequence({grammar.literal("abcab"), grammar.choice({grammar.literal("x"), grammar.literal("y")})}));
  const auto vocabulary = Vocabulary::make(
      {{"a"}, {"b"}, {"c"}, {"abc"}, {"abx"}, {"ab"}, {"x"}, {"y"}, {"abca", true}, {"<end>", true}}, 12);
  auto compiled = CompiledGrammar::make(std::move(grammar), vocabulary);
  ASSERT_TRUE(compiled.ok());
  Matcher matcher(*compiled);
  std::vector<int32_t> tokens;
  matcher.forced_tokens(8, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{3, 5})) << "abc, ab; special tokens spell nothing";
  tokens.clear();
  matcher.forced_tokens(1, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{3}));
  ASSERT_TRUE(matcher.accept(3, {}).ok());
  ASSERT_TRUE(matcher.accept(5, {}).ok());
  tokens.clear();
  matcher.forced_tokens(8, tokens);
  EXPECT_TRUE(tokens.empty());
  EXPECT_EQ(vocabulary->longest_prefix("abxx"), 4);
  EXPECT_EQ(vocabulary->longest_prefix("z"), -1);
}

TEST(Matcher, AGrammarThatMatchesNothingIsRefused) {
  auto message = [](Grammar grammar) {
    auto compiled = CompiledGrammar::make(std::move(grammar), byte_vocabulary({}));
    return compiled.ok() ? "" : compiled.error().message;
  };
  EXPECT_THAT(message(Grammar()), testing::HasSubstr("matches no text at all"));
  Grammar endless;
  Symbol rule = endless.rule("a");
  endless.add_production(rule, {endless.literal("x"), rule});
  endless.set_start(rule);
  EXPECT_THAT(message(std::move(endless)), testing::HasSubstr("matches no text at all"));
  Grammar contradiction;
  RegexStore& r = contradiction.regexes();
  contradiction.set_start(
      contradiction.terminal(r.both(r.concat(r.anything(), r.literal("a")), r.concat(r.anything(), r.literal("b")))));
  EXPECT_THAT(message(std::move(contradiction)), testing::HasSubstr("matches no text at all"));
  Grammar no_such_token;
  no_such_token.set_start(no_such_token.token({{{9000, 9999}}}));
  EXPECT_THAT(message(std::move(no_such_token)), testing::HasSubstr("matches no text at all"));
}

// A dead end must not be entered: what follows "ax" is a contradiction, so that only "ay" is possible.
TEST(Matcher, DoesNotEnterDeadEnds) {
  Grammar grammar;
  RegexStore& r = grammar.regexes();
  Regex impossible = r.both(r.concat(r.anything(), r.literal("a")), r.concat(r.anything(), r.literal("b")));
  Regex either = r.concat(r.literal("a"), r.either(r.concat(r.literal("x"), impossible), r.literal("y")));
  grammar.set_start(grammar.terminal(either));
  Matcher matcher(compile(std::move(grammar)));
  EXPECT_EQ(matcher.forced_bytes(), "ay");
  EXPECT_FALSE(matcher.accept_bytes("ax"));
}

TEST(Matcher, CountsLargeRepetitions) {
  Grammar grammar;
  Symbol item = grammar.rule("item");
  grammar.add_production(
      item, {grammar.terminal(grammar.regexes().repeat(grammar.regexes().literal("a"), 1)), grammar.literal(",")});
  grammar.set_start(grammar.repeat(item, 3, 1000));
  auto compiled = compile(std::move(grammar));
  auto text = [](int count) {
    std::string result;
    for (int i = 0; i < count; ++i) result += i % 3 == 0 ? "aa," : "a,";
    return result;
  };
  for (int count : {0, 1, 2, 1001, 1002, 1500}) EXPECT_FALSE(takes(compiled, text(count))) << count;
  for (int count : {3, 4, 5, 63, 64, 65, 511, 999, 1000}) EXPECT_TRUE(takes(compiled, text(count))) << count;
}

TEST(Matcher, LongAnswersDoNotGrow) {
  auto vocabulary = byte_vocabulary(json_tokens());
  MatcherLimits limits;
  limits.max_bytes = 1 << 20;
  auto grammar = compile(json_grammar(), vocabulary, limits);
  Matcher matcher(grammar);
  ASSERT_TRUE(matcher.accept_bytes("[\""));
  for (int i = 0; i < 20'000; ++i) ASSERT_TRUE(matcher.accept(kByteTokens + 11, {}).ok());
  ASSERT_TRUE(matcher.accept_bytes("\""));
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(matcher.accept_bytes(i % 2 ? ", {\"a\": [1, 2, {\"b\": null}]}" : ", [[0], 1]"));
    if (i % 1000 == 0) mask_of(matcher, *vocabulary);
  }
  ASSERT_TRUE(matcher.accept_bytes("]"));
  EXPECT_TRUE(matcher.may_end());
}

TEST(Matcher, DeepNestingKeepsWithinItsMemory) {
  MatcherLimits limits;
  limits.max_bytes = 1 << 20;
  Matcher matcher(compile(json_grammar(), nullptr, limits));
  int depth = 0;
  while (depth < 1'000'000 && matcher.accept_bytes("[")) ++depth;
  EXPECT_GT(depth, 500);
  EXPECT_LT(depth, 100'000);
  std::vector<uint32_t> mask(byte_vocabulary({})->mask_words());
  Status status = matcher.fill_mask(mask, {});
  EXPECT_TRUE(status.ok() || status.error().code == ErrorCode::kUnsupported);
}

TEST(Matcher, FuelEndsAnExpensiveMask) {
  MatcherLimits limits;
  limits.fuel_per_mask = 50;
  auto vocabulary = byte_vocabulary(json_tokens());
  Matcher matcher(compile(json_grammar(), vocabulary, limits));
  std::vector<uint32_t> mask(vocabulary->mask_words());
  Status status = matcher.fill_mask(mask, {});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
}

TEST(Matcher, AnExponentialAutomatonIsAnError) {
  Grammar grammar;
  RegexStore& r = grammar.regexes();
  Regex ab = r.bytes(ByteSet::of("ab"));
  // The position of every "a" in the last 40 bytes has to be known: 2^40 states.
  grammar.set_start(grammar.terminal(r.concat(r.repeat(ab, 0), r.concat(r.literal("a"), r.repeat(ab, 40, 40)))));
  MatcherLimits limits;
  limits.max_lexer_states = 2000;
  Matcher matcher(compile(std::move(grammar), nullptr, limits));
  std::mt19937 random(1);
  int bytes = 0;
  while (bytes < 100'000 && matcher.accept_bytes(random() % 2 ? "a" : "b")) ++bytes;
  EXPECT_LT(bytes, 100'000);
  std::vector<uint32_t> mask(byte_vocabulary({})->mask_words());
  Status status = matcher.fill_mask(mask, {});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
}

TEST(Matcher, ThreadsShareOneGrammar) {
  auto vocabulary = byte_vocabulary(json_tokens());
  auto grammar = compile(json_grammar(), vocabulary);
  std::vector<std::vector<std::vector<bool>>> masks(4);
  std::vector<std::thread> threads;
  for (auto& own : masks) {
    threads.emplace_back([&own, &grammar, &vocabulary] {
      for (const std::string& text : json_texts()) {
        Matcher matcher(grammar);
        for (char c : text) {
          own.push_back(mask_of(matcher, *vocabulary));
          EXPECT_TRUE(matcher.accept_bytes({&c, 1}));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& own : masks) EXPECT_EQ(own, masks[0]);
}

}  // namespace
}  // namespace quire::grammar
