// SPDX-License-Identifier: Apache-2.0
// How Grammar folds and combines symbols, and its limits.
#include "grammar/grammar.h"

#include <gtest/gtest.h>

namespace quire::grammar {
namespace {

TEST(Grammar, EqualTerminalsAreOneSymbol) {
  Grammar grammar;
  EXPECT_EQ(grammar.literal("ab"), grammar.literal("ab"));
  EXPECT_NE(grammar.literal("ab"), grammar.literal("a"));
  EXPECT_EQ(grammar.token({{{5, 7}}}), grammar.token({{{5, 7}}}));
  EXPECT_NE(grammar.token({{{5, 7}}}), grammar.token({{{5, 7}}, true}));
}

TEST(Grammar, FoldsPlainTerminals) {
  Grammar grammar;
  Symbol text = grammar.terminal(grammar.regexes().any_text());
  EXPECT_EQ(grammar.sequence({grammar.literal("a"), grammar.literal("b")}), grammar.literal("ab"));
  EXPECT_EQ(grammar.sequence({grammar.empty(), text, grammar.empty()}), text);
  EXPECT_EQ(grammar.sequence({text, grammar.nothing()}), grammar.nothing());
  EXPECT_EQ(grammar.choice({grammar.nothing(), text, text}), text);
  EXPECT_EQ(grammar.choice({grammar.literal("ab"), grammar.literal("ac")}),
            grammar.choice({grammar.literal("ac"), grammar.literal("ab")}));
  EXPECT_FALSE(grammar.regex_of(grammar.sequence({text, grammar.literal("x")})).has_value());
  EXPECT_EQ(grammar.sequence(std::span<const Symbol>{}), grammar.empty());
  EXPECT_EQ(grammar.choice(std::span<const Symbol>{}), grammar.nothing());
}

TEST(Grammar, LargeRepetitionsTakeFewRules) {
  Grammar grammar;
  Symbol item = grammar.terminal(grammar.regexes().any_text());
  size_t before = grammar.items().size();
  grammar.repeat(item, 1'000'000, 50'000'000);
  EXPECT_LT(grammar.items().size() - before, 1000u);
  EXPECT_EQ(grammar.repeat(item, 0, 0), grammar.empty());
  EXPECT_EQ(grammar.repeat(item, 1, 1), item);
  EXPECT_EQ(grammar.repeat(item, 2, 1), grammar.nothing());
  EXPECT_EQ(grammar.repeat(grammar.nothing(), 0), grammar.empty());
  EXPECT_EQ(grammar.repeat(grammar.nothing(), 1), grammar.nothing());
}

TEST(Grammar, OverALimitIsAnError) {
  Grammar symbols({.max_symbols = 10});
  for (int i = 0; i < 20; ++i) symbols.rule("x");
  EXPECT_FALSE(symbols.status().ok());
  Grammar items({.max_items = 10});
  Symbol rule = items.rule("x");
  for (int i = 0; i < 20; ++i) items.add_production(rule, {rule});
  EXPECT_FALSE(items.status().ok());
  Grammar regexes({.max_regex_nodes = 500});
  for (int i = 0; i < 200; ++i) regexes.literal("literal " + std::to_string(i));
  EXPECT_FALSE(regexes.status().ok());
  Grammar fine;
  EXPECT_TRUE(fine.status().ok());
}

}  // namespace
}  // namespace quire::grammar
