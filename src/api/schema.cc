// SPDX-License-Identifier: Apache-2.0
// Checks requests against the tables of fields.
#include "api/schema.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <mutex>
#include <set>

#include "api/json_writer.h"
#include "base/log.h"
#include "base/suggest.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

constexpr size_t kMaxDepth = 64;          // vLLM's bound on nesting
constexpr size_t kMaxValues = 1'250'000;  // a million token ids and some more; a value takes about 56 bytes
constexpr size_t kMostIgnored = 100;      // fields without a row that the log names
constexpr size_t kLongestName = 64;

// Says in the log, once for each name, that a field of requests has no effect, as a misspelt one has none. A name that
// no client would mean as one is not worth a line.
void note_ignored(std::string_view name, const Schema& schema) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; };
  if (name.empty() || name.size() > kLongestName || !std::all_of(name.begin(), name.end(), fits)) return;
  static std::mutex mutex;
  static std::set<std::string> noted;
  {
    const std::lock_guard lock(mutex);
    if (noted.size() == kMostIgnored || !noted.insert(schema.name + ("." + std::string(name))).second) return;
  }
  std::vector<std::string> known;
  for (const Field& field : schema.fields) known.emplace_back(field.name);
  log_warn("Requests have the field '{}', which is ignored{}", name, did_you_mean(name, known));
}

bool is_neutral(const json::Value& v) {
  switch (v.kind()) {
    case json::Kind::kNull:
      return true;
    case json::Kind::kBool:
      return !v.as_bool();
    case json::Kind::kInt:
    case json::Kind::kDouble:
      return v.as_double() == 0;
    case json::Kind::kString:
      return v.as_string().empty();
    case json::Kind::kArray:
      return v.as_array().empty();
    case json::Kind::kObject:
      return v.as_object().empty();
  }
  return false;
}

bool whole_number(const json::Value& v) {
  if (v.is_int()) return true;
  if (!v.is_number()) return false;
  const double d = v.as_double();
  return std::isfinite(d) && d == std::floor(d) && std::abs(d) < 9e15;
}

template <typename Check>
bool all_of(const json::Value& v, const Check& check) {
  return v.is_array() && std::all_of(v.as_array().begin(), v.as_array().end(), check);
}

bool is_token(const json::Value& v) {
  return v.is_int() && v.as_int() >= 0 && v.as_int() <= std::numeric_limits<int32_t>::max();
}

bool has_type(const json::Value& v, FieldType type) {
  const auto text = [](const json::Value& x) { return x.is_string(); };
  const auto object = [](const json::Value& x) { return x.is_object(); };
  const auto tokens = [](const json::Value& x) { return all_of(x, is_token); };
  switch (type) {
    case FieldType::kBool:
      return v.is_bool();
    case FieldType::kInt:
      return whole_number(v);
    case FieldType::kNumber:
      return v.is_number();
    case FieldType::kString:
      return v.is_string();
    case FieldType::kStrings:
      return all_of(v, text);
    case FieldType::kStringOrStrings:
      return v.is_string() || all_of(v, text);
    case FieldType::kStringOrParts:
      return v.is_string() || all_of(v, object);
    case FieldType::kInts:
      return tokens(v);
    case FieldType::kPrompt:
      return v.is_string() || all_of(v, text) || tokens(v) || all_of(v, tokens);
    case FieldType::kObject:
      return v.is_object();
    case FieldType::kObjects:
      return all_of(v, object);
    case FieldType::kStringMap:
      return v.is_object() && std::all_of(v.as_object().begin(), v.as_object().end(),
                                          [](const json::Member& m) { return m.second.is_number(); });
    case FieldType::kAny:
      return true;
  }
  return false;
}

bool has_empty_text(const json::Value& v) {
  if (v.is_string()) return v.as_string().empty();
  return v.is_array() && std::any_of(v.as_array().begin(), v.as_array().end(), [](const json::Value& item) {
           return item.is_string() && item.as_string().empty();
         });
}

std::string shorten(std::string text) {
  constexpr size_t kMost = 200;
  if (text.size() <= kMost) return text;
  return utf8::beginning(text, kMost) + "...";
}

}  // namespace

TypeText type_text(FieldType type) {
  switch (type) {
    case FieldType::kBool:
      return {"true or false", "[false,null]"};
    case FieldType::kInt:
      return {"an integer", "[0,null]"};
    case FieldType::kNumber:
      return {"a number", "[0,null]"};
    case FieldType::kString:
      return {"a string", R"(["",null])"};
    case FieldType::kStrings:
      return {"a list of strings", "[[],null]"};
    case FieldType::kStringOrStrings:
      return {"a string or a list of strings", R"(["",[],null])"};
    case FieldType::kStringOrParts:
      return {"a string or a list of objects", R"(["",[],null])"};
    case FieldType::kInts:
      return {"a list of token ids", "[[],null]"};
    case FieldType::kPrompt:
      return {"a string, a list of strings, a list of token ids or a list of such lists", R"(["",[],null])"};
    case FieldType::kObject:
      return {"an object", "[{},null]"};
    case FieldType::kObjects:
      return {"a list of objects", "[[],null]"};
    case FieldType::kStringMap:
      return {"an object with a number for each token id", "[{},null]"};
    case FieldType::kAny:
      return {"any value", R"([false,0,"",[],{},null])"};
  }
  return {};
}

// A bound of 2^63 stands for the largest integer, which a double cannot hold.
std::string bound_text(double bound) {
  JsonWriter w;
  if (bound >= 9223372036854775808.0) return w.integer(std::numeric_limits<int64_t>::max()).take();
  if (bound <= -9223372036854775808.0) return w.integer(std::numeric_limits<int64_t>::min()).take();
  if (bound == std::floor(bound) && std::abs(bound) < 9e18) {
    w.integer(static_cast<int64_t>(bound));
  } else {
    w.number(bound);
  }
  return w.take();
}

std::string range_text(const FieldRules& rules) {
  const bool low = rules.min > -kNoBound, high = rules.max < kNoBound;
  const std::string min = bound_text(rules.min), max = bound_text(rules.max);
  if (low && high) return (rules.above_min ? "above " : "from ") + min + " to " + max;
  if (low) return (rules.above_min ? "above " : "at least ") + min;
  return high ? "at most " + max : "";
}

ApiStatus check_field(const json::Value& value, const Field& field, const std::string& where) {
  const FieldRules& rules = field.rules;
  const auto must_be = [&](const std::string& what) {
    return bad_field(where, {"must be ", what, ", got ", shorten(json::dump(value)), "."});
  };
  if (rules.refused != nullptr && !is_neutral(value)) return bad_field(where, rules.refused);
  if (!has_type(value, field.type)) {
    const bool too_large = field.type == FieldType::kInt && value.is_number() &&
                           std::abs(value.as_double()) > 1e15;  // a seed of 64 bits without a sign, or 1e20
    if (!too_large) return must_be(type_text(field.type).phrase);
    return must_be("an integer from -9223372036854775808 to 9223372036854775807, written with digits alone");
  }
  if (rules.no_empty_list && value.is_array() && value.as_array().empty()) {
    return bad_field(where, "must not be empty.");
  }
  if (rules.no_empty_text && has_empty_text(value)) {
    return bad_field(where, value.is_string() ? "must not be empty." : "must not contain an empty string.");
  }
  if (field.type == FieldType::kInt || field.type == FieldType::kNumber) {
    // Exact although integers above 2^53 are rounded: the only bound beyond 2^53 is 2^63.
    const double number = value.as_double();
    const bool low = rules.above_min ? number <= rules.min : number < rules.min;
    if (low || number > rules.max || std::isnan(number)) return must_be(range_text(rules));
  }
  const auto& choices = rules.choices;
  if (!choices.empty() && value.is_string() &&
      std::find(choices.begin(), choices.end(), value.as_string()) == choices.end()) {
    std::string list;
    for (size_t i = 0; i < choices.size(); ++i) {
      list += i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ";
      list += choices[i];
    }
    return must_be(list);
  }
  return Ok{};
}

json::Limits body_limits() {
  json::Limits limits;
  limits.max_depth = kMaxDepth;
  limits.max_values = kMaxValues;
  return limits;
}

ApiResult<Body> Body::parse(std::string_view text, const Schema& schema) {
  auto parsed = json::parse(text, body_limits());
  if (!parsed.ok()) return bad_request({"the body is ", parsed.error().message});
  if (!parsed->is_object()) return bad_request("the body must be a JSON object.");
  Body body;
  body.json_ = std::move(*parsed);
  // A field without a row is not checked, so no reader may find it (readers are shared by endpoints with other rows).
  // It is dropped first, so that a look-up is quick however many members a request has.
  std::vector<std::string_view> names;
  for (const Field& field : schema.fields) names.emplace_back(field.name);
  std::sort(names.begin(), names.end());
  std::erase_if(body.json_.as_object(), [&](const json::Member& member) {
    if (std::binary_search(names.begin(), names.end(), std::string_view(member.first))) return false;
    if (!member.second.is_null()) note_ignored(member.first, schema);
    return true;
  });
  for (const Field& field : schema.fields) {
    const json::Value* value = body.get(field.name);
    if (value == nullptr) {
      if (field.rules.required) return bad_field(field.name, "is missing; it is required.");
      continue;
    }
    QUIRE_TRY(check_field(*value, field, field.name));
  }
  return body;
}

const json::Value* Body::get(std::string_view name) const {
  const json::Value* value = json_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool Body::boolean(std::string_view name, bool fallback) const {
  const json::Value* value = get(name);
  return value == nullptr ? fallback : value->as_bool();
}

std::optional<int64_t> Body::integer(std::string_view name) const {
  const json::Value* value = get(name);
  if (value == nullptr) return std::nullopt;
  return value->is_int() ? value->as_int() : static_cast<int64_t>(value->as_double());
}

std::optional<double> Body::number(std::string_view name) const {
  const json::Value* value = get(name);
  if (value == nullptr) return std::nullopt;
  return value->as_double();
}

std::string Body::string(std::string_view name, std::string_view fallback) const {
  const json::Value* value = get(name);
  return value == nullptr ? std::string(fallback) : value->as_string();
}

std::vector<std::string> Body::strings(std::string_view name) const {
  const json::Value* value = get(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->as_string()};
  std::vector<std::string> out;
  for (const json::Value& item : value->as_array()) out.push_back(item.as_string());
  return out;
}

std::vector<int32_t> Body::ints(std::string_view name) const {
  const json::Value* value = get(name);
  if (value == nullptr) return {};
  std::vector<int32_t> out;
  for (const json::Value& item : value->as_array()) out.push_back(static_cast<int32_t>(item.as_int()));
  return out;
}

json::Value Body::take(std::string_view name) const {
  const json::Value* value = get(name);
  return value == nullptr ? json::Value() : *value;
}

}  // namespace quire::api
