// SPDX-License-Identifier: Apache-2.0
// SchemaEmitter: arrays.
#include <algorithm>

#include "grammar/schema_emitter.h"

namespace quire::grammar::schema {

namespace {

constexpr size_t kMaxUniqueValues = 64;
constexpr size_t kMaxArrayStates = 20'000;

}  // namespace

Result<Symbol> SchemaEmitter::array(const ArrayShape& given) {
  ArrayShape shape = given;
  const size_t prefix = SchemaSets::longest_prefix(shape);
  if (prefix > kMaxPrefix) return unsupported("its list of items is too long");
  // The first position that nothing may fill ends the array.
  for (size_t i = 0; i <= prefix; ++i) {
    QUIRE_ASSIGN(const bool impossible, never(evaluator_.item_of(shape, i)));
    if (!impossible) continue;
    if (!shape.max || *shape.max > static_cast<int64_t>(i)) shape.max = static_cast<int64_t>(i);
    break;
  }
  if (shape.max && *shape.max < shape.min) return grammar_.nothing();
  if (shape.unique && !(shape.max && *shape.max <= 1)) return unique_array(shape);
  if (!shape.contains.empty()) return counted_array(shape);
  if (shape.max && *shape.max == 0) return empty_brackets("[", "]");
  return listed_array(shape, prefix);
}

Result<Symbol> SchemaEmitter::listed_array(const ArrayShape& shape, size_t prefix) {
  std::vector<Symbol> options;
  if (shape.min == 0) options.push_back(empty_brackets("[", "]"));
  std::vector<Symbol> complete;  // lists of at least one item
  const size_t last = shape.max ? std::min(prefix, static_cast<size_t>(*shape.max)) : prefix;
  Symbol list;
  for (size_t i = 0; i < last; ++i) {
    QUIRE_TRY(evaluator_.spend(1));
    QUIRE_ASSIGN(const Symbol item, value(evaluator_.item_of(shape, i)));
    list = i == 0 ? item : grammar_.sequence({list, comma(), item});
    if (static_cast<int64_t>(i) + 1 >= shape.min && i + 1 < last) complete.push_back(list);
  }
  const auto written = static_cast<int64_t>(last);
  const bool more = !shape.max || *shape.max > written;
  if (last > 0 && !more && written >= shape.min) complete.push_back(list);
  if (more) {
    QUIRE_ASSIGN(const Symbol item, value(evaluator_.item_of(shape, prefix)));
    const Symbol next = grammar_.sequence({comma(), item});
    std::optional<int64_t> most = shape.max;
    if (last == 0) {
      if (most) --*most;
      complete.push_back(grammar_.sequence({item, grammar_.repeat(next, std::max<int64_t>(0, shape.min - 1), most)}));
    } else {
      if (most) *most -= written;
      complete.push_back(
          grammar_.sequence({list, grammar_.repeat(next, std::max<int64_t>(0, shape.min - written), most)}));
    }
  }
  if (!complete.empty()) options.push_back(grammar_.sequence({open("["), grammar_.choice(complete), close("]")}));
  return grammar_.choice(options);
}

// Arrays with `contains`: a list grows item by item, and a state says how long it is (as far as that matters) and how
// many items of each kind it has.
Result<Symbol> SchemaEmitter::counted_array(const ArrayShape& shape) {
  using Counts = std::vector<int64_t>;  // the length, then one count for each `contains`
  const size_t prefix = SchemaSets::longest_prefix(shape);
  int64_t longest = std::max<int64_t>({1, static_cast<int64_t>(prefix), shape.max ? *shape.max + 1 : shape.min});
  for (const ContainsSpec& contains : shape.contains) longest = std::max(longest, static_cast<int64_t>(contains.from));
  if (shape.contains.size() > 4 || longest > static_cast<int64_t>(kMaxArrayStates))
    return unsupported("its counts of items are too large beside \"contains\"");
  std::map<Counts, Symbol> rules;
  std::vector<Counts> pending = {Counts(1 + shape.contains.size(), 0)};
  rules.emplace(pending[0], grammar_.nothing());  // the empty list is written on its own
  std::vector<Symbol> options, complete;
  auto finished = [&](const Counts& counts) {
    for (size_t i = 0; i < shape.contains.size(); ++i) {
      if (counts[i + 1] < shape.contains[i].min) return false;
    }
    return counts[0] >= std::min(shape.min, longest);
  };
  while (!pending.empty()) {
    const Counts counts = pending.back();
    pending.pop_back();
    if (rules.size() > kMaxArrayStates) return unsupported("its counts of items are too large beside \"contains\"");
    if (finished(counts)) {
      if (counts[0] == 0) {
        options.push_back(empty_brackets("[", "]"));
      } else {
        complete.push_back(rules.at(counts));
      }
    }
    if (shape.max && counts[0] >= *shape.max) continue;
    const ConjId base = evaluator_.item_of(shape, static_cast<size_t>(counts[0]));
    // Each item counts for any subset of the kinds. One that counts is of that kind; one that does not is not, where
    // there is a largest count; else it does not matter.
    for (uint32_t chosen = 0; chosen < (uint32_t{1} << shape.contains.size()); ++chosen) {
      QUIRE_TRY(evaluator_.spend(2));
      Counts to = counts;
      to[0] = std::min(counts[0] + 1, longest);
      std::vector<ConjId> ways = {base};
      bool possible = true;
      for (size_t i = 0; i < shape.contains.size() && possible; ++i) {
        const ContainsSpec& contains = shape.contains[i];
        const bool counted = (chosen >> i & 1) != 0;
        if (static_cast<size_t>(counts[0]) < contains.from) {
          possible = !counted;
          continue;
        }
        if (!counted && !contains.max) continue;
        if (counted) {
          ++to[i + 1];
          if (!contains.max) to[i + 1] = std::min(to[i + 1], contains.min);
          possible = !contains.max || to[i + 1] <= *contains.max;
        }
        const std::vector<ConjId> kinds =
            counted ? std::vector<ConjId>{contains.item} : evaluator_.negations_of(contains.item);
        std::vector<ConjId> narrowed;
        for (const ConjId way : ways) {
          for (const ConjId kind : kinds) narrowed.push_back(evaluator_.conjunctions().both(way, kind));
        }
        ways = std::move(narrowed);
      }
      if (!possible) continue;
      for (const ConjId way : ways) {
        QUIRE_ASSIGN(const bool impossible, never(way));
        if (impossible) continue;
        QUIRE_ASSIGN(const Symbol item, value(way));
        const auto [entry, added] = rules.try_emplace(to);
        if (added) {
          entry->second = grammar_.rule("");
          pending.push_back(to);
        }
        if (counts[0] == 0) {
          grammar_.add_production(entry->second, {item});
        } else {
          grammar_.add_production(entry->second, {rules.at(counts), comma(), item});
        }
      }
    }
  }
  if (!complete.empty()) options.push_back(grammar_.sequence({open("["), grammar_.choice(complete), close("]")}));
  return grammar_.choice(options);
}

// Arrays whose items all differ, if the items are of a small set of scalars: one terminal, the lists of such items in
// which no value stands twice.
Result<Symbol> SchemaEmitter::unique_array(const ArrayShape& shape) {
  const Error refused = unsupported("uniqueItems needs items that are one of a few listed values");
  if (!shape.contains.empty() || SchemaSets::longest_prefix(shape) > 0) return refused;
  QUIRE_ASSIGN(const auto items, evaluator_.values(evaluator_.item_of(shape, 0)));
  if (!items->arrays.empty() || !items->objects.empty()) return refused;
  const auto strings = evaluator_.strings().values(items->strings, kMaxUniqueValues);
  const auto numbers = evaluator_.numbers().values(items->numbers, kMaxUniqueValues);
  if (!strings || !numbers) return refused;
  std::vector<Regex> texts;
  if (items->has_null) texts.push_back(store_.literal("null"));
  if (items->has_true) texts.push_back(store_.literal("true"));
  if (items->has_false) texts.push_back(store_.literal("false"));
  for (const std::string& text : *strings) texts.push_back(evaluator_.strings().text_of_value(text));
  for (const Decimal& number : *numbers) texts.push_back(evaluator_.numbers().text_of_value(number));
  if (texts.size() > kMaxUniqueValues) return refused;
  const auto count = static_cast<int64_t>(texts.size());
  const int64_t most = shape.max ? std::min(*shape.max, count) : count;
  if (shape.min > most) return grammar_.nothing();
  std::vector<Symbol> options;
  if (shape.min == 0) options.push_back(empty_brackets("[", "]"));
  if (most > 0) {
    const Regex item = store_.either(texts), separator = spaced(",", true, true);
    const Regex before = store_.repeat(store_.concat(item, separator), 0);
    const Regex behind = store_.repeat(store_.concat(separator, item), 0);
    Regex list = store_.concat(
        item, store_.repeat(store_.concat(separator, item), std::max<int64_t>(0, shape.min - 1), most - 1));
    std::vector<Regex> repeated;
    for (const Regex text : texts) {
      const Regex parts[] = {before, text, separator, before, text, behind};
      repeated.push_back(store_.concat(parts));
    }
    for (const Regex twice : repeated) list = store_.both(list, store_.complement(twice));
    options.push_back(grammar_.sequence({open("["), grammar_.terminal(list), close("]")}));
  }
  return grammar_.choice(options);
}

}  // namespace quire::grammar::schema
