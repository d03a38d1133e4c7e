// SPDX-License-Identifier: Apache-2.0
// SchemaEvaluator: the order of keywords, references, and the keywords that combine schemas.
#include "grammar/schema_evaluator.h"

#include <algorithm>

namespace quire::grammar::schema {

namespace {

constexpr int kMaxEvaluationDepth = 100;
constexpr size_t kMaxTrackedBranches = 4;

// Whether a keyword occurs anywhere in a value.
bool occurs(const json::Value& value, std::string_view keyword, int depth = 0) {
  if (depth > 250) return false;
  if (value.is_array()) {
    return std::any_of(value.as_array().begin(), value.as_array().end(),
                       [&](const json::Value& item) { return occurs(item, keyword, depth + 1); });
  }
  if (!value.is_object()) return false;
  return std::any_of(value.as_object().begin(), value.as_object().end(), [&](const json::Member& member) {
    return member.first == keyword || occurs(member.second, keyword, depth + 1);
  });
}

}  // namespace

SchemaEvaluator::SchemaEvaluator(RegexStore& store, SchemaDocument& document)
    : SchemaSets(store, document.draft() <= Draft::k4), document_(document) {
  const json::Value& root = document.value(0);
  tracks_evaluated_ = occurs(root, "unevaluatedProperties") || occurs(root, "unevaluatedItems");
}

const std::unordered_map<std::string_view, SchemaEvaluator::Keyword>& SchemaEvaluator::keywords() {
  using E = SchemaEvaluator;
  // First what is cheap and excludes much; combinations last, since what is known by then decides whether their
  // branches overlap.
  static const auto* const kKeywords = [] {
    auto* out = new std::unordered_map<std::string_view, Keyword>;
    auto add = [&](Handler handler, int phase, std::initializer_list<std::string_view> names) {
      for (const std::string_view name : names) out->emplace(name, Keyword{name, handler, phase});
    };
    add(&E::on_type, 0, {"type"});
    add(&E::on_enum, 1, {"enum"});
    add(&E::on_const, 1, {"const"});
    add(&E::on_number, 1, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"});
    add(&E::on_length, 1, {"minLength", "maxLength"});
    add(&E::on_pattern, 1, {"pattern"});
    add(&E::on_format, 1, {"format"});
    add(&E::on_content, 1, {"contentMediaType", "contentEncoding"});
    add(&E::on_properties, 1, {"properties", "patternProperties", "additionalProperties"});
    add(&E::on_required, 1, {"required"});
    add(&E::on_property_names, 1, {"propertyNames"});
    add(&E::on_property_count, 1, {"minProperties", "maxProperties"});
    add(&E::on_items, 1, {"items", "prefixItems", "additionalItems"});
    add(&E::on_item_count, 1, {"minItems", "maxItems"});
    add(&E::on_unique_items, 1, {"uniqueItems"});
    add(&E::on_contains, 1, {"contains", "minContains", "maxContains"});
    add(&E::on_ref, 1, {"$ref"});
    add(&E::on_dynamic_ref, 1, {"$dynamicRef", "$recursiveRef"});
    add(&E::on_all_of, 1, {"allOf"});
    add(&E::on_dependencies, 2, {"dependencies", "dependentRequired", "dependentSchemas"});
    add(&E::on_if, 3, {"if"});
    add(&E::on_any_of, 3, {"anyOf"});
    add(&E::on_not, 3, {"not"});
    add(&E::on_one_of, 4, {"oneOf"});
    add(&E::on_unevaluated_properties, 5, {"unevaluatedProperties"});
    add(&E::on_unevaluated_items, 5, {"unevaluatedItems"});
    add(&E::on_draft_3, 0, {"extends", "disallow", "divisibleBy"});
    return out;
  }();
  return *kKeywords;
}

Failure SchemaEvaluator::refuse(uint32_t node, std::string_view keyword, std::string_view why) const {
  const std::string what = keyword.empty() ? "The schema" : "The schema's keyword \"" + std::string(keyword) + "\"";
  return invalid_argument({what, " at ", document_.path(node), " is not supported: ", why, "."});
}

Failure SchemaEvaluator::at(uint32_t node, std::string_view keyword, const Error& error) const {
  // An error of the sets themselves has another code than one that already names its place.
  if (error.code == ErrorCode::kInvalidArgument) return error;
  return refuse(node, keyword, error.message);
}

Failure SchemaEvaluator::locate(ConjId id, const Error& error) const {
  if (error.code == ErrorCode::kInvalidArgument) return error;
  // Of several schemas for one place, the first is where a reader begins to look.
  const std::vector<Literal>& literals = conjunctions().literals(id);
  return invalid_argument({"The schema at ", (literals.empty() ? "/" : document_.path(literals[0].node)),
                           " is not supported: ", error.message, "."});
}

ConjId SchemaEvaluator::conjunction_of(uint32_t node, bool negated) {
  const json::Value& value = document_.value(node);
  if (value.is_bool()) return value.as_bool() != negated ? kAny : kNever;
  if (value.is_object() && value.as_object().empty()) return negated ? kNever : kAny;
  return conjunctions().of({node, negated});
}

ConjId SchemaEvaluator::without_strings(ConjId id) {
  if (!no_strings_) {
    const uint32_t strings = document_.add(json::Value(json::Object{{"type", "string"}}), 0);
    no_strings_ = conjunction_of(strings, true);
  }
  return conjunctions().both(id, *no_strings_);
}

Result<std::shared_ptr<const ValueSet>> SchemaEvaluator::values(ConjId id) {
  if (const auto known = known_conjunctions_.find(id); known != known_conjunctions_.end()) return known->second;
  const std::vector<Literal> literals = conjunctions().literals(id);
  std::shared_ptr<const ValueSet> out;
  if (id == kNever) out = std::make_shared<ValueSet>();
  for (const Literal literal : literals) {
    std::shared_ptr<const ValueSet> next;
    if (literal.negated) {
      QUIRE_ASSIGN(ValueSet outside, evaluate_negated(literal.node));
      next = std::make_shared<ValueSet>(std::move(outside));
    } else {
      QUIRE_ASSIGN(next, evaluate(literal.node));
    }
    if (out == nullptr) {
      out = std::move(next);
      continue;
    }
    Result<ValueSet> common = both(*out, *next);
    if (!common.ok()) return at(literal.node, literal.negated ? "not" : "allOf", common.error());
    out = std::make_shared<ValueSet>(std::move(*common));
  }
  if (out == nullptr) out = std::make_shared<ValueSet>(all());
  known_conjunctions_.emplace(id, out);
  return out;
}

Result<ValueSet> SchemaEvaluator::evaluate_negated(uint32_t node) {
  QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> inside, evaluate(node));
  Result<ValueSet> outside = complement(*inside);
  if (!outside.ok()) return at(node, "not", outside.error());
  return outside;
}

Result<std::shared_ptr<const ValueSet>> SchemaEvaluator::evaluate(uint32_t node) {
  if (const auto known = known_.find(node); known != known_.end()) return known->second;
  if (const Status left = spend(1); !left.ok()) return at(node, "", left.error());
  if (depth_ >= kMaxEvaluationDepth)
    return invalid_argument({"The schema at ", document_.path(node), " is nested too deeply."});
  if (!open_.insert(node).second) {
    return invalid_argument({"The schema at ", document_.path(node), " refers to itself without an end."});
  }
  ++depth_;
  Result<ValueSet> set = evaluate_keywords(node);
  --depth_;
  open_.erase(node);
  if (!set.ok()) return set.failure();
  auto out = std::make_shared<const ValueSet>(std::move(*set));
  known_.emplace(node, out);
  return out;
}

Result<ValueSet> SchemaEvaluator::evaluate_keywords(uint32_t node) {
  const json::Value& schema = document_.value(node);
  if (document_.is_constant(node)) {
    Result<ValueSet> constant = set_of_constant(node, schema);
    if (!constant.ok()) return at(node, "const", constant.error());
    return constant;
  }
  if (schema.is_bool()) return schema.as_bool() ? all() : none();
  if (!schema.is_object())
    return invalid_argument({"The schema at ", document_.path(node), " is neither an object nor a boolean."});
  ValueSet out = all();
  const json::Value* ref = schema.find("$ref");
  if (ref != nullptr && ref->is_string() && document_.draft() <= Draft::k7) {
    // The older drafts ignore everything beside a reference.
    QUIRE_TRY(on_ref(node, out));
    return out;
  }
  std::vector<Keyword> present;
  for (const auto& [name, value] : schema.as_object()) {
    const auto keyword = keywords().find(name);
    if (keyword == keywords().end()) continue;  // an annotation, or no word of JSON Schema at all
    const bool repeated = std::any_of(present.begin(), present.end(),
                                      [&](const Keyword& other) { return other.handler == keyword->second.handler; });
    if (!repeated) present.push_back(keyword->second);
  }
  std::stable_sort(present.begin(), present.end(),
                   [](const Keyword& a, const Keyword& b) { return a.phase < b.phase; });
  for (const Keyword& keyword : present) {
    const Status status = (this->*keyword.handler)(node, out);
    if (!status.ok()) return at(node, keyword.name, status.error());
  }
  return out;
}

Status SchemaEvaluator::narrow(uint32_t node, std::string_view keyword, ValueSet& out, const ValueSet& by) {
  Result<ValueSet> common = both(out, by);
  if (!common.ok()) return at(node, keyword, common.error());
  out = std::move(*common);
  return {};
}

Result<uint32_t> SchemaEvaluator::schema_of(uint32_t node, std::string_view keyword, const json::Value& value) const {
  if (!value.is_object() && !value.is_bool()) return refuse(node, keyword, "its value is no schema");
  return document_.index_of(value);
}

Result<std::vector<uint32_t>> SchemaEvaluator::schemas_of(uint32_t node, std::string_view keyword) const {
  const json::Value* list = find(node, keyword);
  if (list == nullptr || !list->is_array() || list->as_array().empty())
    return refuse(node, keyword, "its value is no list of schemas");
  std::vector<uint32_t> out;
  for (const json::Value& schema : list->as_array()) {
    QUIRE_ASSIGN(const uint32_t index, schema_of(node, keyword, schema));
    out.push_back(index);
  }
  return out;
}

Status SchemaEvaluator::on_ref(uint32_t node, ValueSet& out) {
  const json::Value* ref = find(node, "$ref");
  if (!ref->is_string()) return refuse(node, "$ref", "its value is no string");
  if (!document_.declares_draft() && node != 0 && find(node, "$id") != nullptr)
    return refuse(node, "$ref", "beside \"$id\" each draft reads it in another way, and \"$schema\" names none");
  const Result<uint32_t> target = document_.resolve(node, ref->as_string());
  if (!target.ok()) return refuse(node, "$ref", "\"" + ref->as_string() + "\": " + target.error().message);
  QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> set, evaluate(*target));
  return narrow(node, "$ref", out, *set);
}

Status SchemaEvaluator::on_dynamic_ref(uint32_t node, ValueSet& out) {
  for (const std::string_view keyword : {"$dynamicRef", "$recursiveRef"}) {
    const json::Value* ref = find(node, keyword);
    if (ref == nullptr) continue;
    if (!ref->is_string()) return refuse(node, keyword, "its value is no string");
    const Result<uint32_t> target = keyword == "$dynamicRef" ? document_.resolve_dynamic(node, ref->as_string())
                                                             : document_.resolve_recursive(node);
    if (!target.ok()) return refuse(node, keyword, "\"" + ref->as_string() + "\": " + target.error().message);
    QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> set, evaluate(*target));
    QUIRE_TRY(narrow(node, keyword, out, *set));
  }
  return {};
}

Status SchemaEvaluator::on_all_of(uint32_t node, ValueSet& out) {
  QUIRE_ASSIGN(const std::vector<uint32_t> branches, schemas_of(node, "allOf"));
  for (const uint32_t branch : branches) {
    QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> set, evaluate(branch));
    QUIRE_TRY(narrow(node, "allOf", out, *set));
  }
  return {};
}

Status SchemaEvaluator::on_any_of(uint32_t node, ValueSet& out) {
  QUIRE_ASSIGN(const std::vector<uint32_t> branches, schemas_of(node, "anyOf"));
  std::vector<std::shared_ptr<const ValueSet>> options;  // of each set of branches that may hold together
  if (tracks_evaluated_ && branches.size() > kMaxTrackedBranches)
    return refuse(node, "anyOf",
                  "it has too many branches for a schema with unevaluatedProperties or unevaluatedItems");
  for (const uint32_t branch : branches) {
    QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> set, evaluate(branch));
    const size_t count = options.size();
    options.push_back(set);
    if (!tracks_evaluated_) continue;
    // What several branches have evaluated together is more than what each has.
    for (size_t i = 0; i < count; ++i) {
      QUIRE_ASSIGN(ValueSet common, both(*options[i], *set));
      options.push_back(std::make_shared<ValueSet>(std::move(common)));
    }
  }
  QUIRE_ASSIGN(const ValueSet some, any_of(options));
  return narrow(node, "anyOf", out, some);
}

Status SchemaEvaluator::on_one_of(uint32_t node, ValueSet& out) {
  QUIRE_ASSIGN(const std::vector<uint32_t> branches, schemas_of(node, "oneOf"));
  std::vector<ValueSet> options;
  for (const uint32_t branch : branches) {
    QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> set, evaluate(branch));
    QUIRE_ASSIGN(ValueSet common, both(out, *set));
    options.push_back(std::move(common));
  }
  QUIRE_ASSIGN(out, exactly_one(options));
  return {};
}

Status SchemaEvaluator::on_not(uint32_t node, ValueSet& out) {
  QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "not", *find(node, "not")));
  Result<ValueSet> outside = evaluate_negated(schema);
  if (!outside.ok()) return at(node, "not", outside.error());
  return narrow(node, "not", out, *outside);
}

Status SchemaEvaluator::on_if(uint32_t node, ValueSet& out) {
  const json::Value *then_value = find(node, "then"), *else_value = find(node, "else");
  if (then_value == nullptr && else_value == nullptr && !tracks_evaluated_) return {};
  QUIRE_ASSIGN(const uint32_t condition, schema_of(node, "if", *find(node, "if")));
  QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> inside, evaluate(condition));
  QUIRE_ASSIGN(ValueSet yes, both(out, *inside));
  QUIRE_ASSIGN(const ValueSet outside, complement(*inside));
  QUIRE_ASSIGN(ValueSet no, both(out, outside));
  if (then_value != nullptr) {
    QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "then", *then_value));
    QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> set, evaluate(schema));
    QUIRE_TRY(narrow(node, "then", yes, *set));
  }
  if (else_value != nullptr) {
    QUIRE_ASSIGN(const uint32_t schema, schema_of(node, "else", *else_value));
    QUIRE_ASSIGN(const std::shared_ptr<const ValueSet> set, evaluate(schema));
    QUIRE_TRY(narrow(node, "else", no, *set));
  }
  QUIRE_ASSIGN(out, either(yes, no));
  return {};
}

Status SchemaEvaluator::on_draft_3(uint32_t node, ValueSet&) {
  for (const std::string_view keyword : {"extends", "disallow", "divisibleBy"}) {
    if (find(node, keyword) != nullptr && document_.draft() == Draft::k3)
      return refuse(node, keyword, "it is of draft 3");
  }
  return {};
}

}  // namespace quire::grammar::schema
