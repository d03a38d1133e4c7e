// SPDX-License-Identifier: Apache-2.0
// Random grammars against a slow recogniser that follows the definition, and their masks against trying every token.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/test_sanitized.h"
#include "grammar/matcher.h"
#include "grammar/test_grammars.h"

namespace quire::grammar {
namespace {

// Which parts of a text each symbol matches, computed by repeating until nothing changes.
class SlowRecogniser {
 public:
  SlowRecogniser(Grammar& grammar, std::string text) : text_(std::move(text)) {
    const size_t symbols = grammar.symbols().size(), n = text_.size() + 1;
    table_.assign(symbols, std::vector<bool>(n * n));
    for (size_t symbol = 0; symbol < symbols; ++symbol) {
      const Grammar::SymbolInfo& info = grammar.symbols()[symbol];
      if (info.kind != Grammar::Kind::kTerminal) continue;
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = i; j < n; ++j) {
          table_[symbol][i * n + j] = grammar.regexes().matches({info.value}, std::string_view(text_).substr(i, j - i));
        }
      }
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (const Grammar::Production& production : grammar.productions()) {
        for (size_t i = 0; i < n; ++i) {
          std::vector<bool> ends(n);
          ends[i] = true;
          for (uint32_t k = production.begin; k < production.end; ++k) {
            std::vector<bool> next(n);
            for (size_t from = 0; from < n; ++from) {
              for (size_t to = from; ends[from] && to < n; ++to) {
                if (table_[grammar.items()[k].index][from * n + to]) next[to] = true;
              }
            }
            ends = next;
          }
          for (size_t j = i; j < n; ++j) {
            if (ends[j] && !table_[production.rule][i * n + j]) changed = table_[production.rule][i * n + j] = true;
          }
        }
      }
    }
    matches_ = table_[grammar.start().index][n - 1];
  }
  bool matches() const { return matches_; }

 private:
  std::string text_;
  std::vector<std::vector<bool>> table_;
  bool matches_ = false;
};

Grammar random_grammar(uint32_t seed) {
  std::mt19937 random(seed);
  Grammar grammar;
  RegexStore& r = grammar.regexes();
  std::vector<Symbol> symbols = {
      grammar.literal("a"),
      grammar.literal("ab"),
      grammar.literal("c"),
      grammar.terminal(r.repeat(r.literal("a"), 0)),
      grammar.terminal(r.repeat(r.bytes(ByteSet::of("bc")), 1)),
      grammar.terminal(r.both(r.repeat(r.bytes(ByteSet::of("abc")), 0), r.complement(r.literal("b"))))};
  std::vector<Symbol> rules;
  for (int i = 0; i < 4; ++i) rules.push_back(grammar.rule("r" + std::to_string(i)));
  symbols.insert(symbols.end(), rules.begin(), rules.end());
  symbols.insert(symbols.end(), rules.begin(), rules.end());
  for (Symbol rule : rules) {
    for (uint32_t i = 1 + random() % 3; i > 0; --i) {
      std::vector<Symbol> parts;
      for (uint32_t k = random() % 4; k > 0; --k) parts.push_back(symbols[random() % symbols.size()]);
      grammar.add_production(rule, parts);
    }
  }
  if (random() % 3 == 0)
    grammar.set_start(grammar.repeat(rules[0], random() % 3, 2 + random() % 4));
  else
    grammar.set_start(rules[0]);
  return grammar;
}

std::vector<std::string> texts_up_to(size_t length) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < length; ++i) {
    for (char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  return texts;
}

TEST(RandomGrammars, AcceptWhatTheDefinitionSays) {
  std::vector<std::string> texts = texts_up_to(4);
  int useful = 0;
  const auto seeds = static_cast<uint32_t>(trials(200));
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    Grammar slow = random_grammar(seed);
    std::map<std::string, bool> expected;
    for (const std::string& text : texts) expected[text] = SlowRecogniser(slow, text).matches();
    auto compiled = CompiledGrammar::make(random_grammar(seed), byte_vocabulary({}));
    if (!compiled.ok()) {
      for (const auto& [text, matches] : expected) ASSERT_FALSE(matches) << "seed " << seed << " text " << text;
      continue;
    }
    ++useful;
    for (const auto& [text, matches] : expected) {
      Matcher matcher(*compiled);
      bool accepted = matcher.accept_bytes(text) && matcher.may_end();
      ASSERT_EQ(accepted, matches) << "seed " << seed << " text " << text;
    }
  }
  EXPECT_GT(useful, trials(100));
}

TEST(RandomGrammars, MasksEqualTryingEveryToken) {
  auto vocabulary = byte_vocabulary({"aa", "ab", "abc", "bc", "cc", "aaa", "abab", "ca", "bb", "ba"});
  std::vector<std::string> texts = texts_up_to(4);
  const auto seeds = static_cast<uint32_t>(trials(100));
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    auto compiled = CompiledGrammar::make(random_grammar(seed), vocabulary);
    if (!compiled.ok()) continue;
    for (const std::string& text : texts) {
      Matcher matcher(*compiled);
      if (!matcher.accept_bytes(text)) continue;
      std::vector<uint32_t> mask(vocabulary->mask_words());
      ASSERT_TRUE(matcher.fill_mask(mask, {}).ok());
      bool any = matcher.may_end();
      for (int32_t id = 0; id < vocabulary->size(); ++id) {
        const std::string& bytes = vocabulary->token(id).bytes;
        bool allowed = !bytes.empty() && matcher.accept_bytes(bytes);
        if (allowed) matcher.rollback(1);
        any = any || allowed;
        ASSERT_EQ(((mask[static_cast<size_t>(id) / 32] >> (id % 32)) & 1) != 0, allowed)
            << seed << " " << text << " " << bytes;
      }
      ASSERT_TRUE(any) << "a dead end: seed " << seed << " text " << text;
    }
  }
}

// Tokens of plain text in all lengths, some with quotes, escapes, line breaks and halves of characters in them.
std::shared_ptr<const Vocabulary> text_vocabulary(uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<std::string> plain = {"a", "b", "c", "x", "Z",        "0",
                                          "7", " ", "_", "-", "\xC3\xA9", "\xF0\x9F\x98\x80"};
  const std::vector<std::string> other = {"\"", "\\n", "\\u00e9", "\n", "\xC3", "\x9F", "\x7F", "\", \""};
  std::vector<std::string> tokens;
  for (int i = 0; i < 600; ++i) {
    std::string token;
    const uint32_t kind = random() % 8;
    const uint32_t length = 1 + random() % (kind == 0 ? 140 : kind == 1 ? 40 : 6);
    for (uint32_t k = 0; k < length; ++k) token += plain[random() % plain.size()];
    if (kind >= 6) token += other[random() % other.size()];
    if (kind == 7) token += plain[random() % plain.size()];
    tokens.push_back(token);
  }
  return byte_vocabulary(tokens);
}

// A list of strings, each with a bounded or unbounded number of characters of some set.
Grammar bounded_strings(uint32_t seed) {
  std::mt19937 random(seed);
  Grammar grammar;
  RegexStore& r = grammar.regexes();
  const std::vector<CodePointRange> not_plain = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  const Regex escape = r.concat(r.literal("\\"), r.either(r.literal("n"), r.literal("u00e9")));
  const Regex any = r.either(r.chars_except(not_plain), escape);
  const std::vector<Regex> bodies = {any,
                                     any,
                                     r.chars_except(not_plain),
                                     r.either(any, r.literal("ab")),
                                     r.optional(any),
                                     r.bytes(ByteSet::range('a', 'z')),
                                     r.either(r.bytes(ByteSet::range('a', 'z')), r.literal("\xC3\xA9")),
                                     r.either(any, r.literal("\xC3"))};
  const Regex quote = r.literal("\"");
  const std::vector<Regex> ends = {quote,
                                   quote,
                                   quote,
                                   r.optional(quote),
                                   r.either(quote, r.literal("Z")),
                                   r.concat(r.repeat(r.literal("x"), 0, 3), quote)};
  std::vector<Symbol> strings;
  for (uint32_t i = 1 + random() % 2; i > 0; --i) {
    const int64_t min = random() % 4, max = min + static_cast<int64_t>(random() % (random() % 3 == 0 ? 160 : 14));
    Regex text = r.repeat(bodies[random() % bodies.size()], min, max);
    if (random() % 5 == 0) text = r.both(text, r.complement(r.literal("ab")));
    if (random() % 5 == 0) text = r.both(text, r.concat(r.repeat(any, 0), r.concat(r.literal("c"), r.repeat(any, 0))));
    strings.push_back(grammar.terminal(r.concat(quote, r.concat(text, ends[random() % ends.size()]))));
  }
  const Symbol list = grammar.rule("list");
  for (const Symbol string : strings) {
    grammar.add_production(list, {string});
    grammar.add_production(list, {list, grammar.literal(", "), string});
  }
  grammar.set_start(list);
  return grammar;
}

TEST(RandomGrammars, MasksOfBoundedStringsEqualTryingEveryToken) {
  size_t compared = 0;
  const auto seeds = static_cast<uint32_t>(trials(150));
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    auto vocabulary = text_vocabulary(seed % 5);
    auto compiled = CompiledGrammar::make(bounded_strings(seed), vocabulary);
    if (!compiled.ok()) continue;
    std::mt19937 random(seed);
    Matcher matcher(*compiled);
    for (int step = 0; step < 12; ++step, ++compared) {
      std::vector<uint32_t> mask(vocabulary->mask_words());
      ASSERT_TRUE(matcher.fill_mask(mask, {}).ok());
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocabulary->size(); ++id) {
        const std::string& bytes = vocabulary->token(id).bytes;
        const bool fits = !bytes.empty() && matcher.accept_bytes(bytes);
        if (fits) matcher.rollback(1);
        if (fits) allowed.push_back(id);
        ASSERT_EQ(((mask[static_cast<size_t>(id) / 32] >> (id % 32)) & 1) != 0, fits)
            << "seed " << seed << " step " << step << " token " << bytes;
      }
      if (allowed.empty()) break;
      ASSERT_TRUE(matcher.accept(allowed[random() % allowed.size()], {}).ok());
    }
  }
  EXPECT_GT(compared, static_cast<size_t>(trials(1000)));
}

}  // namespace
}  // namespace quire::grammar
