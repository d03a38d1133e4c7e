// SPDX-License-Identifier: Apache-2.0
// SchemaEvaluator: the set of values that each subschema of a document accepts, keyword by keyword.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "grammar/schema_document.h"
#include "grammar/schema_sets.h"

namespace quire::grammar::schema {

// Looks into subschemas as they are needed. Every error is an invalid argument whose message names the keyword and its
// place in the document. Keeps references to the document and the store, which must outlive it. Not thread-safe.
class SchemaEvaluator : public SchemaSets {
 public:
  SchemaEvaluator(RegexStore& store, SchemaDocument& document);

  // The conjunction of one subschema.
  ConjId conjunction_of(uint32_t node, bool negated = false);
  Result<std::shared_ptr<const ValueSet>> values(ConjId id) override;
  // The same values but strings.
  ConjId without_strings(ConjId id);
  // A sentence that names the keyword and the place.
  Failure refuse(uint32_t node, std::string_view keyword, std::string_view why) const;
  // The same error as an invalid argument that names the place of a conjunction, unless it already names one.
  Failure locate(ConjId id, const Error& error) const;

 private:
  using Handler = Status (SchemaEvaluator::*)(uint32_t node, ValueSet& out);
  struct Keyword {
    std::string_view name;
    Handler handler;  // null: says nothing about what is accepted
    int phase;        // handlers run in the order of their phases, and in the order of the document within one
  };
  static const std::unordered_map<std::string_view, Keyword>& keywords();

  Result<std::shared_ptr<const ValueSet>> evaluate(uint32_t node);
  Result<ValueSet> evaluate_keywords(uint32_t node);
  Result<ValueSet> evaluate_negated(uint32_t node);
  Result<ValueSet> set_of_constant(uint32_t node, const json::Value& value);
  Status narrow(uint32_t node, std::string_view keyword, ValueSet& out, const ValueSet& by);
  // Adds the place to an error that has none.
  Failure at(uint32_t node, std::string_view keyword, const Error& error) const;
  const json::Value* find(uint32_t node, std::string_view keyword) const { return document_.value(node).find(keyword); }
  Result<std::optional<int64_t>> count_of(uint32_t node, std::string_view keyword) const;
  Result<std::optional<Decimal>> number_of(uint32_t node, std::string_view keyword) const;
  Result<std::vector<uint32_t>> schemas_of(uint32_t node, std::string_view keyword) const;
  Result<uint32_t> schema_of(uint32_t node, std::string_view keyword, const json::Value& value) const;
  Result<std::vector<std::string>> names_of(uint32_t node, std::string_view keyword, const json::Value& value) const;
  Result<Regex> pattern_of(uint32_t node, std::string_view keyword, const std::string& pattern);
  // Narrows the arrays or the objects of a set by one more shape.
  Status narrow_arrays(uint32_t node, std::string_view keyword, ValueSet& out, ArrayShape shape);
  Status narrow_objects(uint32_t node, std::string_view keyword, ValueSet& out, ObjectShape shape);
  Status require_if_present(uint32_t node, std::string_view keyword, ValueSet& out, std::string_view name,
                            const ValueSet& then);

  // One for each keyword or group of keywords that belong together.
  Status on_type(uint32_t node, ValueSet& out);
  Status on_enum(uint32_t node, ValueSet& out);
  Status on_const(uint32_t node, ValueSet& out);
  Status on_number(uint32_t node, ValueSet& out);
  Status on_length(uint32_t node, ValueSet& out);
  Status on_pattern(uint32_t node, ValueSet& out);
  Status on_format(uint32_t node, ValueSet& out);
  Status on_content(uint32_t node, ValueSet& out);
  Status on_properties(uint32_t node, ValueSet& out);
  Status on_required(uint32_t node, ValueSet& out);
  Status on_property_names(uint32_t node, ValueSet& out);
  Status on_property_count(uint32_t node, ValueSet& out);
  Status on_items(uint32_t node, ValueSet& out);
  Status on_item_count(uint32_t node, ValueSet& out);
  Status on_unique_items(uint32_t node, ValueSet& out);
  Status on_contains(uint32_t node, ValueSet& out);
  Status on_ref(uint32_t node, ValueSet& out);
  Status on_dynamic_ref(uint32_t node, ValueSet& out);
  Status on_all_of(uint32_t node, ValueSet& out);
  Status on_any_of(uint32_t node, ValueSet& out);
  Status on_one_of(uint32_t node, ValueSet& out);
  Status on_not(uint32_t node, ValueSet& out);
  Status on_if(uint32_t node, ValueSet& out);
  Status on_dependencies(uint32_t node, ValueSet& out);
  Status on_unevaluated_properties(uint32_t node, ValueSet& out);
  Status on_unevaluated_items(uint32_t node, ValueSet& out);
  Status on_draft_3(uint32_t node, ValueSet& out);

  SchemaDocument& document_;
  std::optional<ConjId> no_strings_;
  bool tracks_evaluated_ = false;  // whether the document has unevaluatedProperties or unevaluatedItems
  int depth_ = 0;
  std::set<uint32_t> open_;  // being evaluated: to come here again would never end
  std::unordered_map<uint32_t, std::shared_ptr<const ValueSet>> known_;
  std::unordered_map<ConjId, std::shared_ptr<const ValueSet>> known_conjunctions_;
  std::unordered_map<std::string, Regex> patterns_;
  std::unordered_map<std::string, std::optional<Regex>> formats_;
};

}  // namespace quire::grammar::schema
