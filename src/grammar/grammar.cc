// SPDX-License-Identifier: Apache-2.0
// Building grammars: symbols, productions and their combinations.
#include "grammar/grammar.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"

namespace quire::grammar {

Grammar::Grammar(const GrammarLimits& limits) : limits_(limits), regexes_(limits.max_regex_nodes) {
  // Symbol 0 matches nothing: it is what makers return once a limit is exceeded, and the start until one is set.
  start_ = terminal(regexes_.nothing());
}

Symbol Grammar::add_symbol(Kind kind, uint32_t value, std::string_view name) {
  if (symbols_.size() >= limits_.max_symbols) {
    if (error_.empty()) {
      error_ = "The constraint is too large: it needs more than " + std::to_string(limits_.max_symbols) +
               " rules and terminals.";
    }
    return {0};
  }
  symbols_.push_back({kind, value, std::string(name)});
  return {static_cast<uint32_t>(symbols_.size() - 1)};
}

Symbol Grammar::terminal(Regex regex) {
  if (auto known = terminal_index_.find(regex.index); known != terminal_index_.end()) return known->second;
  Symbol symbol = add_symbol(Kind::kTerminal, regex.index, "");
  if (error_.empty()) terminal_index_.emplace(regex.index, symbol);
  return symbol;
}

Symbol Grammar::token(TokenSet tokens) {
  auto found = std::ranges::find(token_sets_, tokens);
  auto index = static_cast<uint32_t>(found - token_sets_.begin());
  if (found != token_sets_.end()) {
    for (uint32_t i = 0; i < symbols_.size(); ++i) {
      if (symbols_[i].kind == Kind::kToken && symbols_[i].value == index) return {i};
    }
  }
  token_sets_.push_back(std::move(tokens));
  return add_symbol(Kind::kToken, static_cast<uint32_t>(token_sets_.size() - 1), "");
}

Symbol Grammar::rule(std::string_view name) {
  return add_symbol(Kind::kRule, 0, name);
}

void Grammar::add_production(Symbol rule, std::span<const Symbol> right_side) {
  if (!error_.empty()) return;
  QUIRE_CHECK(rule.index < symbols_.size() && symbols_[rule.index].kind == Kind::kRule);
  if (items_.size() + right_side.size() + productions_.size() > limits_.max_items) {
    error_ = "The constraint is too large: its rules have more than " + std::to_string(limits_.max_items) + " symbols.";
    return;
  }
  auto begin = static_cast<uint32_t>(items_.size());
  items_.insert(items_.end(), right_side.begin(), right_side.end());
  productions_.push_back({rule.index, begin, static_cast<uint32_t>(items_.size())});
}

Symbol Grammar::empty() {
  return terminal(regexes_.empty());
}
Symbol Grammar::nothing() {
  return terminal(regexes_.nothing());
}

Symbol Grammar::bag(std::vector<BagEntry> entries) {
  const Symbol result = rule("");
  std::vector<Symbol> required;
  for (const BagEntry& entry : entries) {
    if (entry.required) required.push_back(entry.first);
  }
  if (!required.empty()) {
    add_production(result, required);
  } else {
    for (const BagEntry& entry : entries) add_production(result, {entry.first});
  }
  if (!error_.empty()) return nothing();
  bags_.emplace(result.index, std::move(entries));
  return result;
}

std::optional<Regex> Grammar::regex_of(Symbol symbol) const {
  const SymbolInfo& info = symbols_[symbol.index];
  if (info.kind != Kind::kTerminal) return std::nullopt;
  return Regex{info.value};
}

bool Grammar::plain(Symbol symbol) const {
  std::optional<Regex> regex = regex_of(symbol);
  return regex && regexes_.plain(*regex);
}

Symbol Grammar::sequence(std::span<const Symbol> parts) {
  std::vector<Symbol> folded;
  const Symbol none = nothing(), no_text = empty();
  for (size_t i = 0; i < parts.size();) {
    if (parts[i] == none) return none;
    if (parts[i] == no_text) {
      ++i;
      continue;
    }
    if (!plain(parts[i])) {
      folded.push_back(parts[i++]);
      continue;
    }
    std::vector<Regex> run;
    for (; i < parts.size() && plain(parts[i]); ++i) run.push_back(*regex_of(parts[i]));
    folded.push_back(run.size() == 1 ? parts[i - 1] : terminal(regexes_.concat(run)));
  }
  if (folded.empty()) return no_text;
  if (folded.size() == 1) return folded[0];
  Symbol result = rule("");
  add_production(result, folded);
  return error_.empty() ? result : none;
}

Symbol Grammar::choice(std::span<const Symbol> options) {
  std::vector<Symbol> folded;
  std::vector<Regex> plain_options;
  const Symbol none = nothing();
  size_t first_plain = 0;
  for (Symbol option : options) {
    if (option == none) continue;
    if (plain(option)) {
      if (plain_options.empty()) {
        first_plain = folded.size();
        folded.push_back(option);
      }
      plain_options.push_back(*regex_of(option));
    } else {
      folded.push_back(option);
    }
  }
  if (plain_options.size() > 1) folded[first_plain] = terminal(regexes_.either(plain_options));
  std::ranges::sort(folded, {}, &Symbol::index);
  folded.erase(std::unique(folded.begin(), folded.end()), folded.end());
  if (folded.empty()) return none;
  if (folded.size() == 1) return folded[0];
  Symbol result = rule("");
  for (Symbol option : folded) add_production(result, {option});
  return error_.empty() ? result : none;
}

Symbol Grammar::optional(Symbol symbol) {
  return choice({symbol, empty()});
}

// A sum of powers of two, the largest first.
Symbol Grammar::exactly(std::vector<Symbol>& powers, int64_t count) {
  std::vector<Symbol> parts;
  for (int bit = 63 - std::countl_zero(static_cast<uint64_t>(count | 1)); bit >= 0; --bit) {
    if (((count >> bit) & 1) == 0) continue;
    while (powers.size() <= static_cast<size_t>(bit)) powers.push_back(sequence({powers.back(), powers.back()}));
    parts.push_back(powers[static_cast<size_t>(bit)]);
  }
  return sequence(parts);
}

// Every number up to `count` in exactly one way: either `count` itself, or its bits above some bit that is 1, a 0 in
// place of that bit, and any bits below. So the parser has few possibilities to follow at a time.
Symbol Grammar::at_most(std::vector<Symbol>& powers, int64_t count) {
  if (count <= 0) return empty();
  exactly(powers, count);  // makes the powers
  std::vector<Symbol> options = {exactly(powers, count)};
  Symbol below = empty();  // any number of fewer than `bit` bits
  for (int bit = 0; (count >> bit) != 0; ++bit) {
    if (((count >> bit) & 1) != 0) {
      int64_t above = (count >> bit >> 1) << bit << 1;
      options.push_back(sequence({exactly(powers, above), below}));
    }
    if ((count >> bit) > 1) below = sequence({optional(powers[static_cast<size_t>(bit)]), below});
  }
  return choice(options);
}

Symbol Grammar::repeat(Symbol symbol, int64_t min, std::optional<int64_t> max) {
  // No answer has more items than this, so larger bounds have no effect.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (max && (*max < min || *max < 0)) return nothing();
  min = std::clamp<int64_t>(min, 0, kMost);
  if (max && *max >= kMost) max.reset();
  if (max == 0 || symbol == empty()) return empty();
  if (symbol == nothing()) return min == 0 ? empty() : nothing();
  if (min == 1 && max == 1) return symbol;
  if (plain(symbol)) return terminal(regexes_.repeat(*regex_of(symbol), min, max));
  std::vector<Symbol> powers = {symbol};
  Symbol required = exactly(powers, min);
  if (max) return sequence({required, at_most(powers, *max - min)});
  Symbol more = rule("");
  if (min == 0) {
    add_production(more, std::span<const Symbol>{});
  } else {
    add_production(more, {required});
  }
  add_production(more, {more, symbol});
  return error_.empty() ? more : nothing();
}

Status Grammar::status() const {
  if (!error_.empty()) return invalid_argument(error_);
  if (regexes_.full()) {
    return invalid_argument(
        "The constraint is too large: its regular expressions need too much memory or are nested too deeply.");
  }
  return {};
}

}  // namespace quire::grammar
