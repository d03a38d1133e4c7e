// SPDX-License-Identifier: Apache-2.0
// SchemaEmitter: objects. All members in any order, or those that a schema lists first, in its order, and all others
// behind them in any order.
#include <algorithm>
#include <unordered_set>

#include "grammar/schema_emitter.h"

namespace quire::grammar::schema {

namespace {

constexpr size_t kMaxExists = 3;
constexpr size_t kMaxFree = 5;     // members in any order: each doubles the states
constexpr size_t kMaxBag = 1'000;  // members whose order is free
constexpr size_t kMaxPatterns = 16;
constexpr size_t kMaxRegions = 48;
constexpr int64_t kMaxStates = 100'000;
constexpr int64_t kMaxRegionWork = 1'000'000;  // steps of the store

// A set of names that the schemas of an object treat alike, and which of the object's patterns match them.
struct Region {
  StringSet names;
  std::vector<bool> matched;
  bool whole = true;  // no pattern was there to divide it
};

}  // namespace

Result<Symbol> SchemaEmitter::object(const ObjectShape& shape, Style style) {
  ObjectPlan plan;
  plan.style = style;
  plan.shape = &shape;
  QUIRE_TRY(plan_members(plan));
  QUIRE_TRY(plan_regions(plan));
  for (const Entry& entry : plan.listed) {
    if (!entry.required) continue;
    QUIRE_ASSIGN(const bool impossible, never(entry.value));
    if (impossible) return grammar_.nothing();
  }
  QUIRE_TRY(plan_counts(plan));
  if (options_.any_order && orderless(plan)) return emit_any_order(plan);
  QUIRE_TRY(emit_listed(plan));
  QUIRE_TRY(emit_others(plan));
  return close_object(plan);
}

// The members that are named: listed ones in their order, and required ones that no schema lists, which may stand
// anywhere among the others. Where several schemas list members there is no order among them all, so a few such members
// may stand anywhere, too.
Status SchemaEmitter::plan_members(ObjectPlan& plan) {
  const ObjectShape& shape = *plan.shape;
  if (shape.exists.size() > kMaxExists) return unsupported("its negated parts are too many");
  plan.full = (uint32_t{1} << shape.exists.size()) - 1;
  std::unordered_map<std::string_view, bool> seen;
  const std::unordered_set<std::string_view> required(shape.required.begin(), shape.required.end());
  size_t lists = 0;
  for (const auto& spec : shape.specs) {
    if (!spec->properties.empty()) lists += spec->any_order ? 2 : 1;
    for (const auto& [name, unused] : spec->properties) {
      if (!seen.emplace(name, true).second) continue;
      QUIRE_TRY(evaluator_.spend(1));
      plan.names.push_back(name);
      Entry entry;
      entry.name = name;
      entry.value = evaluator_.member_of(shape, name);
      entry.required = required.contains(name);
      const bool named = StringSets::is_all(shape.names) || evaluator_.strings().has(shape.names, name);
      if (!named) entry.value = kNever;
      if (entry.value == kNever && !entry.required) continue;
      plan.listed.push_back(std::move(entry));
    }
  }
  std::vector<Entry> unlisted;
  for (const std::string& name : shape.required) {
    if (seen.contains(name)) continue;
    plan.names.push_back(name);
    Entry entry;
    entry.name = name;
    entry.value = evaluator_.member_of(shape, name);
    entry.required = true;
    unlisted.push_back(std::move(entry));
  }
  if (lists > 1 && plan.listed.size() + unlisted.size() <= kMaxFree) {
    unlisted.insert(unlisted.begin(), plan.listed.begin(), plan.listed.end());
    plan.listed.clear();
  }
  uint32_t bit = plan.full + 1;
  for (Entry& entry : unlisted) {
    QUIRE_ASSIGN(const bool impossible, never(entry.value));
    if (unlisted.size() > kMaxFree || impossible) {
      plan.listed.push_back(std::move(entry));
      continue;
    }
    entry.effect = bit;
    if (entry.required) plan.full |= bit;
    bit <<= 1;
    plan.others.push_back(std::move(entry));
  }
  return {};
}

// All other names, divided by what the schemas demand of their members.
Status SchemaEmitter::plan_regions(ObjectPlan& plan) {
  const ObjectShape& shape = *plan.shape;
  StringSets& strings = evaluator_.strings();
  std::vector<Regex> patterns;
  auto index_of = [&](Regex pattern) {
    const auto found = std::find(patterns.begin(), patterns.end(), pattern);
    if (found == patterns.end()) patterns.push_back(pattern);
    return static_cast<size_t>(found - patterns.begin());
  };
  bool lists = false, says = false;  // whether a schema lists members, and whether one speaks of all others
  for (const auto& spec : shape.specs) {
    for (const auto& [pattern, unused] : spec->patterns) index_of(pattern);
    lists |= !spec->properties.empty() || !spec->patterns.empty();
    says |= spec->additional.has_value();
  }
  for (const ExistsSpec& exists : shape.exists) {
    if (!StringSets::is_all(exists.names)) index_of(strings.regex(exists.names));
  }
  if (patterns.size() > kMaxPatterns) return unsupported("its patterns for names are too many");
  const bool dropped_rest = !options_.additional_properties && lists && !says;
  // Where only patterns allow members, the rest of all names need not be described.
  const int64_t most_work = store_.work() + kMaxRegionWork;
  std::vector<Region> regions(1);
  regions[0].names = strings.both(shape.names, strings.complement(StringSets::of_values(plan.names)));
  regions[0].whole = StringSets::is_all(shape.names);
  for (const Regex pattern : patterns) {
    const StringSet inside = StringSets::of_regex(pattern);
    const StringSet outside = strings.complement(inside);
    std::vector<Region> divided;
    for (Region& region : regions) {
      QUIRE_TRY(evaluator_.spend(50));
      if (store_.work() > most_work) return unsupported("its patterns for names take too long to compare");
      for (const bool matches : {true, false}) {
        Region part = region;
        part.names = strings.both(region.names, matches ? inside : outside);
        part.matched.push_back(matches);
        part.whole = false;
        if (!strings.is_none(part.names)) divided.push_back(std::move(part));
      }
    }
    if (divided.size() > kMaxRegions) return unsupported("its patterns for names overlap in too many ways");
    regions = std::move(divided);
  }
  for (const Region& region : regions) {
    Entry entry;
    bool by_pattern = false;
    for (const auto& spec : shape.specs) {
      bool listed = false;
      for (const auto& [pattern, value] : spec->patterns) {
        if (!region.matched[index_of(pattern)]) continue;
        listed = by_pattern = true;
        entry.value = evaluator_.conjunctions().both(entry.value, value);
      }
      if (!listed && spec->additional) entry.value = evaluator_.conjunctions().both(entry.value, *spec->additional);
    }
    if (dropped_rest && !by_pattern) continue;
    QUIRE_ASSIGN(const bool impossible, never(entry.value));
    if (impossible) continue;
    entry.names = region.names;
    entry.other_than_listed = region.whole;
    // Whether the names of this region may meet a demand for some member.
    for (size_t i = 0; i < shape.exists.size(); ++i) {
      const StringSet& names = shape.exists[i].names;
      if (StringSets::is_all(names) || region.matched[index_of(strings.regex(names))]) entry.effect |= uint32_t{1} << i;
    }
    plan.others.push_back(std::move(entry));
  }
  return {};
}

// Which counts of members must be told apart.
Status SchemaEmitter::plan_counts(ObjectPlan& plan) {
  plan.min = plan.shape->min;
  plan.max = plan.shape->max;
  const auto required = static_cast<int64_t>(
      std::count_if(plan.listed.begin(), plan.listed.end(), [](const Entry& entry) { return entry.required; }));
  if (plan.min <= required) plan.min = 0;
  const bool open =
      std::any_of(plan.others.begin(), plan.others.end(), [](const Entry& entry) { return entry.names.has_value(); });
  const auto most = static_cast<int64_t>(plan.listed.size() + plan.others.size());
  if (plan.max && !open && *plan.max >= most) plan.max.reset();
  plan.cap = plan.max ? *plan.max : std::max<int64_t>(1, plan.min);
  uint32_t effects = 0;
  for (const Entry& other : plan.others) effects |= other.effect;
  const bool repeated = plan.listed.empty() && effects == 0;  // emit_others needs no states for these
  if (!repeated && plan.cap > kMaxStates / (static_cast<int64_t>(effects) + 1) / (most + 1))
    return unsupported("minProperties or maxProperties is too large beside its other keywords");
  return {};
}

bool SchemaEmitter::orderless(const ObjectPlan& plan) const {
  const size_t members = plan.listed.size() + plan.others.size();
  return members > 0 && members <= kMaxBag && plan.shape->exists.empty() && plan.min <= 1 && !plan.max;
}

Result<Symbol> SchemaEmitter::emit_any_order(const ObjectPlan& plan) {
  std::vector<Grammar::BagEntry> entries;
  bool some_required = false;
  for (const std::vector<Entry>* kind : {&plan.listed, &plan.others}) {
    for (const Entry& each : *kind) {
      QUIRE_TRY(evaluator_.spend(1));
      QUIRE_ASSIGN(const bool impossible, never(each.value));
      if (impossible) continue;
      QUIRE_ASSIGN(const std::vector<Symbol> first, entry(plan, each, each.value, true));
      QUIRE_ASSIGN(const std::vector<Symbol> later, entry(plan, each, each.value, false));
      entries.push_back({grammar_.sequence(first), grammar_.sequence(later), each.required, each.names.has_value()});
      some_required |= each.required;
    }
  }
  const bool json = plan.style == Style::kJson;
  std::vector<Symbol> options;
  if (!some_required && plan.min == 0) options.push_back(json ? empty_brackets("{", "}") : grammar_.empty());
  if (!entries.empty()) {
    const Symbol members = grammar_.bag(std::move(entries));
    options.push_back(json ? grammar_.sequence({open("{"), members, close("}")}) : members);
  }
  return grammar_.choice(options);
}

SchemaEmitter::State SchemaEmitter::after(const ObjectPlan& plan, State state, uint32_t effect) const {
  const int64_t count = state.first + 1;
  return {plan.max ? count : std::min(count, plan.cap), state.second | effect};
}

Result<std::vector<Symbol>> SchemaEmitter::entry(const ObjectPlan& plan, const Entry& entry, ConjId value, bool first) {
  return plan.style == Style::kJson ? json_entry(plan, entry, value, first) : tagged_entry(plan, entry, value, first);
}

Result<std::vector<Symbol>> SchemaEmitter::json_entry(const ObjectPlan& plan, const Entry& entry, ConjId id,
                                                      bool first) {
  StringSets& strings = evaluator_.strings();
  QUIRE_ASSIGN(const Symbol member, value(id));
  const Regex colon = spaced(":", true, true);
  if (!entry.names) {
    Regex key = store_.concat(strings.text_of_value(entry.name), colon);
    if (!first) key = store_.concat(spaced(",", true, true), key);
    return std::vector<Symbol>{grammar_.terminal(key), member};
  }
  std::vector<Symbol> out;
  if (!first) out.push_back(comma());
  out.push_back(
      grammar_.terminal(entry.other_than_listed ? strings.text_except(plan.names) : strings.text(*entry.names)));
  out.push_back(grammar_.terminal(colon));
  out.push_back(member);
  return out;
}

// The listed members, one after the other: for each state, the lists that lead to it.
Status SchemaEmitter::emit_listed(ObjectPlan& plan) {
  const ObjectShape& shape = *plan.shape;
  StringSets& strings = evaluator_.strings();
  for (const Entry& listed : plan.listed) {
    QUIRE_TRY(evaluator_.spend(1));
    // Each way to write the member: as it must be, or such that it also meets some of the demands for one.
    std::vector<std::pair<ConjId, uint32_t>> ways = {{listed.value, 0}};
    for (size_t i = 0; i < shape.exists.size(); ++i) {
      const ExistsSpec& exists = shape.exists[i];
      if (!StringSets::is_all(exists.names) && !strings.has(exists.names, listed.name)) continue;
      const size_t count = ways.size();
      for (size_t way = 0; way < count; ++way) {
        const ConjId both = evaluator_.conjunctions().both(ways[way].first, exists.value);
        ways.emplace_back(both, ways[way].second | uint32_t{1} << i);
      }
    }
    std::map<State, std::vector<std::vector<Symbol>>> next;
    if (!listed.required) {
      for (const auto& [state, symbol] : plan.states) next[state].push_back({symbol});
    }
    for (const auto& [value, effect] : ways) {
      QUIRE_ASSIGN(const bool impossible, never(value));
      if (impossible) continue;
      QUIRE_ASSIGN(const std::vector<Symbol> later, entry(plan, listed, value, false));
      for (const auto& [state, symbol] : plan.states) {
        const State to = after(plan, state, effect);
        if (!fits(plan, to)) continue;
        std::vector<Symbol>& production = next[to].emplace_back(1, symbol);
        production.insert(production.end(), later.begin(), later.end());
      }
      const State to = after(plan, {0, 0}, effect);
      if (!plan.may_be_empty || !fits(plan, to)) continue;
      QUIRE_ASSIGN(std::vector<Symbol> first, entry(plan, listed, value, true));
      next[to].push_back(std::move(first));
    }
    plan.states.clear();
    for (const auto& [state, productions] : next) {
      QUIRE_TRY(evaluator_.spend(static_cast<int64_t>(productions.size())));
      if (productions.size() == 1 && productions[0].size() == 1) {
        plan.states.emplace(state, productions[0][0]);
        continue;
      }
      const Symbol rule = grammar_.rule("");
      for (const std::vector<Symbol>& production : productions) grammar_.add_production(rule, production);
      plan.states.emplace(state, rule);
    }
    plan.may_be_empty = plan.may_be_empty && !listed.required;
  }
  return {};
}

// The members in any order: lists that grow by one member at a time.
Status SchemaEmitter::emit_others(ObjectPlan& plan) {
  if (plan.others.empty()) return {};
  const ObjectShape& shape = *plan.shape;
  struct Ways {
    std::vector<Symbol> first, later;
  };
  std::map<uint32_t, Ways> by_effect;
  const uint32_t demands = (uint32_t{1} << shape.exists.size()) - 1;
  for (const Entry& other : plan.others) {
    // Each subset of the demands for some member that this one may meet.
    uint32_t may = other.effect & demands;
    for (size_t i = 0; i < shape.exists.size() && !other.names; ++i) {
      const StringSet& names = shape.exists[i].names;
      if (StringSets::is_all(names) || evaluator_.strings().has(names, other.name)) may |= uint32_t{1} << i;
    }
    for (uint32_t chosen = may;; chosen = (chosen - 1) & may) {
      ConjId id = other.value;
      for (size_t i = 0; i < shape.exists.size(); ++i) {
        if ((chosen >> i & 1) != 0) id = evaluator_.conjunctions().both(id, shape.exists[i].value);
      }
      QUIRE_ASSIGN(const bool impossible, never(id));
      if (!impossible) {
        Ways& ways = by_effect[(other.effect & ~demands) | chosen];
        QUIRE_ASSIGN(const std::vector<Symbol> first, entry(plan, other, id, true));
        QUIRE_ASSIGN(const std::vector<Symbol> later, entry(plan, other, id, false));
        ways.first.push_back(grammar_.sequence(first));
        ways.later.push_back(grammar_.sequence(later));
      }
      if (chosen == 0) break;
    }
  }
  if (plan.listed.empty() && by_effect.size() == 1 && by_effect.contains(0)) {
    const Ways& ways = by_effect[0];
    std::optional<int64_t> more = plan.max;
    if (more) --*more;
    if (plan.max && *plan.max == 0) return {};
    const Symbol rest = grammar_.repeat(grammar_.choice(ways.later), std::max<int64_t>(0, plan.min - 1), more);
    plan.states.emplace(State{plan.cap, 0}, grammar_.sequence({grammar_.choice(ways.first), rest}));
    return {};
  }
  std::map<State, Symbol> rules;
  std::vector<State> pending;
  auto rule_of = [&](State state) {
    const auto [entry, added] = rules.try_emplace(state);
    if (added) {
      entry->second = grammar_.rule("");
      pending.push_back(state);
    }
    return entry->second;
  };
  for (const auto& [state, symbol] : plan.states) grammar_.add_production(rule_of(state), {symbol});
  if (plan.may_be_empty) {
    for (const auto& [effect, ways] : by_effect) {
      const State to = after(plan, {0, 0}, effect);
      if (fits(plan, to)) grammar_.add_production(rule_of(to), {grammar_.choice(ways.first)});
    }
  }
  while (!pending.empty()) {
    const State state = pending.back();
    pending.pop_back();
    QUIRE_TRY(evaluator_.spend(1 + static_cast<int64_t>(by_effect.size())));
    for (const auto& [effect, ways] : by_effect) {
      if ((effect & ~demands & state.second) != 0) continue;  // that member was there already
      const State to = after(plan, state, effect);
      if (fits(plan, to)) grammar_.add_production(rule_of(to), {rules.at(state), grammar_.choice(ways.later)});
    }
  }
  plan.states = std::move(rules);
  return {};
}

Symbol SchemaEmitter::close_object(const ObjectPlan& plan) {
  const bool json = plan.style == Style::kJson;
  std::vector<Symbol> options;
  const Symbol before = json ? open("{") : grammar_.empty(), behind = json ? close("}") : grammar_.empty();
  std::vector<Symbol> complete;
  for (const auto& [state, symbol] : plan.states) {
    if (state.first >= plan.min && (state.second & plan.full) == plan.full) complete.push_back(symbol);
  }
  if (!complete.empty()) options.push_back(grammar_.sequence({before, grammar_.choice(complete), behind}));
  if (plan.may_be_empty && plan.min == 0 && plan.full == 0)
    options.push_back(json ? empty_brackets("{", "}") : grammar_.empty());
  return grammar_.choice(options);
}

}  // namespace quire::grammar::schema
