// SPDX-License-Identifier: Apache-2.0
// Types argument values by the schemas of their tools.
#include "markup/convert.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace quire::markup {
namespace {

constexpr int kMaxValueDepth = 64;  // of nested values
constexpr int kMaxReferences = 32;  // "$ref" to "$ref" to ...
constexpr int kMaxNodes = 512;      // schemas that types() looks at

struct TypeName {
  std::string_view name;
  bool Types::*member;
};
constexpr std::array kTypeNames = {
    TypeName{"null", &Types::null},     TypeName{"none", &Types::null},      TypeName{"integer", &Types::integer},
    TypeName{"long", &Types::integer},  TypeName{"short", &Types::integer},  TypeName{"unsigned", &Types::integer},
    TypeName{"number", &Types::number}, TypeName{"double", &Types::number},  TypeName{"boolean", &Types::boolean},
    TypeName{"bool", &Types::boolean},  TypeName{"binary", &Types::boolean}, TypeName{"object", &Types::object},
    TypeName{"dict", &Types::object},   TypeName{"array", &Types::array},    TypeName{"arr", &Types::array},
    TypeName{"list", &Types::array},    TypeName{"sequence", &Types::array}, TypeName{"string", &Types::string},
    TypeName{"str", &Types::string},    TypeName{"text", &Types::string},    TypeName{"varchar", &Types::string},
    TypeName{"char", &Types::string},   TypeName{"enum", &Types::string},
};

void add_type(Types& types, std::string_view name) {
  for (const TypeName& row : kTypeNames) {
    if (row.name == name) {
      types.*row.member = true;
      return;
    }
  }
  if (name.starts_with("int") || name.starts_with("uint")) types.integer = true;
  if (name.starts_with("float")) types.number = true;
}

void add_kind(Types& types, const json::Value& value) {
  switch (value.kind()) {
    case json::Kind::kNull:
      types.null = true;
      break;
    case json::Kind::kBool:
      types.boolean = true;
      break;
    case json::Kind::kInt:
      types.integer = true;
      break;
    case json::Kind::kDouble:
      (value.long_digits() != nullptr ? types.integer : types.number) = true;
      break;
    case json::Kind::kString:
      types.string = true;
      break;
    case json::Kind::kArray:
      types.array = true;
      break;
    case json::Kind::kObject:
      types.object = true;
      break;
  }
}

void add_types(Types& types, const Schema& unresolved, int& fuel) {
  if (--fuel < 0) return;
  const Schema schema = unresolved.resolved();
  if (schema.node == nullptr || !schema.node->is_object()) return;
  if (const json::Value* type = schema.node->find("type"); type != nullptr) {
    if (type->is_string()) add_type(types, type->as_string());
    if (type->is_array()) {
      for (const json::Value& one : type->as_array()) {
        if (one.is_string()) add_type(types, one.as_string());
      }
    }
  }
  if (const json::Value* values = schema.node->find("enum"); values != nullptr && values->is_array()) {
    for (const json::Value& value : values->as_array()) add_kind(types, value);
  }
  if (const json::Value* value = schema.node->find("const"); value != nullptr) add_kind(types, *value);
  for (const std::string_view key : {"anyOf", "oneOf", "allOf"}) {
    const json::Value* branches = schema.node->find(key);
    if (branches == nullptr || !branches->is_array()) continue;
    for (const json::Value& branch : branches->as_array()) add_types(types, {schema.root, &branch}, fuel);
  }
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// An integer of any length, without needless zeros; nothing if the text is not one.
std::optional<std::string> as_integer(std::string_view text) {
  std::string_view digits = text;
  const bool negative = !digits.empty() && digits.front() == '-';
  if (!digits.empty() && (digits.front() == '-' || digits.front() == '+')) digits.remove_prefix(1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  const size_t begin = std::min(digits.find_first_not_of('0'), digits.size() - 1);
  std::string out = negative && digits.substr(begin) != "0" ? "-" : "";
  out += digits.substr(begin);
  return out;
}

// A finite number; an integral value is written as an integer.
std::optional<std::string> as_number(std::string_view text) {
  if (auto integer = as_integer(text)) return integer;
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != std::string_view::npos) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  if (value == std::floor(value) && std::abs(value) < 1e15) return std::to_string(static_cast<int64_t>(value));
  return json::dump(json::Value(value));
}

std::optional<json::Value> as_json(std::string_view text) {
  json::Limits limits;
  limits.max_depth = kMaxValueDepth;
  auto parsed = json::parse(text, limits);
  if (parsed.ok()) return std::move(parsed).value();
  return std::nullopt;
}

// The text as an object or array of JSON or of Python.
std::optional<json::Value> as_container(std::string_view text) {
  const std::string_view body = trimmed(text);
  if (body.empty() || (body.front() != '{' && body.front() != '[' && body.front() != '(')) return std::nullopt;
  if (auto value = as_json(body)) return value;
  if (const auto literal = python_literal(body)) return as_json(*literal);
  return std::nullopt;
}

void append_dumps(std::string& out, const json::Value& value) {
  if (value.is_array()) {
    out += '[';
    bool first = true;
    for (const json::Value& item : value.as_array()) {
      if (!std::exchange(first, false)) out += ", ";
      append_dumps(out, item);
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& [key, member] : value.as_object()) {
      if (!std::exchange(first, false)) out += ", ";
      append_json_string(out, key);
      out += ": ";
      append_dumps(out, member);
    }
    out += '}';
  } else if (value.is_string()) {
    append_json_string(out, value.as_string());
  } else {
    out += json::dump(value);
  }
}

}  // namespace

Schema Schema::resolved() const {
  Schema at = *this;
  for (int i = 0; i < kMaxReferences && at.node != nullptr; ++i) {
    const json::Value* reference = at.node->find("$ref");
    if (reference == nullptr || !reference->is_string()) return at;
    std::string_view path = reference->as_string();
    if (!path.starts_with("#")) return {root, nullptr};
    path.remove_prefix(1);
    const json::Value* target = root;
    while (target != nullptr && !path.empty() && path.front() == '/') {
      path.remove_prefix(1);
      const std::string_view key = path.substr(0, path.find('/'));
      path.remove_prefix(key.size());
      target = target->find(key);
    }
    at.node = target;
  }
  return {root, nullptr};
}

Schema Schema::property(std::string_view name) const {
  const Schema at = resolved();
  if (at.node == nullptr) return {root, nullptr};
  if (const json::Value* properties = at.node->find("properties"); properties != nullptr) {
    if (const json::Value* property = properties->find(name); property != nullptr) return {root, property};
  }
  const json::Value* others = at.node->find("additionalProperties");
  return {root, others != nullptr && others->is_object() ? others : nullptr};
}

Schema Schema::items() const {
  const Schema at = resolved();
  const json::Value* items = at.node == nullptr ? nullptr : at.node->find("items");
  return {root, items != nullptr && items->is_object() ? items : nullptr};
}

Types Schema::types() const {
  Types types;
  int fuel = kMaxNodes;
  add_types(types, *this, fuel);
  return types;
}

void append_escaped(std::string& out, char c) {
  static constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      break;
  }
  if (static_cast<unsigned char>(c) < 0x20) {
    out += "\\u00";
    out += kHex[static_cast<unsigned char>(c) >> 4];
    out += kHex[c & 15];
  } else {
    out += c;
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) append_escaped(out, c);
  out += '"';
}

std::string dumps(const json::Value& value) {
  std::string out;
  append_dumps(out, value);  // The depth is that of a parsed text, which is limited.
  return out;
}

std::string json_or_string(std::string_view text) {
  if (const auto value = as_json(text)) return dumps(*value);
  std::string out;
  append_json_string(out, text);
  return out;
}

std::string convert_text(std::string_view text, const Schema& schema) {
  const Types types = schema.types();
  const std::string_view word = trimmed(text);
  std::string out;
  if (schema.node == nullptr || types.none() || types.only_string()) {
    append_json_string(out, text);
    return out;
  }
  if (types.null && lower(word) == "null") return "null";
  if (types.integer) {
    if (auto integer = as_integer(word)) return *integer;
    if (const auto number = as_number(word); number && as_integer(*number)) return *number;
  }
  if (types.number) {
    if (auto number = as_number(word)) return *number;
  }
  if (types.boolean) {
    const std::string flag = lower(word);
    if (flag == "true" || flag == "1") return "true";
    if (flag == "false" || flag == "0") return "false";
  }
  if (types.object || types.array) {
    auto value = as_container(word);
    if (value && ((value->is_object() && types.object) || (value->is_array() && types.array))) {
      return dumps(coerce(std::move(*value), schema));
    }
  }
  if (!types.string) return json_or_string(text);
  append_json_string(out, text);
  return out;
}

json::Value coerce(json::Value value, const Schema& schema, int depth) {
  if (schema.node == nullptr || depth > kMaxValueDepth) return value;
  if (value.is_object()) {
    for (auto& [key, member] : value.as_object()) {
      member = coerce(std::move(member), schema.property(key), depth + 1);
    }
  } else if (value.is_array()) {
    const Schema items = schema.items();
    if (items.node == nullptr) return value;
    for (json::Value& item : value.as_array()) item = coerce(std::move(item), items, depth + 1);
  } else if (value.is_string()) {
    const Types types = schema.types();
    if (!types.none() && !types.string) {
      if (auto converted = as_json(convert_text(value.as_string(), schema))) return std::move(*converted);
    }
  }
  return value;
}

}  // namespace quire::markup
