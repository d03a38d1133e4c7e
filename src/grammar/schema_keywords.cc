// SPDX-License-Identifier: Apache-2.0
// SchemaEvaluator: the keywords about types, listed values, numbers and strings.
#include <algorithm>
#include <cmath>

#include "grammar/schema_evaluator.h"
#include "grammar/schema_formats.h"
#include "grammar/schema_patterns.h"

namespace quire::grammar::schema {

namespace {

constexpr int64_t kMaxKeywordCount = int64_t{1} << 31;
constexpr size_t kMaxValues = 100'000;
constexpr int64_t kPatternFuel = 20'000;
constexpr int64_t kPatternWork = 3'000'000;  // steps of the store

// Adds one type of JSON Schema to a set.
bool add_type(ValueSet& out, std::string_view type, NumberSets& numbers) {
  if (type == "null") {
    out.has_null = true;
  } else if (type == "boolean") {
    out.has_true = out.has_false = true;
  } else if (type == "number") {
    out.numbers = NumberSets::all();
  } else if (type == "integer") {
    NumberSet integers;
    integers.range.integer = true;
    out.numbers = numbers.either(out.numbers, integers);
  } else if (type == "string") {
    out.strings = StringSets::all();
  } else if (type == "array") {
    out.arrays.assign(1, {});
  } else if (type == "object") {
    out.objects.assign(1, {});
  } else {
    return false;
  }
  return true;
}

}  // namespace

Result<std::optional<int64_t>> SchemaEvaluator::count_of(uint32_t node, std::string_view keyword) const {
  const json::Value* value = find(node, keyword);
  if (value == nullptr) return std::optional<int64_t>();
  if (value->is_number()) {
    const double number = value->as_double();
    if (number >= 0 && number == std::floor(number))
      return std::optional<int64_t>(static_cast<int64_t>(std::min(number, static_cast<double>(kMaxKeywordCount))));
  }
  return refuse(node, keyword, "its value is no count");
}

Result<std::optional<Decimal>> SchemaEvaluator::number_of(uint32_t node, std::string_view keyword) const {
  const json::Value* value = find(node, keyword);
  if (value == nullptr || value->is_bool()) return std::optional<Decimal>();
  if (!value->is_number()) return refuse(node, keyword, "its value is no number");
  std::optional<Decimal> out = decimal_of(*value);
  if (!out) return refuse(node, keyword, "its value is too large or too small");
  return out;
}

Status SchemaEvaluator::on_type(uint32_t node, ValueSet& out) {
  const json::Value* type = find(node, "type");
  ValueSet some;
  auto add = [&](const json::Value& name) -> Status {
    if (name.is_string() && name.as_string() == "any" && document_.draft() == Draft::k3) {
      some = all();
      return {};
    }
    if (!name.is_string() || !add_type(some, name.as_string(), numbers()))
      return refuse(node, "type", "its value is none of JSON Schema's types");
    return {};
  };
  if (type->is_array()) {
    for (const json::Value& name : type->as_array()) QUIRE_TRY(add(name));
  } else {
    QUIRE_TRY(add(*type));
  }
  return narrow(node, "type", out, some);
}

// Exactly this value.
Result<ValueSet> SchemaEvaluator::set_of_constant(uint32_t node, const json::Value& value) {
  ValueSet out;
  auto constant = [&](const json::Value& part) {
    return conjunctions().of({document_.add_constant(part, node), false});
  };
  switch (value.kind()) {
    case json::Kind::kNull:
      out.has_null = true;
      break;
    case json::Kind::kBool:
      (value.as_bool() ? out.has_true : out.has_false) = true;
      break;
    case json::Kind::kInt:
    case json::Kind::kDouble: {
      const std::optional<Decimal> number = decimal_of(value);
      if (!number) return unsupported("a number is too large or too small");
      out.numbers.values.push_back(*number);
      break;
    }
    case json::Kind::kString:
      out.strings = StringSets::of_values({value.as_string()});
      break;
    case json::Kind::kArray: {
      ItemSpec items;
      if (value.as_array().size() > kMaxPrefix) return unsupported("its list of items is too long");
      for (const json::Value& item : value.as_array()) items.prefix.push_back(constant(item));
      items.rest = kNever;
      ArrayShape& shape = out.arrays.emplace_back();
      shape.min = static_cast<int64_t>(items.prefix.size());
      shape.max = shape.min;
      shape.specs.push_back(std::make_shared<ItemSpec>(std::move(items)));
      break;
    }
    case json::Kind::kObject: {
      PropertySpec members;
      ObjectShape& shape = out.objects.emplace_back();
      for (const auto& [name, member] : value.as_object()) {
        members.properties.emplace_back(name, constant(member));
        shape.required.push_back(name);
      }
      members.additional = kNever;
      members.any_order = true;
      shape.specs.push_back(make_spec(std::move(members)));
      break;
    }
  }
  return out;
}

Status SchemaEvaluator::on_const(uint32_t node, ValueSet& out) {
  QUIRE_ASSIGN(const ValueSet constant, set_of_constant(node, *find(node, "const")));
  return narrow(node, "const", out, constant);
}

Status SchemaEvaluator::on_enum(uint32_t node, ValueSet& out) {
  const json::Value* list = find(node, "enum");
  if (!list->is_array()) return refuse(node, "enum", "its value is no list");
  if (list->as_array().size() > kMaxValues) return refuse(node, "enum", "it lists too many values");
  ValueSet some;
  std::vector<std::string> strings;
  std::vector<Decimal> numbers;
  for (const json::Value& value : list->as_array()) {
    if (value.is_string()) {
      strings.push_back(value.as_string());
      continue;
    }
    QUIRE_TRY(spend(value.is_object() || value.is_array() ? 20 : 3));
    QUIRE_ASSIGN(ValueSet constant, set_of_constant(node, value));
    some.has_null |= constant.has_null;
    some.has_true |= constant.has_true;
    some.has_false |= constant.has_false;
    for (const Decimal& number : constant.numbers.values) numbers.push_back(number);
    for (ArrayShape& shape : constant.arrays) some.arrays.push_back(std::move(shape));
    for (ObjectShape& shape : constant.objects) some.objects.push_back(std::move(shape));
  }
  some.numbers = NumberSets::of_values(std::move(numbers));
  some.strings = StringSets::of_values(std::move(strings));
  return narrow(node, "enum", out, some);
}

Status SchemaEvaluator::on_number(uint32_t node, ValueSet& out) {
  NumberRange range;
  QUIRE_ASSIGN(range.low, number_of(node, "minimum"));
  QUIRE_ASSIGN(range.high, number_of(node, "maximum"));
  // Up to draft 4, exclusiveMinimum is a boolean about minimum; later a bound of its own.
  for (const bool low : {true, false}) {
    const std::string_view keyword = low ? "exclusiveMinimum" : "exclusiveMaximum";
    std::optional<Decimal>& bound = low ? range.low : range.high;
    bool& open = low ? range.low_open : range.high_open;
    const json::Value* value = find(node, keyword);
    if (value == nullptr) continue;
    if (value->is_bool()) {
      open = value->as_bool();
      continue;
    }
    QUIRE_ASSIGN(const std::optional<Decimal> exclusive, number_of(node, keyword));
    const int order = bound ? compare(*exclusive, *bound) : 0;
    if (bound && (low ? order < 0 : order > 0)) continue;
    bound = exclusive;
    open = true;
  }
  if (find(node, "multipleOf") != nullptr) {
    QUIRE_ASSIGN(const std::optional<Decimal> divisor, number_of(node, "multipleOf"));
    if (!divisor || divisor->negative || divisor->is_zero())
      return refuse(node, "multipleOf", "its value is no positive number");
    const bool small = divisor->digits.size() + static_cast<size_t>(std::max<int64_t>(0, divisor->exponent)) <= 9;
    if (!small || divisor->exponent < -20) return refuse(node, "multipleOf", "its value has too many digits");
    range.divisors.push_back(*divisor);
  }
  NumberSet set;
  set.range = std::move(range);
  out.numbers = numbers().both(out.numbers, set);
  return {};
}

Status SchemaEvaluator::on_length(uint32_t node, ValueSet& out) {
  QUIRE_ASSIGN(const std::optional<int64_t> min, count_of(node, "minLength"));
  QUIRE_ASSIGN(const std::optional<int64_t> max, count_of(node, "maxLength"));
  out.strings = strings().both(out.strings, StringSets::of_length(min.value_or(0), max));
  return {};
}

Result<Regex> SchemaEvaluator::pattern_of(uint32_t node, std::string_view keyword, const std::string& pattern) {
  if (const auto known = patterns_.find(pattern); known != patterns_.end()) return known->second;
  // Errors name what the schema says, so the pattern itself is tried first.
  Result<Regex> regex = parse_regex(store(), pattern, {.search = true});
  if (!regex.ok()) return refuse(node, keyword, "\"" + pattern + "\": " + regex.error().message);
  if (const std::string shorter = shorter_search(pattern); shorter != pattern) {
    const Result<Regex> same = parse_regex(store(), shorter, {.search = true});
    if (same.ok()) regex = same;
  }
  const Regex text = store().both(*regex, store().any_text());
  // All patterns of a schema share this work.
  if (store().work() > kPatternWork || !store().is_nothing(text, kPatternFuel))
    return refuse(node, keyword, "\"" + pattern + "\": it is too complex");
  patterns_.emplace(pattern, text);
  return text;
}

Status SchemaEvaluator::on_pattern(uint32_t node, ValueSet& out) {
  const json::Value* pattern = find(node, "pattern");
  if (!pattern->is_string()) return refuse(node, "pattern", "its value is no string");
  // Where strings are excluded, the pattern has no effect.
  if (out.strings.form == StringSet::Form::kValues && out.strings.values.empty()) return {};
  QUIRE_ASSIGN(const Regex regex, pattern_of(node, "pattern", pattern->as_string()));
  out.strings = strings().both(out.strings, StringSets::of_regex(regex));
  return {};
}

Status SchemaEvaluator::on_format(uint32_t node, ValueSet& out) {
  const json::Value* format = find(node, "format");
  if (!format->is_string()) return refuse(node, "format", "its value is no string");
  if (out.strings.form == StringSet::Form::kValues && out.strings.values.empty()) return {};
  const std::string& name = format->as_string();
  const bool host = name == "hostname" || name == "host-name";
  if (host && document_.declares_draft() && document_.draft() >= Draft::k7) {
    return refuse(node, "format",
                  "the host names of the draft in \"$schema\" include encoded international ones, which no grammar can "
                  "check; without \"$schema\" they are left out");
  }
  auto known = formats_.find(name);
  if (known == formats_.end()) {
    QUIRE_ASSIGN(const std::optional<Regex> regex, format_regex(store(), name, document_.draft() <= Draft::k6));
    known = formats_.emplace(name, regex).first;
  }
  if (known->second) out.strings = strings().both(out.strings, StringSets::of_regex(*known->second));
  return {};
}

// Draft 7 lets a validator look into strings that hold documents; later drafts say that these keywords are annotations.
Status SchemaEvaluator::on_content(uint32_t node, ValueSet& out) {
  if (document_.draft() != Draft::k7 || strings().is_none(out.strings)) return {};
  const bool encoding = find(node, "contentEncoding") != nullptr;
  return refuse(node, encoding ? "contentEncoding" : "contentMediaType",
                "draft 7 leaves open whether the content is checked; later drafts do not check it");
}

}  // namespace quire::grammar::schema
