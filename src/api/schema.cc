// SPDX-License-Identifier: Apache-2.0
// Checking requests against the tables, and making documents of them.
#include "api/schema.h"

#include <algorithm>
#include <cmath>

#include "api/json_writer.h"

namespace quire::api {
namespace {

constexpr size_t kMaxDepth = 64;          // vLLM's bound on nesting
constexpr size_t kMaxValues = 1'250'000;  // a million token ids and some more; each takes about 56 bytes

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

const char* type_phrase(FieldType type) {
  switch (type) {
    case FieldType::kBool:
      return "true or false";
    case FieldType::kInt:
      return "an integer";
    case FieldType::kNumber:
      return "a number";
    case FieldType::kString:
      return "a string";
    case FieldType::kStrings:
      return "a list of strings";
    case FieldType::kStringOrStrings:
      return "a string or a list of strings";
    case FieldType::kStringOrParts:
      return "a string or a list of objects";
    case FieldType::kInts:
      return "a list of token ids";
    case FieldType::kPrompt:
      return "a string, a list of strings, a list of token ids or a list of such lists";
    case FieldType::kObject:
      return "an object";
    case FieldType::kObjects:
      return "a list of objects";
    case FieldType::kStringMap:
      return "an object with a number for each token id";
    case FieldType::kAny:
      return "any value";
  }
  return "";
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

std::string range_text(const Field& f) {
  const bool low = f.min > -kNoBound, high = f.max < kNoBound;
  if (low && high) return (f.above_min ? "above " : "from ") + bound_text(f.min) + " to " + bound_text(f.max);
  if (low) return (f.above_min ? "above " : "at least ") + bound_text(f.min);
  if (high) return "at most " + bound_text(f.max);
  return "";
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
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
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace

ApiStatus check_field(const json::Value& value, const Field& field, const std::string& where) {
  if (field.refused != nullptr && !is_neutral(value)) return bad_request(where + " " + field.refused, where);
  if (!has_type(value, field.type)) {
    return bad_request(where + " must be " + type_phrase(field.type) + ", got " + shorten(json::dump(value)) + ".",
                       where);
  }
  if (field.no_empty_list && value.is_array() && value.as_array().empty()) {
    return bad_request(where + " must not be empty.", where);
  }
  if (field.no_empty_text && has_empty_text(value)) {
    return bad_request(where + (value.is_string() ? " must not be empty." : " must not contain an empty string."),
                       where);
  }
  if (field.type == FieldType::kInt || field.type == FieldType::kNumber) {
    // Exact for the bounds that there are: an integer that is no double is beyond 2^53, where only 2^63 is a bound.
    const double number = value.as_double();
    const bool low = field.above_min ? number <= field.min : number < field.min;
    if (low || number > field.max || std::isnan(number)) {
      return bad_request(where + " must be " + range_text(field) + ", got " + shorten(json::dump(value)) + ".", where);
    }
  }
  if (field.choices != nullptr && value.is_string()) {
    const std::vector<std::string> choices = split(field.choices, '|');
    if (std::find(choices.begin(), choices.end(), value.as_string()) == choices.end()) {
      std::string list = choices[0];
      for (size_t i = 1; i < choices.size(); ++i) list += (i + 1 == choices.size() ? " or " : ", ") + choices[i];
      return bad_request(where + " must be " + list + ", got " + shorten(json::dump(value)) + ".", where);
    }
  }
  return Ok{};
}

ApiResult<Body> Body::parse(std::string_view text, const Schema& schema) {
  json::Limits limits;
  limits.max_depth = kMaxDepth;
  limits.max_values = kMaxValues;
  auto parsed = json::parse(text, limits);
  if (!parsed.ok()) return bad_request("the body is not JSON: " + parsed.error().message);
  if (!parsed->is_object()) return bad_request("the body must be a JSON object.");
  Body body;
  body.json_ = std::move(*parsed);
  // What has no row is not checked, so nothing below may find it: readers are shared by forms with other fields. It
  // goes first, so that looking a field up is quick however many members a request brings.
  std::vector<std::string_view> names;
  for (const Field& field : schema.fields) names.emplace_back(field.name);
  std::sort(names.begin(), names.end());
  std::erase_if(body.json_.as_object(), [&](const json::Member& member) {
    return !std::binary_search(names.begin(), names.end(), std::string_view(member.first));
  });
  for (const Field& field : schema.fields) {
    const json::Value* value = body.get(field.name);
    if (value == nullptr) {
      if (field.required) return bad_request(std::string(field.name) + " is missing; it is required.", field.name);
      continue;
    }
    ApiStatus checked = check_field(*value, field, field.name);
    if (!checked.ok()) return checked.error();
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

namespace {

// The JSON Schemas that a value may have, one of which must fit; none: any value. Null is added by the caller.
std::vector<std::string> schemas_of(const Field& f) {
  const std::string text = f.no_empty_text ? R"({"type":"string","minLength":1})" : R"({"type":"string"})";
  const std::string least = f.no_empty_list ? R"(,"minItems":1)" : "";
  const auto list_of = [&](const std::string& item) { return R"({"type":"array","items":)" + item + least + "}"; };
  const std::string tokens = list_of(R"({"type":"integer","minimum":0,"maximum":2147483647})");
  const std::string objects = list_of(R"({"type":"object"})");
  switch (f.type) {
    case FieldType::kBool:
      return {R"({"type":"boolean"})"};
    case FieldType::kInt:
      return {R"({"type":"integer"})"};
    case FieldType::kNumber:
      return {R"({"type":"number"})"};
    case FieldType::kString:
      return {text};
    case FieldType::kStrings:
      return {list_of(text)};
    case FieldType::kStringOrStrings:
      return {text, list_of(text)};
    case FieldType::kStringOrParts:
      return {text, objects};
    case FieldType::kInts:
      return {tokens};
    case FieldType::kPrompt:
      return {text, list_of(text), tokens, list_of(tokens)};
    case FieldType::kObject:
      return {R"({"type":"object"})"};
    case FieldType::kObjects:
      return {objects};
    case FieldType::kStringMap:
      return {R"({"type":"object","additionalProperties":{"type":"number"}})"};
    case FieldType::kAny:
      return {};
  }
  return {};
}

// The only values that a refused field may have; see is_neutral().
const char* neutral_enum(FieldType type) {
  switch (type) {
    case FieldType::kBool:
      return "[false,null]";
    case FieldType::kInt:
    case FieldType::kNumber:
      return "[0,null]";
    case FieldType::kString:
      return R"(["",null])";
    case FieldType::kStrings:
    case FieldType::kInts:
    case FieldType::kObjects:
      return "[[],null]";
    case FieldType::kStringOrStrings:
    case FieldType::kStringOrParts:
    case FieldType::kPrompt:
      return R"(["",[],null])";
    case FieldType::kObject:
    case FieldType::kStringMap:
      return "[{},null]";
    case FieldType::kAny:
      return R"([false,0,"",[],{},null])";
  }
  return "[null]";
}

// What the server does with a value, in the words of JSON Schema. A null is as good as an absent field, so only a
// required one may not be null.
void write_types(JsonWriter& w, const Field& f) {
  std::vector<std::string> schemas = schemas_of(f);
  if (schemas.size() == 1) {  // {"type":"string", ...}: null joins its type
    constexpr std::string_view kHead = "{\"type\":\"";
    const std::string_view one = schemas[0];
    const size_t end = one.find('"', kHead.size());
    const std::string type = "\"" + std::string(one.substr(kHead.size(), end - kHead.size())) + "\"";
    w.key("type").raw(f.required ? type : "[" + type + ",\"null\"]");
    if (end + 2 < one.size()) w.raw(one.substr(end + 2, one.size() - end - 3));
  } else if (!schemas.empty()) {
    if (!f.required) schemas.emplace_back(R"({"type":"null"})");
    w.key("anyOf").open_array();
    for (const std::string& one : schemas) w.raw(one);
    w.close_array();
  }
  if (f.refused != nullptr) {
    w.key("enum").raw(neutral_enum(f.type));
  } else if (f.choices != nullptr) {
    w.key("enum").open_array();
    for (const std::string& choice : split(f.choices, '|')) w.string(choice);
    if (!f.required) w.null();
    w.close_array();
  }
}

void write_field(JsonWriter& w, const Field& f) {
  w.key(f.name).open_object();
  write_types(w, f);
  if (f.min > -kNoBound) w.key(f.above_min ? "exclusiveMinimum" : "minimum").raw(bound_text(f.min));
  if (f.max < kNoBound) w.key("maximum").raw(bound_text(f.max));
  if (f.shape != nullptr) w.raw(f.shape);
  std::string doc = f.doc;
  if (f.refused != nullptr) doc += doc.empty() ? "Refused." : " Refused for now.";
  if (*f.fallback != '\0') doc += std::string(doc.empty() ? "" : " ") + "Default: " + f.fallback + ".";
  w.member("description", doc).close_object();
}

void write_schema(JsonWriter& w, const Schema& schema) {
  w.key(schema.name).open_object().member("type", "object").member("description", schema.doc);
  w.member_bool("additionalProperties", true).key("properties").open_object();
  for (const Field& field : schema.fields) write_field(w, field);
  w.close_object().key("required").open_array();
  for (const Field& field : schema.fields) {
    if (field.required) w.string(field.name);
  }
  w.close_array().close_object();
}

// The schemas that routes use, each once.
std::vector<const Schema*> used_schemas() {
  std::vector<const Schema*> out;
  for (const RouteDoc& route : route_docs()) {
    if (route.schema != nullptr && std::find(out.begin(), out.end(), route.schema) == out.end()) {
      out.push_back(route.schema);
    }
  }
  return out;
}

void write_operation(JsonWriter& w, const RouteDoc& route) {
  const std::string_view path = route.path;
  std::string method = route.method;
  std::transform(method.begin(), method.end(), method.begin(), [](unsigned char c) { return std::tolower(c); });
  w.key(method).open_object().member("summary", route.summary);
  if (const size_t open = path.find('{'); open != std::string_view::npos) {
    w.key("parameters").open_array().open_object();
    w.member("name", path.substr(open + 1, path.find('}') - open - 1)).member("in", "path");
    w.member_bool("required", true).key("schema").raw(R"({"type":"string"})").close_object().close_array();
  }
  if (route.schema != nullptr) {
    w.key("requestBody").open_object().member_bool("required", true).key("content").open_object();
    w.key("application/json").open_object().key("schema").open_object();
    w.member("$ref", std::string("#/components/schemas/") + route.schema->name);
    w.close_object().close_object().close_object().close_object();
  }
  w.key("responses").open_object().key("200").open_object().member("description", "The answer.");
  w.key("content").open_object().key(route.content).raw("{}");
  if (route.schema != nullptr) w.key("text/event-stream").raw("{}");
  w.close_object().close_object();
  w.key("default").raw(R"({"description":"What was wrong.","content":{"application/json":{}}})");
  w.close_object().close_object();
}

}  // namespace

std::string openapi_json(std::string_view version) {
  JsonWriter w;
  w.open_object().member("openapi", "3.1.0").key("info").open_object();
  w.member("title", "quire").member("version", version).close_object();
  w.key("paths").open_object();
  std::string_view last;
  for (const RouteDoc& route : route_docs()) {
    if (route.path != last) {
      if (!last.empty()) w.close_object();
      w.key(route.path).open_object();
    }
    write_operation(w, route);
    last = route.path;
  }
  w.close_object().close_object().key("components").open_object().key("schemas").open_object();
  for (const Schema* schema : used_schemas()) write_schema(w, *schema);
  w.close_object().close_object().close_object();
  return w.take();
}

std::string api_markdown() {
  std::string out =
      "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
      "<!-- Generated by `quire schema markdown` from the tables in src/api/schema_tables.cc. -->\n"
      "# HTTP API\n\n"
      "This page is for developers of clients: it lists every route of the server and every field of its requests.\n\n"
      "The names and shapes are vLLM's and OpenAI's, so that their clients work unchanged. A field that is not listed "
      "is\n"
      "accepted and ignored. A wrong type or range is a 400 whose `param` names the field.\n\n"
      "## Routes\n\n| Method | Path | What it does | Body |\n|---|---|---|---|\n";
  for (const RouteDoc& route : route_docs()) {
    out += std::string("| ") + route.method + " | `" + route.path + "` | " + route.summary + " | ";
    if (route.schema != nullptr) {
      std::string anchor = route.schema->name;
      std::transform(anchor.begin(), anchor.end(), anchor.begin(), [](unsigned char c) { return std::tolower(c); });
      out += "[" + std::string(route.schema->name) + "](#" + anchor + ")";
    }
    out += " |\n";
  }
  for (const Schema* schema : used_schemas()) {
    out += std::string("\n## ") + schema->name + "\n\n" + schema->doc +
           "\n\n| Field | Type | Default | Range | |\n|---|---|---|---|---|\n";
    for (const Field& f : schema->fields) {
      std::string range = range_text(f);
      if (f.choices != nullptr) {
        for (const std::string& choice : split(f.choices, '|')) range += (range.empty() ? "" : ", ") + choice;
      }
      std::string doc = f.doc;
      if (f.refused != nullptr) doc += (doc.empty() ? "" : " ") + std::string("**Refused** for now.");
      out += std::string("| `") + f.name + "`" + (f.required ? " (required)" : "") + " | " + type_phrase(f.type) +
             " | " + f.fallback + " | " + range + " | " + doc + " |\n";
    }
  }
  return out;
}

}  // namespace quire::api
