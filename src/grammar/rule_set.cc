// SPDX-License-Identifier: Apache-2.0
// Translation of named rules into a Grammar, with regular parts folded into terminals.
#include "grammar/rule_set.h"

#include <algorithm>
#include <utility>

namespace quire::grammar {

namespace {

// Above this weight, parts stay rules: a large expression has many states, and rules share theirs.
constexpr int64_t kMaxFolded = 20'000;

constexpr size_t kMaxTokenSets = 1'000;

int64_t times(int64_t weight, int64_t count) {
  return std::min(weight * std::clamp<int64_t>(count, 1, kMaxFolded), 2 * kMaxFolded);
}

}  // namespace

RuleSet::Expr RuleSet::add(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<Expr>(nodes_.size() - 1);
}

RuleSet::Expr RuleSet::regex(Regex regex, int64_t weight) {
  return add({.kind = Kind::kRegex, .value = regex.index, .weight = std::max<int64_t>(weight, 1)});
}

RuleSet::Expr RuleSet::both(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = Kind::kBoth, .parts = std::move(parts)});
}

RuleSet::Expr RuleSet::complement(Expr expr) {
  return add({.kind = Kind::kComplement, .parts = {expr}});
}

RuleSet::Expr RuleSet::tokens(TokenSet tokens) {
  if (grammar_.token_sets().size() >= kMaxTokenSets) {
    too_many_tokens_ = true;
    return add({.kind = Kind::kSymbol, .value = grammar_.nothing().index});
  }
  return add({.kind = Kind::kTokens, .value = grammar_.token(std::move(tokens)).index});
}

RuleSet::Expr RuleSet::symbol(Symbol symbol) {
  return add({.kind = Kind::kSymbol, .value = symbol.index});
}

RuleSet::Expr RuleSet::reference(std::string_view rule, int line) {
  const uint32_t index = rule_index(rule);
  if (rules_[index].first_use == 0) rules_[index].first_use = line;
  return add({.kind = Kind::kReference, .value = index});
}

RuleSet::Expr RuleSet::sequence(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = Kind::kSequence, .parts = std::move(parts)});
}

RuleSet::Expr RuleSet::choice(std::vector<Expr> options) {
  if (options.size() == 1) return options[0];
  return add({.kind = Kind::kChoice, .parts = std::move(options)});
}

RuleSet::Expr RuleSet::repeat(Expr expr, int64_t min, std::optional<int64_t> max) {
  return add({.kind = Kind::kRepeat, .parts = {expr}, .min = min, .max = max});
}

uint32_t RuleSet::rule_index(std::string_view name) {
  const auto [it, added] = by_name_.try_emplace(std::string(name), static_cast<uint32_t>(rules_.size()));
  if (added) rules_.push_back({.name = std::string(name), .first_use = 0, .body = {}, .options = {}});
  return it->second;
}

bool RuleSet::define(std::string_view rule, Expr body, const RuleOptions& options) {
  Rule& defined = rules_[rule_index(rule)];
  if (defined.body) return false;
  defined.body = body;
  defined.options = options;
  return true;
}

std::vector<uint32_t> RuleSet::references(uint32_t rule) const {
  std::vector<uint32_t> out;
  std::vector<Expr> open = {*rules_[rule].body};
  while (!open.empty()) {
    const Node& node = nodes_[open.back()];
    open.pop_back();
    if (node.kind == Kind::kReference) out.push_back(node.value);
    open.insert(open.end(), node.parts.begin(), node.parts.end());
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Tarjan's algorithm without recursion: groups of rules that refer to each other, each group after those it uses.
std::vector<RuleSet::Component> RuleSet::components(uint32_t start) const {
  struct Visit {
    uint32_t rule;
    std::vector<uint32_t> uses;
    size_t next = 0;
  };
  constexpr uint32_t kUnseen = 0xffffffff;
  std::vector<uint32_t> number(rules_.size(), kUnseen), low(rules_.size(), 0);
  std::vector<bool> on_stack(rules_.size(), false);
  std::vector<uint32_t> stack;
  std::vector<Visit> visits;
  std::vector<Component> out;
  uint32_t count = 0;
  const auto enter = [&](uint32_t rule) {
    number[rule] = low[rule] = count++;
    on_stack[rule] = true;
    stack.push_back(rule);
    visits.push_back({rule, references(rule)});
  };
  enter(start);
  while (!visits.empty()) {
    Visit& visit = visits.back();
    const uint32_t rule = visit.rule;
    if (visit.next < visit.uses.size()) {
      const uint32_t used = visit.uses[visit.next++];
      if (number[used] == kUnseen) {
        enter(used);
      } else if (on_stack[used]) {
        low[rule] = std::min(low[rule], number[used]);
      }
      continue;
    }
    const bool self = std::binary_search(visit.uses.begin(), visit.uses.end(), rule);
    visits.pop_back();
    if (!visits.empty()) low[visits.back().rule] = std::min(low[visits.back().rule], low[rule]);
    if (low[rule] != number[rule]) continue;
    Component component;
    uint32_t member = 0;
    do {
      member = stack.back();
      stack.pop_back();
      on_stack[member] = false;
      component.rules.push_back(member);
    } while (member != rule);
    component.recursive = self || component.rules.size() > 1;
    out.push_back(std::move(component));
  }
  return out;
}

Result<Symbol> RuleSet::lower(std::string_view start) {
  for (const Rule& rule : rules_) {
    if (rule.body) continue;
    return invalid_argument(
        {"The grammar uses the rule \"", rule.name, "\" on line ", rule.first_use, ", which is not defined."});
  }
  const auto it = by_name_.find(std::string(start));
  if (it == by_name_.end()) {
    return invalid_argument({"The grammar has no rule \"", start, "\", where it would begin."});
  }
  if (too_many_tokens_) {
    return invalid_argument({"The grammar has more than ", kMaxTokenSets, " sets of tokens."});
  }
  lowered_.assign(rules_.size(), std::nullopt);
  for (const Component& component : components(it->second)) QUIRE_TRY(lower_component(component));
  if (not_regular_) {
    return invalid_argument("The grammar uses & or ~ on a terminal that refers to itself or is too large.");
  }
  QUIRE_TRY(grammar_.status());
  return to_symbol(*lowered_[it->second]);
}

Status RuleSet::lower_component(const Component& component) {
  if (!component.recursive) {
    const uint32_t rule = component.rules[0];
    QUIRE_ASSIGN(lowered_[rule], restricted(rules_[rule], lower_expr(*rules_[rule].body)));
    return {};
  }
  if (component.rules.size() == 1) {
    const uint32_t rule = component.rules[0];
    if (const std::optional<Part> part = solve_linear(rule)) {
      QUIRE_ASSIGN(lowered_[rule], restricted(rules_[rule], *part));
      return {};
    }
  }
  for (const uint32_t rule : component.rules) {
    const Part part = of_symbol(grammar_.rule(rules_[rule].name));
    QUIRE_ASSIGN(lowered_[rule], restricted(rules_[rule], part));
  }
  for (const uint32_t rule : component.rules) add_productions(rule);
  return {};
}

// Applies the options of a rule.
Result<RuleSet::Part> RuleSet::restricted(const Rule& rule, const Part& body) {
  if (!rule.options.any()) return body;
  std::optional<Part> suffix;
  if (rule.options.suffix) suffix = lower_expr(*rule.options.suffix);
  if (!body.regular || (suffix && !suffix->regular)) {
    return invalid_argument({"The rule \"", rule.name,
                             "\" has the option lazy, suffix, stop or max_chars, which works only if the rule is one "
                             "expression of texts, without tokens, JSON or recursion."});
  }
  RegexStore& store = grammar_.regexes();
  Part out = body;
  if (rule.options.max_chars) {
    out.regex = store.both(out.regex, store.repeat(store.any_char(), 0, rule.options.max_chars));
  }
  if (suffix) out.regex = store.concat(out.regex, suffix->regex);
  if (rule.options.lazy || suffix) out.regex = shortest(out.regex);
  return out;
}

// The matches of which no shorter beginning is a match.
Regex RuleSet::shortest(Regex regex) {
  RegexStore& store = grammar_.regexes();
  const Regex longer = store.concat(regex, store.concat(store.bytes(ByteSet::all()), store.anything()));
  return store.both(regex, store.complement(longer));
}

void RuleSet::add_productions(uint32_t rule) {
  const Symbol self = lowered_[rule]->symbol;
  const Node& body = nodes_[*rules_[rule].body];
  if (body.kind != Kind::kChoice) {
    const bool sequence = body.kind == Kind::kSequence;
    grammar_.add_production(self, fold_neighbours(lower_all(sequence ? body.parts : std::vector{*rules_[rule].body})));
    return;
  }
  std::vector<Regex> regular;
  for (const Expr option : body.parts) {
    const Node& node = nodes_[option];
    if (node.kind == Kind::kSequence) {
      grammar_.add_production(self, fold_neighbours(lower_all(node.parts)));
      continue;
    }
    const Part part = lower_expr(option);
    if (part.regular) {
      regular.push_back(part.regex);
    } else {
      grammar_.add_production(self, {part.symbol});
    }
  }
  if (!regular.empty()) grammar_.add_production(self, {grammar_.terminal(grammar_.regexes().either(regular))});
}

RuleSet::Part RuleSet::lower_expr(Expr expr) {
  const Node& node = nodes_[expr];
  switch (node.kind) {
    case Kind::kRegex:
      return of_regex(Regex{node.value}, node.weight);
    case Kind::kTokens:
    case Kind::kSymbol: {
      const Symbol symbol{node.value};
      if (const std::optional<Regex> regex = grammar_.regex_of(symbol)) return of_regex(*regex, 100);
      return of_symbol(symbol);
    }
    case Kind::kReference:
      return *lowered_[node.value];
    case Kind::kSequence:
      return lower_sequence(node);
    case Kind::kChoice:
      return lower_choice(node);
    case Kind::kRepeat:
      return lower_repeat(node);
    case Kind::kBoth:
    case Kind::kComplement:
      return lower_regular(node);
  }
  return of_symbol(grammar_.nothing());
}

std::vector<RuleSet::Part> RuleSet::lower_all(const std::vector<Expr>& exprs) {
  std::vector<Part> out;
  out.reserve(exprs.size());
  for (const Expr expr : exprs) out.push_back(lower_expr(expr));
  return out;
}

// The parts of a sequence, with neighbours folded as far as the weight allows.
std::vector<Symbol> RuleSet::fold_neighbours(const std::vector<Part>& parts) {
  std::vector<Symbol> out;
  std::vector<Regex> pending;
  int64_t weight = 0;
  const auto flush = [&] {
    if (!pending.empty()) out.push_back(grammar_.terminal(grammar_.regexes().concat(pending)));
    pending.clear();
    weight = 0;
  };
  for (const Part& part : parts) {
    if (part.regular && part.regex == grammar_.regexes().empty()) continue;
    if (!part.regular || weight + part.weight > kMaxFolded) flush();
    if (part.regular) {
      pending.push_back(part.regex);
      weight += part.weight;
    } else {
      out.push_back(part.symbol);
    }
  }
  flush();
  return out;
}

RuleSet::Part RuleSet::lower_sequence(const Node& node) {
  const std::vector<Part> parts = lower_all(node.parts);
  std::vector<Regex> regexes;
  int64_t weight = 0;
  for (const Part& part : parts) {
    weight += part.weight;
    if (!part.regular || weight > kMaxFolded) return of_symbol(grammar_.sequence(fold_neighbours(parts)));
    regexes.push_back(part.regex);
  }
  return of_regex(grammar_.regexes().concat(regexes), weight);
}

RuleSet::Part RuleSet::lower_choice(const Node& node) {
  std::vector<Regex> regexes;
  std::vector<Symbol> symbols;
  int64_t weight = 0;
  for (const Expr expr : node.parts) {
    const Part part = lower_expr(expr);
    if (part.regular && weight + part.weight <= kMaxFolded) {
      weight += part.weight;
      regexes.push_back(part.regex);
    } else {
      symbols.push_back(to_symbol(part));
    }
  }
  const Regex folded = grammar_.regexes().either(regexes);
  if (symbols.empty()) return of_regex(folded, weight);
  if (!regexes.empty()) symbols.push_back(grammar_.terminal(folded));
  return of_symbol(grammar_.choice(symbols));
}

RuleSet::Part RuleSet::lower_repeat(const Node& node) {
  const Part part = lower_expr(node.parts[0]);
  const int64_t weight = times(part.weight, node.max.value_or(node.min + 1));
  if (part.regular && weight <= kMaxFolded) {
    return of_regex(grammar_.regexes().repeat(part.regex, node.min, node.max), weight);
  }
  return of_symbol(grammar_.repeat(to_symbol(part), node.min, node.max));
}

RuleSet::Part RuleSet::lower_regular(const Node& node) {
  RegexStore& store = grammar_.regexes();
  Regex out = store.any_text();
  int64_t weight = 0;
  for (const Expr expr : node.parts) {
    const Part part = lower_expr(expr);
    if (!part.regular) not_regular_ = true;
    out = store.both(out, node.kind == Kind::kComplement ? store.complement(part.regex) : part.regex);
    weight += part.weight;
  }
  return of_regex(out, weight);
}

bool RuleSet::mentions(Expr expr, uint32_t rule) const {
  std::vector<Expr> open = {expr};
  while (!open.empty()) {
    const Node& node = nodes_[open.back()];
    open.pop_back();
    if (node.kind == Kind::kReference && node.value == rule) return true;
    open.insert(open.end(), node.parts.begin(), node.parts.end());
  }
  return false;
}

// The expression as "step self | rest" (self_last) or "self step | rest"; nothing if it has no such form.
std::optional<RuleSet::Linear> RuleSet::linear(Expr expr, uint32_t self, bool self_last) {
  RegexStore& store = grammar_.regexes();
  const Node& node = nodes_[expr];
  if (node.kind == Kind::kReference && node.value == self) return Linear{store.empty(), store.nothing(), 0};
  if (!mentions(expr, self)) {
    const Part part = lower_expr(expr);
    if (!part.regular) return std::nullopt;
    return Linear{store.nothing(), part.regex, part.weight};
  }
  Linear out{store.nothing(), store.nothing(), 0};
  if (node.kind == Kind::kChoice) {
    for (const Expr option : node.parts) {
      const std::optional<Linear> one = linear(option, self, self_last);
      if (!one) return std::nullopt;
      out = {store.either(out.step, one->step), store.either(out.rest, one->rest), out.weight + one->weight};
    }
    return out;
  }
  if (node.kind == Kind::kRepeat && node.min == 0 && node.max == 1) {
    std::optional<Linear> one = linear(node.parts[0], self, self_last);
    if (one) one->rest = store.either(one->rest, store.empty());
    return one;
  }
  if (node.kind != Kind::kSequence) return std::nullopt;
  const size_t last = node.parts.size() - 1;
  const size_t end_at = self_last ? last : 0;
  for (size_t i = 0; i <= last; ++i) {
    if (i != end_at && mentions(node.parts[i], self)) return std::nullopt;
  }
  std::vector<Regex> parts;
  for (size_t i = 0; i <= last; ++i) {
    if (i == end_at) continue;
    const Part part = lower_expr(node.parts[i]);
    if (!part.regular) return std::nullopt;
    parts.push_back(part.regex);
    out.weight += part.weight;
  }
  const Regex others = store.concat(parts);
  const std::optional<Linear> end = linear(node.parts[end_at], self, self_last);
  if (!end) return std::nullopt;
  out.step = self_last ? store.concat(others, end->step) : store.concat(end->step, others);
  out.rest = self_last ? store.concat(others, end->rest) : store.concat(end->rest, others);
  out.weight += end->weight;
  return out;
}

// A rule that refers to itself only at one end: "r = step r | rest" is step* rest.
std::optional<RuleSet::Part> RuleSet::solve_linear(uint32_t rule) {
  RegexStore& store = grammar_.regexes();
  for (const bool self_last : {true, false}) {
    const std::optional<Linear> form = linear(*rules_[rule].body, rule, self_last);
    if (!form || form->weight > kMaxFolded) continue;
    const Regex steps = store.repeat(form->step, 0);
    return of_regex(self_last ? store.concat(steps, form->rest) : store.concat(form->rest, steps), form->weight);
  }
  return std::nullopt;
}

}  // namespace quire::grammar
