// SPDX-License-Identifier: Apache-2.0
// RuleSet: the rules of a grammar text before they become a Grammar; shared by the EBNF and Lark front ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "grammar/grammar.h"

namespace quire::grammar {

// What makes a rule match less than its body. Only a regular body can have any of these.
struct RuleOptions {
  bool lazy = false;                      // ends at the first place where it can end
  std::optional<uint32_t> suffix = {};    // the body, then this expression, which ends as soon as it can; regular, too
  std::optional<int64_t> max_chars = {};  // of the body
  bool any() const { return lazy || suffix || max_chars; }
};

// Rules with expressions that refer to rules by name, in any order. lower() turns what is reachable into symbols of a
// grammar, and folds as much as it can into regular expressions: those make masks quick. A rule is regular if its parts
// are and it does not refer to itself, or refers to itself only as the first or only as the last part of its
// alternatives. Not thread-safe. REQUIRES: expressions are nested no deeper than a few hundred levels.
class RuleSet {
 public:
  using Expr = uint32_t;

  explicit RuleSet(Grammar& grammar) : grammar_(grammar) {}

  // `weight` is about the number of bytes or classes in the expression; it bounds what is folded.
  Expr regex(Regex regex, int64_t weight);
  Expr tokens(TokenSet tokens);
  Expr symbol(Symbol symbol);
  Expr reference(std::string_view rule, int line);
  Expr sequence(std::vector<Expr> parts);
  Expr choice(std::vector<Expr> options);
  Expr repeat(Expr expr, int64_t min, std::optional<int64_t> max);
  // Texts that match all of these, and texts that do not match this. The parts must be regular.
  Expr both(std::vector<Expr> parts);
  Expr complement(Expr expr);

  // False if the rule has been defined already.
  bool define(std::string_view rule, Expr body, const RuleOptions& options = {});

  // The symbol of a rule. Fails if a rule that is used anywhere is not defined.
  Result<Symbol> lower(std::string_view start);

 private:
  enum class Kind : uint8_t { kRegex, kTokens, kSymbol, kReference, kSequence, kChoice, kRepeat, kBoth, kComplement };
  struct Node {
    Kind kind = Kind::kRegex;
    uint32_t value = 0;  // kRegex: Regex::index; kTokens, kSymbol: Symbol::index; kReference: the rule
    int64_t weight = 1;
    std::vector<Expr> parts = {};
    int64_t min = 0;
    std::optional<int64_t> max = {};
  };
  struct Rule {
    std::string name;
    int first_use = 0;  // the line
    std::optional<Expr> body;
    RuleOptions options;
  };
  // A translated expression: one regular expression, or a symbol.
  struct Part {
    bool regular = true;
    Regex regex = {};
    Symbol symbol = {};
    int64_t weight = 0;
  };
  // regular * self | rest, or the mirror image.
  struct Linear {
    Regex step;
    Regex rest;
    int64_t weight = 0;
  };
  struct Component {
    std::vector<uint32_t> rules;
    bool recursive = false;
  };

  Expr add(Node node);
  uint32_t rule_index(std::string_view name);
  std::vector<uint32_t> references(uint32_t rule) const;
  std::vector<Component> components(uint32_t start) const;
  Status lower_component(const Component& component);
  Result<Part> restricted(const Rule& rule, const Part& body);
  void add_productions(uint32_t rule);
  Part lower_expr(Expr expr);
  Part lower_sequence(const Node& node);
  Part lower_choice(const Node& node);
  Part lower_repeat(const Node& node);
  Part lower_regular(const Node& node);
  std::vector<Part> lower_all(const std::vector<Expr>& exprs);
  std::vector<Symbol> fold_neighbours(const std::vector<Part>& parts);
  std::optional<Linear> linear(Expr expr, uint32_t self, bool self_last);
  std::optional<Part> solve_linear(uint32_t rule);
  bool mentions(Expr expr, uint32_t rule) const;
  Symbol to_symbol(const Part& part) { return part.regular ? grammar_.terminal(part.regex) : part.symbol; }
  Part of_regex(Regex regex, int64_t weight) const { return {.regular = true, .regex = regex, .weight = weight}; }
  Part of_symbol(Symbol symbol) const { return {.regular = false, .symbol = symbol}; }
  Regex shortest(Regex regex);

  Grammar& grammar_;
  bool too_many_tokens_ = false;
  bool not_regular_ = false;  // a part of both() or complement()
  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
  std::unordered_map<std::string, uint32_t> by_name_;
  std::vector<std::optional<Part>> lowered_;  // by rule
};

}  // namespace quire::grammar
