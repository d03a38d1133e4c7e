// SPDX-License-Identifier: Apache-2.0
// SchemaEvaluator: the keywords about the members of objects and the items of arrays.
#include <algorithm>
#include <unordered_set>

#include "grammar/schema_evaluator.h"

namespace quire::grammar::schema {

namespace {

constexpr size_t kMaxNames = 10'000;

}  // namespace

Result<std::vector<std::string>> SchemaEvaluator::names_of(uint32_t node, std::string_view keyword,
                                                           const json::Value& value) const {
  std::vector<std::string> out;
  std::unordered_set<std::string_view> seen;
  if (!value.is_array()) return refuse(node, keyword, "its value is no list of names");
  for (const json::Value& name : value.as_array()) {
    if (!name.is_string()) return refuse(node, keyword, "its value is no list of names");
    if (seen.insert(name.as_string()).second) out.push_back(name.as_string());
  }
  if (out.size() > kMaxNames) return refuse(node, keyword, "it lists too many names");
  return out;
}

Status SchemaEvaluator::narrow_objects(uint32_t node, std::string_view keyword, ValueSet& out, ObjectShape shape) {
  Result<std::vector<ObjectShape>> common = both(out.objects, std::vector<ObjectShape>(1, std::move(shape)));
  if (!common.ok()) return at(node, keyword, common.error());
  out.objects = std::move(*common);
  return {};
}

Status SchemaEvaluator::narrow_arrays(uint32_t node, std::string_view keyword, ValueSet& out, ArrayShape shape) {
  Result<std::vector<ArrayShape>> common = both(out.arrays, std::vector<ArrayShape>(1, std::move(shape)));
  if (!common.ok()) return at(node, keyword, common.error());
  out.arrays = std::move(*common);
  return {};
}

Status SchemaEvaluator::on_properties(uint32_t node, ValueSet& out) {
  if (out.objects.empty()) return {};
  PropertySpec spec;
  if (const json::Value* properties = find(node, "properties")) {
    if (!properties->is_object()) return refuse(node, "properties", "its value is no object");
    if (properties->as_object().size() > kMaxNames) return refuse(node, "properties", "it lists too many names");
    for (const auto& [name, value] : properties->as_object()) {
      QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "properties", value));
      spec.properties.emplace_back(name, conjunction_of(schema));
    }
  }
  if (const json::Value* patterns = find(node, "patternProperties")) {
    if (!patterns->is_object()) return refuse(node, "patternProperties", "its value is no object");
    for (const auto& [pattern, value] : patterns->as_object()) {
      QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "patternProperties", value));
      QUIRE_ASSIGN(const Regex regex, pattern_of(node, "patternProperties", pattern));
      spec.patterns.emplace_back(regex, conjunction_of(schema));
    }
  }
  if (const json::Value* additional = find(node, "additionalProperties")) {
    QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "additionalProperties", *additional));
    spec.additional = conjunction_of(schema);
  }
  ObjectShape shape;
  shape.specs.push_back(make_spec(std::move(spec)));
  if (tracks_evaluated_) shape.evaluated = shape.specs;
  return narrow_objects(node, "properties", out, std::move(shape));
}

Status SchemaEvaluator::on_required(uint32_t node, ValueSet& out) {
  const json::Value* required = find(node, "required");
  if (required->is_bool() && document_.draft() != Draft::k3) {
    // Draft 3 wrote this into the property itself. Later drafts know nothing of it, and neither does what they accept.
    return refuse(node, "required", "its value is no list of names");
  }
  ObjectShape shape;
  QUIRE_ASSIGN(shape.required, names_of(node, "required", *required));
  return narrow_objects(node, "required", out, std::move(shape));
}

Status SchemaEvaluator::on_property_names(uint32_t node, ValueSet& out) {
  QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "propertyNames", *find(node, "propertyNames")));
  QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> names, evaluate(schema));
  ObjectShape shape;
  shape.names = names->strings;
  return narrow_objects(node, "propertyNames", out, std::move(shape));
}

Status SchemaEvaluator::on_property_count(uint32_t node, ValueSet& out) {
  ObjectShape shape;
  QUIRE_ASSIGN(const std::optional<int64_t> min, count_of(node, "minProperties"));
  QUIRE_ASSIGN(shape.max, count_of(node, "maxProperties"));
  shape.min = min.value_or(0);
  return narrow_objects(node, "minProperties", out, std::move(shape));
}

// Splits every object shape into the objects without the member and those with it that also are in `then`.
Status SchemaEvaluator::require_if_present(uint32_t node, std::string_view keyword, ValueSet& out,
                                           std::string_view name, const ValueSet& then) {
  const std::vector<ObjectShape> absent(1, shape_of_member(name, kNever));
  ObjectShape with;
  with.required.emplace_back(name);
  Result<std::vector<ObjectShape>> present = both(then.objects, std::vector<ObjectShape>(1, with));
  if (!present.ok()) return at(node, keyword, present.error());
  Result<std::vector<ObjectShape>> left = both(out.objects, absent), right = both(out.objects, *present);
  if (!left.ok()) return at(node, keyword, left.error());
  if (!right.ok()) return at(node, keyword, right.error());
  out.objects = std::move(*left);
  for (ObjectShape& shape : *right) out.objects.push_back(std::move(shape));
  return {};
}

Status SchemaEvaluator::on_dependencies(uint32_t node, ValueSet& out) {
  for (const std::string_view keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const json::Value* dependencies = find(node, keyword);
    if (dependencies == nullptr || out.objects.empty()) continue;
    if (!dependencies->is_object()) return refuse(node, keyword, "its value is no object");
    for (const auto& [name, value] : dependencies->as_object()) {
      ValueSet then = none();
      if (value.is_array() || value.is_string()) {
        ObjectShape shape;
        if (value.is_string()) {
          shape.required.push_back(value.as_string());
        } else {
          QUIRE_ASSIGN(shape.required, names_of(node, keyword, value));
        }
        if (shape.required.empty()) continue;
        then.objects.push_back(std::move(shape));
      } else {
        QUIRE_ASSIGN(const uint32_t schema, schema_of(node, keyword, value));
        QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> set, evaluate(schema));
        then = *set;
      }
      QUIRE_TRY(require_if_present(node, keyword, out, name, then));
    }
  }
  return {};
}

Status SchemaEvaluator::on_items(uint32_t node, ValueSet& out) {
  if (out.arrays.empty()) return {};
  const json::Value *items = find(node, "items"), *prefix = find(node, "prefixItems"),
                    *additional = find(node, "additionalItems");
  ItemSpec spec;
  bool all_given = false;
  // Up to 2019-09, a list in `items` is what later is prefixItems, and additionalItems stands for the rest.
  if (prefix == nullptr && items != nullptr && items->is_array()) {
    prefix = items;
    items = additional;
  }
  const std::string_view prefix_word = find(node, "prefixItems") != nullptr ? "prefixItems" : "items";
  if (prefix != nullptr) {
    if (!prefix->is_array()) return refuse(node, prefix_word, "its value is no list of schemas");
    for (const json::Value& value : prefix->as_array()) {
      QUIRE_ASSIGN(const uint32_t schema, schema_of(node, prefix_word, value));
      spec.prefix.push_back(conjunction_of(schema));
    }
  }
  if (items != nullptr) {
    QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "items", *items));
    spec.rest = conjunction_of(schema);
    all_given = true;
  }
  ArrayShape shape;
  shape.evaluated = spec.prefix.size();
  shape.all_evaluated = all_given;
  shape.specs.push_back(std::make_shared<ItemSpec>(std::move(spec)));
  return narrow_arrays(node, "items", out, std::move(shape));
}

Status SchemaEvaluator::on_item_count(uint32_t node, ValueSet& out) {
  ArrayShape shape;
  QUIRE_ASSIGN(const std::optional<int64_t> min, count_of(node, "minItems"));
  QUIRE_ASSIGN(shape.max, count_of(node, "maxItems"));
  shape.min = min.value_or(0);
  return narrow_arrays(node, "minItems", out, std::move(shape));
}

Status SchemaEvaluator::on_unique_items(uint32_t node, ValueSet& out) {
  const json::Value* unique = find(node, "uniqueItems");
  if (!unique->is_bool()) return refuse(node, "uniqueItems", "its value is no boolean");
  if (!unique->as_bool()) return {};
  ArrayShape shape;
  shape.unique = true;
  return narrow_arrays(node, "uniqueItems", out, std::move(shape));
}

Status SchemaEvaluator::on_contains(uint32_t node, ValueSet& out) {
  const json::Value* contains = find(node, "contains");
  if (contains == nullptr) return {};
  QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "contains", *contains));
  QUIRE_ASSIGN(const std::optional<int64_t> min, count_of(node, "minContains"));
  ContainsSpec spec;
  QUIRE_ASSIGN(spec.max, count_of(node, "maxContains"));
  spec.item = conjunction_of(schema);
  spec.min = min.value_or(1);
  ArrayShape shape;
  if (spec.min > 0 || spec.max) shape.contains.push_back(spec);
  shape.some_evaluated = document_.draft() == Draft::k2020;
  return narrow_arrays(node, "contains", out, std::move(shape));
}

Status SchemaEvaluator::on_unevaluated_properties(uint32_t node, ValueSet& out) {
  QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "unevaluatedProperties", *find(node, "unevaluatedProperties")));
  const ConjId value = conjunction_of(schema);
  for (ObjectShape& shape : out.objects) {
    // The same members as before, with nothing demanded of them, and the schema for all others.
    PropertySpec rest;
    bool all_given = false;
    for (const auto& spec : shape.evaluated) {
      for (const auto& [name, unused] : spec->properties) rest.properties.emplace_back(name, kAny);
      for (const auto& [pattern, unused] : spec->patterns) rest.patterns.emplace_back(pattern, kAny);
      all_given |= spec->additional.has_value();
    }
    rest.additional = all_given ? kAny : value;
    auto made = make_spec(std::move(rest));
    if (!all_given) shape.specs.push_back(made);
    shape.evaluated.push_back(made);
  }
  std::erase_if(out.objects, [&](const ObjectShape& shape) { return is_none(shape); });
  return {};
}

Status SchemaEvaluator::on_unevaluated_items(uint32_t node, ValueSet& out) {
  QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "unevaluatedItems", *find(node, "unevaluatedItems")));
  const ConjId value = conjunction_of(schema);
  for (ArrayShape& shape : out.arrays) {
    if (shape.all_evaluated) continue;
    if (shape.some_evaluated && value != kAny)
      return refuse(node, "unevaluatedItems", "beside \"contains\" it depends on the items");
    ItemSpec rest;
    rest.prefix.assign(shape.evaluated, kAny);
    rest.rest = value;
    shape.specs.push_back(std::make_shared<ItemSpec>(std::move(rest)));
    shape.all_evaluated = true;
  }
  std::erase_if(out.arrays, [&](const ArrayShape& shape) { return is_none(shape); });
  return {};
}

}  // namespace quire::grammar::schema
