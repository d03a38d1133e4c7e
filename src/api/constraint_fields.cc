// SPDX-License-Identifier: Apache-2.0
// From response_format and structured_outputs to one grammar::Spec.
#include "api/constraint_fields.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/utf8.h"

namespace quire::api {
namespace {

using grammar::Spec;

// The kinds of structured_outputs; response_format has three of them.
enum class Source : uint8_t { kJson, kRegex, kChoice, kGrammar, kJsonObject, kStructuralTag };
struct Found {
  Source source;
  std::string field;
  Spec spec;
};

constexpr std::array<std::pair<std::string_view, Source>, 6> kKinds = {{{"json", Source::kJson},
                                                                        {"regex", Source::kRegex},
                                                                        {"choice", Source::kChoice},
                                                                        {"grammar", Source::kGrammar},
                                                                        {"json_object", Source::kJsonObject},
                                                                        {"structural_tag", Source::kStructuralTag}}};

// What vLLM's StructuredOutputsParams has besides: which library makes the constraint. Programs that send all members
// of such an object send these, too.
constexpr std::string_view kWithoutEffect[] = {"disable_fallback", "_backend", "_backend_was_auto"};

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

Spec any_object() {
  Spec spec;
  spec.json = json::Object{{"type", "object"}};
  return spec;
}

ApiResult<json::Value> parse_text(const json::Value& value, const std::string& where) {
  if (is_blank(value.as_string())) return bad_field(where, "must not be blank.");
  auto parsed = json::parse(value.as_string());
  if (!parsed.ok()) return bad_field(where, {"is ", parsed.error().message});
  return std::move(*parsed);
}

ApiResult<Found> json_spec(const json::Value& value, const std::string& where) {
  Found found{Source::kJson, where, {}};
  if (value.is_object()) {
    found.spec.json = value;
  } else if (value.is_string()) {
    QUIRE_ASSIGN(found.spec.json, parse_text(value, where));
  } else {
    return bad_field(where, "must be a JSON Schema: an object, or the text of one.");
  }
  return found;
}

ApiResult<Found> tag_spec(const json::Value& value, const std::string& where) {
  Found found{Source::kStructuralTag, where, {}};
  found.spec.kind = Spec::Kind::kStructuralTag;
  if (value.is_object()) {
    found.spec.json = value;
  } else if (value.is_string()) {
    QUIRE_ASSIGN(found.spec.json, parse_text(value, where));
  } else {
    return bad_field(where, "must be a structural tag: an object, or the text of one.");
  }
  return found;
}

// response_format, text.format or output_config.format; nothing for plain text.
ApiResult<std::optional<Found>> read_format(const json::Value& format, const std::string& where) {
  const json::Value* type = member(format, "type");
  if (type == nullptr || !type->is_string()) {
    return bad_field(where, "must be an object with the type text, json_object, json_schema or structural_tag.");
  }
  if (type->as_string() == "text") return std::optional<Found>();
  if (type->as_string() == "json_object") {
    // Servers such as llama.cpp's take a schema beside this type, and clients made for them expect it to hold.
    const json::Value* schema = member(format, "schema");
    const bool any = schema == nullptr || (schema->is_object() && schema->as_object().empty());
    if (any) return std::optional(Found{Source::kJsonObject, where, any_object()});
    QUIRE_ASSIGN(Found found, json_spec(*schema, where + ".schema"));
    return std::optional(std::move(found));
  }
  if (type->as_string() == "json_schema") {
    // response_format has the schema in an object of its own, the others have it beside the type.
    const json::Value* wrapper = member(format, "json_schema");
    const std::string place =
        where + (wrapper != nullptr || where == "response_format" ? ".json_schema.schema" : ".schema");
    const json::Value* schema = member(wrapper != nullptr ? *wrapper : format, "schema");
    if (schema == nullptr) return bad_field(place, "is missing; the type json_schema needs it.");
    QUIRE_ASSIGN(Found found, json_spec(*schema, place));
    return std::optional(std::move(found));
  }
  if (type->as_string() == "structural_tag") {
    QUIRE_ASSIGN(Found found, tag_spec(format, where));
    return std::optional(std::move(found));
  }
  return bad_field(where + ".type", {"is \"", utf8::beginning(type->as_string(), 40),
                                     "\"; it must be text, json_object, json_schema or structural_tag."});
}

ApiResult<Found> read_choice(const json::Value& value, const std::string& where) {
  Found found{Source::kChoice, where, {}};
  found.spec.kind = Spec::Kind::kChoice;
  const bool strings = value.is_array() && std::ranges::all_of(value.as_array(), &json::Value::is_string);
  if (!strings || value.as_array().empty()) return bad_field(where, "must be a list of one or more strings.");
  for (const json::Value& option : value.as_array()) found.spec.choice.push_back(option.as_string());
  return found;
}

ApiResult<Found> read_kind(Source source, const json::Value& value, const std::string& where) {
  switch (source) {
    case Source::kJson:
      return json_spec(value, where);
    case Source::kStructuralTag:
      return tag_spec(value, where);
    case Source::kChoice:
      return read_choice(value, where);
    case Source::kJsonObject:
      if (!value.is_bool() || !value.as_bool()) return bad_field(where, "must be true, or be left out.");
      return Found{source, where, any_object()};
    case Source::kRegex:
    case Source::kGrammar:
      break;
  }
  if (!value.is_string()) return bad_field(where, "must be a string.");
  const std::string& text = value.as_string();
  const bool regex = source == Source::kRegex;
  if (regex && text.find('\0') != std::string::npos) return bad_field(where, "must not contain a NUL character.");
  if (!regex && is_blank(text)) return bad_field(where, "must not be blank.");
  Found found{source, where, {}};
  found.spec.kind = regex ? Spec::Kind::kRegex : Spec::Kind::kGrammar;
  found.spec.text = text;
  return found;
}

// As in vLLM, an object whose schema lists properties and does not mention others has no others, and they come in the
// order of the schema.
struct JsonRules {
  bool any_whitespace = true;
  bool additional_properties = false;
  bool any_order = false;
  std::optional<std::string> whitespace_pattern;
};

ApiResult<bool> flag(const json::Value& value, const std::string& where) {
  if (!value.is_bool()) return bad_field(where, "must be true or false.");
  return value.as_bool();
}

// structured_outputs: its kind (nothing if it has none) and its options.
ApiResult<std::optional<Found>> read_structured(const json::Value& object, JsonRules& rules) {
  std::optional<Found> found;
  for (const auto& [name, value] : object.as_object()) {
    const std::string where = "structured_outputs." + utf8::beginning(name, 40);
    if (value.is_null() || std::ranges::find(kWithoutEffect, std::string_view(name)) != std::end(kWithoutEffect))
      continue;
    if (name == "disable_any_whitespace") {
      QUIRE_ASSIGN(const bool off, flag(value, where));
      rules.any_whitespace = !off;
    } else if (name == "disable_additional_properties") {
      QUIRE_ASSIGN(const bool off, flag(value, where));
      rules.additional_properties = !off;
    } else if (name == "any_order") {
      QUIRE_ASSIGN(rules.any_order, flag(value, where));
    } else if (name == "whitespace_pattern") {
      if (!value.is_string()) return bad_field(where, "must be a string.");
      rules.whitespace_pattern = value.as_string();
    } else {
      const auto* kind = std::ranges::find(kKinds, std::string_view(name), &decltype(kKinds)::value_type::first);
      if (kind == kKinds.end()) {
        return bad_field(where,
                         "is not known; structured_outputs take one of json, regex, choice, grammar, json_object and "
                         "structural_tag, and disable_any_whitespace, disable_additional_properties, any_order and "
                         "whitespace_pattern.");
      }
      QUIRE_ASSIGN(Found next, read_kind(kind->second, value, where));
      if (found) {
        return bad_field("structured_outputs", {"must have only one kind of constraint; it has ",
                                                found->field.substr(found->field.find('.') + 1), " and ", name, "."});
      }
      found = std::move(next);
    }
  }
  return found;
}

// Names that older versions of vLLM and llama.cpp's server have for kinds of structured_outputs. Newer ones of vLLM
// ignore them, and clients that still send them get free text for JSON.
constexpr std::pair<const char*, Source> kOlderNames[] = {
    {"guided_json", Source::kJson},       {"guided_regex", Source::kRegex}, {"guided_choice", Source::kChoice},
    {"guided_grammar", Source::kGrammar}, {"json_schema", Source::kJson},   {"grammar", Source::kGrammar}};

ApiStatus read_older_names(const Body& body, std::optional<Found>& found) {
  for (const auto& [name, source] : kOlderNames) {
    const json::Value* value = body.get(name);
    if (value == nullptr || (value->is_string() && value->as_string().empty())) continue;
    if (found) return bad_field(name, {"cannot be combined with ", found->field, "; leave one of them out."});
    QUIRE_ASSIGN(found, read_kind(source, *value, name));
  }
  return Ok{};
}

// The field that has the format in this kind of request, and its value.
struct FormatField {
  const char* name = "response_format";
  const json::Value* value = nullptr;
};
FormatField format_field(const Body& body) {
  if (const json::Value* format = body.get("response_format")) return {"response_format", format};
  if (const json::Value* text = body.get("text")) return {"text.format", member(*text, "format")};
  if (const json::Value* config = body.get("output_config")) return {"output_config.format", member(*config, "format")};
  return {};
}

}  // namespace

std::vector<Field> constraint_fields() {
  return {
      {"response_format",
       FieldType::kObject,
       "The form of the answer: text, any JSON object, JSON of a schema (json_schema: {schema}; also schema beside the "
       "type json_object), or a structural tag.",
       {.fallback = "{\"type\": \"text\"}",
        .shape =
            R"("required":["type"],"properties":{"type":{"enum":["text","json_object","json_schema","structural_tag"]}})"}},
      {"structured_outputs", FieldType::kObject,
       "One of json, regex, choice, grammar, json_object and structural_tag, which the answer matches; and the options "
       "disable_any_whitespace, disable_additional_properties (default true: objects have only the properties that "
       "their schema lists, unless it says otherwise), any_order (default false: the properties come in the order of "
       "the schema) and whitespace_pattern (between the tokens of JSON; default: a blank, or at most two "
       "line breaks and 40 blanks)."},
  };
}

ApiResult<llm::ConstraintSpec> read_constraint(const Body& body) {
  std::optional<Found> found;
  JsonRules rules;
  if (const FormatField format = format_field(body); format.value != nullptr) {
    QUIRE_ASSIGN(found, read_format(*format.value, format.name));
  }
  if (const json::Value* object = body.get("structured_outputs")) {
    QUIRE_ASSIGN(std::optional<Found> other, read_structured(*object, rules));
    if (!other && !found) {
      return bad_field("structured_outputs",
                       "must have one kind of constraint: json, regex, choice, grammar, json_object or "
                       "structural_tag.");
    }
    if (other && found && other->source != found->source) {
      return bad_field("structured_outputs",
                       {"must not have another kind of constraint than ", found->field, "; leave one of them out."});
    }
    if (!found) found = std::move(other);  // of two of the same kind, the format's counts
  }
  QUIRE_TRY(read_older_names(body, found));
  llm::ConstraintSpec out;
  if (!found) return out;
  out.field = std::move(found->field);
  out.grammar = std::move(found->spec);
  out.grammar->any_whitespace = rules.any_whitespace;
  out.grammar->additional_properties = rules.additional_properties;
  out.grammar->any_order = rules.any_order;
  out.grammar->whitespace_pattern = std::move(rules.whitespace_pattern);
  return out;
}

ApiResult<std::optional<int64_t>> read_thinking_budget(const Body& body, bool has_reasoning) {
  const std::optional<int64_t> budget = body.integer("thinking_token_budget");
  if (!budget || *budget < 0) return std::optional<int64_t>();
  if (!has_reasoning) {
    return bad_field("thinking_token_budget",
                     "needs a model with reasoning: no reasoning parser is known for this one; name it with "
                     "--reasoning-parser, or leave the field out.");
  }
  return budget;
}

json::Value tag_format(const Spec& spec) {
  switch (spec.kind) {
    case Spec::Kind::kJson:
      return json::Object{{"type", "json_schema"}, {"json_schema", spec.json}};
    case Spec::Kind::kRegex:
      return json::Object{{"type", "regex"}, {"pattern", spec.text}};
    case Spec::Kind::kGrammar:
      return json::Object{{"type", "grammar"}, {"grammar", spec.text}};
    case Spec::Kind::kChoice: {
      json::Array options;
      for (const std::string& text : spec.choice) {
        options.emplace_back(json::Object{{"type", "const_string"}, {"value", text}});
      }
      return json::Object{{"type", "or"}, {"elements", std::move(options)}};
    }
    case Spec::Kind::kStructuralTag:
      break;
  }
  const json::Value* format = spec.json.find("format");
  return format != nullptr ? *format : spec.json;
}

}  // namespace quire::api
