// SPDX-License-Identifier: Apache-2.0
// Productions: pruning and flattening of a grammar.
#include "grammar/productions.h"

#include <algorithm>
#include <utility>

#include "grammar/matcher.h"

namespace quire::grammar {

bool matches(const TokenSet& set, int32_t token, bool end_token) {
  bool listed = std::ranges::any_of(
      set.ranges, [token](const auto& range) { return token >= range.first && token <= range.second; });
  return set.inverted ? !listed && !end_token : listed;
}

bool matches_any(const TokenSet& set, const Vocabulary& vocabulary) {
  for (int64_t id = 0; id < vocabulary.size(); ++id) {
    auto token = static_cast<int32_t>(id);
    if (!vocabulary.token(token).bytes.empty() && matches(set, token, false)) return true;
  }
  return false;
}

size_t Productions::bytes() const {
  return (symbols.capacity() + rule_begin.capacity() + starts.capacity() + lexemes.capacity()) * sizeof(uint32_t) +
         token_sets.size() * 64 + bags.size() * 64 + bag_entries.size() * sizeof(BagEntry);
}

namespace {

// The work of Productions::make, one step per function.
class Flattener {
 public:
  Flattener(Grammar& grammar, const Vocabulary& vocabulary) : grammar_(grammar), vocabulary_(vocabulary) {
    by_rule_.resize(grammar.symbols().size());
    for (uint32_t i = 0; i < grammar.productions().size(); ++i) by_rule_[grammar.productions()[i].rule].push_back(i);
  }

  Result<Productions> run() {
    QUIRE_TRY(find_useful_terminals());
    // A symbol matches some text if it is such a terminal, or a rule with a production of such symbols alone.
    propagate(useful_);
    if (!useful_[grammar_.start().index]) return invalid_argument("The constraint matches no text at all.");
    drop_useless_productions();
    find_nullable_terminals();
    propagate(nullable_);
    resolve_aliases();
    number();
    flatten();
    return std::move(result_);
  }

 private:
  using Kind = Grammar::Kind;
  std::span<const Symbol> right_side(uint32_t production) const {
    const Grammar::Production& p = grammar_.productions()[production];
    return std::span(grammar_.items()).subspan(p.begin, p.end - p.begin);
  }

  // Terminals that the start leads to and that match some text.
  Status find_useful_terminals() {
    std::vector<bool> seen(grammar_.symbols().size());
    std::vector<uint32_t> pending = {grammar_.start().index};
    useful_.resize(grammar_.symbols().size());
    seen[pending[0]] = true;
    while (!pending.empty()) {
      uint32_t symbol = pending.back();
      pending.pop_back();
      const Grammar::SymbolInfo& info = grammar_.symbols()[symbol];
      if (info.kind == Kind::kTerminal) {
        std::optional<bool> nothing = grammar_.regexes().is_nothing({info.value}, 50'000);
        if (!nothing) {
          return invalid_argument(
              "A regular expression of the constraint is too complex: it was not possible to find out in bounded time "
              "whether any text matches it; make patterns simpler, and counts and divisors (multipleOf) smaller.");
        }
        useful_[symbol] = !*nothing;
      } else if (info.kind == Kind::kToken) {
        useful_[symbol] = matches_any(grammar_.token_sets()[info.value], vocabulary_);
      }
      auto visit = [&](Symbol part) {
        if (!seen[part.index]) pending.push_back(part.index);
        seen[part.index] = true;
      };
      for (uint32_t production : by_rule_[symbol]) {
        for (Symbol part : right_side(production)) visit(part);
      }
      for (const Grammar::BagEntry& entry : bag_of(symbol)) {
        visit(entry.first);
        visit(entry.later);
      }
    }
    return {};
  }

  // The entries of a bag, or none if the symbol is something else.
  std::span<const Grammar::BagEntry> bag_of(uint32_t symbol) const {
    const auto found = grammar_.bags().find(symbol);
    return found == grammar_.bags().end() ? std::span<const Grammar::BagEntry>() : found->second;
  }
  bool useful(const Grammar::BagEntry& entry) const { return useful_[entry.first.index] && useful_[entry.later.index]; }

  // Adds rules that have a production whose symbols all have the property, until nothing changes.
  void propagate(std::vector<bool>& property) const {
    const auto& productions = grammar_.productions();
    std::vector<uint32_t> missing(productions.size());
    std::vector<std::pair<uint32_t, uint32_t>> uses;  // (symbol, production), sorted
    std::vector<uint32_t> pending;
    auto add = [&](uint32_t symbol) {
      if (!property[symbol]) pending.push_back(symbol);
      property[symbol] = true;
    };
    for (uint32_t i = 0; i < productions.size(); ++i) {
      for (Symbol part : right_side(i)) uses.emplace_back(part.index, i);
      missing[i] = productions[i].end - productions[i].begin;
    }
    std::ranges::sort(uses);
    for (uint32_t symbol = 0; symbol < property.size(); ++symbol) {
      if (property[symbol]) pending.push_back(symbol);
    }
    for (uint32_t symbol = 0; symbol < property.size(); ++symbol) {
      for (uint32_t production : by_rule_[symbol]) {
        if (missing[production] == 0) add(symbol);
      }
    }
    while (!pending.empty()) {
      uint32_t symbol = pending.back();
      pending.pop_back();
      auto use = std::ranges::lower_bound(uses, symbol, {}, &std::pair<uint32_t, uint32_t>::first);
      for (; use != uses.end() && use->first == symbol; ++use) {
        if (--missing[use->second] == 0) add(productions[use->second].rule);
      }
    }
  }

  void drop_useless_productions() {
    for (auto& productions : by_rule_) {
      std::erase_if(productions, [this](uint32_t production) {
        return std::ranges::any_of(right_side(production), [this](Symbol part) { return !useful_[part.index]; });
      });
    }
  }

  void find_nullable_terminals() {
    nullable_.resize(grammar_.symbols().size());
    for (uint32_t symbol = 0; symbol < nullable_.size(); ++symbol) {
      const Grammar::SymbolInfo& info = grammar_.symbols()[symbol];
      nullable_[symbol] = info.kind == Kind::kTerminal && useful_[symbol] && grammar_.regexes().nullable({info.value});
    }
  }

  // A rule with one production of one symbol is that symbol.
  void resolve_aliases() {
    alias_.resize(grammar_.symbols().size());
    for (uint32_t symbol = 0; symbol < alias_.size(); ++symbol) {
      uint32_t target = symbol;
      for (int steps = 0; steps < 100; ++steps) {
        if (by_rule_[target].size() != 1 || !bag_of(target).empty()) break;
        std::span<const Symbol> parts = right_side(by_rule_[target][0]);
        if (parts.size() != 1 || parts[0].index == symbol) break;
        target = parts[0].index;
      }
      alias_[symbol] = target;
    }
  }

  // Gives each symbol that the start leads to its code.
  void number() {
    codes_.assign(grammar_.symbols().size(), code::kEnd);
    std::vector<uint32_t> pending;
    auto visit = [&](uint32_t symbol) {
      symbol = alias_[symbol];
      if (codes_[symbol] != code::kEnd) return;
      const Grammar::SymbolInfo& info = grammar_.symbols()[symbol];
      if (info.kind == Kind::kTerminal) {
        codes_[symbol] = code::kLexeme | static_cast<uint32_t>(result_.lexemes.size());
        result_.lexemes.push_back({info.value});
        result_.nullable_lexeme.push_back(nullable_[symbol]);
      } else if (info.kind == Kind::kToken) {
        codes_[symbol] = code::kToken | static_cast<uint32_t>(result_.token_sets.size());
        result_.token_sets.push_back(grammar_.token_sets()[info.value]);
      } else {
        codes_[symbol] = code::kRule | static_cast<uint32_t>(rules_.size());
        rules_.push_back(symbol);
        result_.nullable_rule.push_back(nullable_[symbol]);
        pending.push_back(symbol);
      }
    };
    visit(grammar_.start().index);
    while (!pending.empty()) {
      uint32_t rule = pending.back();
      pending.pop_back();
      const std::span<const Grammar::BagEntry> bag = bag_of(rule);
      for (const Grammar::BagEntry& entry : bag) {
        if (!useful(entry)) continue;
        visit(entry.first.index);
        visit(entry.later.index);
      }
      if (!bag.empty()) continue;
      for (uint32_t production : by_rule_[rule]) {
        for (Symbol part : right_side(production)) visit(part.index);
      }
    }
  }

  // The productions of a bag's entries; those of the first entry are also those of the rule.
  void flatten_bag(uint32_t rule, std::span<const Grammar::BagEntry> entries) {
    Productions& r = result_;
    Productions::Bag bag{rule, static_cast<uint32_t>(r.bag_entries.size()), 0, std::vector<uint64_t>(1)};
    uint32_t bits = 0;
    for (const Grammar::BagEntry& entry : entries) {
      if (!useful(entry)) continue;
      const uint32_t end = code::kEnd | (r.bag_base + static_cast<uint32_t>(r.bag_entries.size()));
      r.starts.push_back(static_cast<uint32_t>(r.symbols.size()));
      r.symbols.insert(r.symbols.end(), {codes_[alias_[entry.first.index]], end});
      const uint32_t bit = entry.repeats ? Productions::BagEntry::kRepeats : bits++;
      r.bag_entries.push_back({static_cast<uint32_t>(r.bags.size()), bit, static_cast<uint32_t>(r.symbols.size())});
      r.symbols.insert(r.symbols.end(), {codes_[alias_[entry.later.index]], end});
      bag.required.resize(bits / 64 + 1);
      if (entry.required && !entry.repeats) bag.required[bit / 64] |= uint64_t{1} << (bit % 64);
    }
    bag.end = static_cast<uint32_t>(r.bag_entries.size());
    r.bags.push_back(std::move(bag));
  }

  void flatten() {
    Productions& r = result_;
    r.bag_base = static_cast<uint32_t>(rules_.size()) + 1;
    for (uint32_t rule = 0; rule < rules_.size(); ++rule) {
      r.rule_begin.push_back(static_cast<uint32_t>(r.starts.size()));
      if (const std::span<const Grammar::BagEntry> bag = bag_of(rules_[rule]); !bag.empty()) {
        flatten_bag(rule, bag);
        continue;
      }
      for (uint32_t production : by_rule_[rules_[rule]]) {
        std::span<const Symbol> parts = right_side(production);
        if (parts.empty()) continue;
        r.starts.push_back(static_cast<uint32_t>(r.symbols.size()));
        for (Symbol part : parts) r.symbols.push_back(codes_[alias_[part.index]]);
        r.symbols.push_back(code::kEnd | rule);
      }
    }
    r.rule_begin.push_back(static_cast<uint32_t>(r.starts.size()));
    r.start_dot = static_cast<uint32_t>(r.symbols.size());
    r.start_end = r.start_dot + 1;
    r.symbols.push_back(codes_[alias_[grammar_.start().index]]);
    r.symbols.push_back(code::kEnd | static_cast<uint32_t>(rules_.size()));
  }

  Grammar& grammar_;
  const Vocabulary& vocabulary_;
  std::vector<std::vector<uint32_t>> by_rule_;  // productions by symbol
  std::vector<bool> useful_, nullable_;
  std::vector<uint32_t> alias_, codes_, rules_;
  Productions result_;
};

}  // namespace

Result<Productions> Productions::make(Grammar& grammar, const Vocabulary& vocabulary) {
  QUIRE_TRY(grammar.status());
  return Flattener(grammar, vocabulary).run();
}

}  // namespace quire::grammar
