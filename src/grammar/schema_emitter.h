// SPDX-License-Identifier: Apache-2.0
// SchemaEmitter: the rules of a grammar for the values that a schema accepts.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "grammar/compile.h"
#include "grammar/grammar.h"
#include "grammar/schema_evaluator.h"

namespace quire::grammar::schema {

// How the members of an object are written.
enum class Style : uint8_t { kJson, kQwenXml, kGlmXml, kMinimaxXml, kDeepseekXml };
std::optional<Style> style_of(std::string_view name);

// Emits each conjunction of schemas once, as a rule or a terminal; nested ones are put off until finish(), so that the
// stack stays shallow. Not thread-safe.
class SchemaEmitter {
 public:
  SchemaEmitter(Grammar& grammar, SchemaEvaluator& evaluator, const JsonOptions& options, Regex white_space);

  // The symbol of all values of a conjunction, as JSON.
  Result<Symbol> value(ConjId id);
  // The symbol of the objects of a conjunction, whose members are written in this style; other values are refused.
  Result<Symbol> tagged_object(ConjId id, Style style);
  // Emits what was put off.
  Status finish();

 private:
  // A kind of member: one name, or the names of a set.
  struct Entry {
    std::string name;                // if names is null
    std::optional<StringSet> names;  // the names by their contents
    bool other_than_listed = false;  // every name but the listed ones, in every spelling
    ConjId value = kAny;
    uint32_t effect = 0;  // which of the object's demands it meets
    bool required = false;
  };
  // What was written of an object so far: how many members (no more than the cap), and which demands are met.
  using State = std::pair<int64_t, uint32_t>;
  // The rules of one object while they are made.
  struct ObjectPlan {
    Style style = Style::kJson;
    const ObjectShape* shape = nullptr;
    std::vector<Entry> listed;       // in this order, each at most once
    std::vector<Entry> others;       // in any order, after those
    std::vector<std::string> names;  // that no entry for a set may have
    int64_t min = 0;
    std::optional<int64_t> max;
    int64_t cap = 1;                 // counts above it need not be told apart
    uint32_t full = 0;               // all demands
    std::map<State, Symbol> states;  // lists of at least one member
    bool may_be_empty = true;
  };

  Result<bool> never(ConjId id);
  Status scalars(const ValueSet& set, std::vector<Symbol>& out);
  Result<Symbol> object(const ObjectShape& shape, Style style);
  Result<Symbol> array(const ArrayShape& shape);
  Result<Symbol> unique_array(const ArrayShape& shape);
  Result<Symbol> counted_array(const ArrayShape& shape);
  Result<Symbol> listed_array(const ArrayShape& shape, size_t prefix);

  Status plan_members(ObjectPlan& plan);
  Status plan_regions(ObjectPlan& plan);
  Status plan_counts(ObjectPlan& plan);
  Result<std::vector<Symbol>> entry(const ObjectPlan& plan, const Entry& entry, ConjId value, bool first);
  Result<std::vector<Symbol>> json_entry(const ObjectPlan& plan, const Entry& entry, ConjId value, bool first);
  Result<std::vector<Symbol>> tagged_entry(const ObjectPlan& plan, const Entry& entry, ConjId value, bool first);
  Result<Symbol> tagged_value(ConjId id, Style style);
  Status emit_listed(ObjectPlan& plan);
  Status emit_others(ObjectPlan& plan);
  // Whether any order of the members can be tracked, and their rules then.
  bool orderless(const ObjectPlan& plan) const;
  Result<Symbol> emit_any_order(const ObjectPlan& plan);
  Symbol close_object(const ObjectPlan& plan);
  State after(const ObjectPlan& plan, State state, uint32_t effect) const;
  bool fits(const ObjectPlan& plan, State state) const { return !plan.max || state.first <= *plan.max; }

  Regex spaced(std::string_view before, bool left, bool right);
  Symbol open(std::string_view bracket) { return grammar_.terminal(spaced(bracket, false, true)); }
  Symbol close(std::string_view bracket) { return grammar_.terminal(spaced(bracket, true, false)); }
  Symbol comma() { return grammar_.terminal(spaced(",", true, true)); }
  Symbol empty_brackets(std::string_view left, std::string_view right);

  Grammar& grammar_;
  RegexStore& store_;
  SchemaEvaluator& evaluator_;
  const JsonOptions& options_;
  Regex white_space_;
  std::unordered_map<ConjId, Symbol> known_;
  std::deque<std::pair<ConjId, Symbol>> pending_;
};

}  // namespace quire::grammar::schema
