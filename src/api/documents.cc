// SPDX-License-Identifier: Apache-2.0
// OpenAPI, Markdown and HTML from the tables of the API.
#include "api/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "api/json_writer.h"
#include "api/routes.h"
#include "base/strings.h"

namespace quire::api {
namespace {

// The JSON Schemas of a field's values. A value fits one of them; if there are none, every value fits. The caller adds
// null.
std::vector<std::string> schemas_of(const Field& f) {
  const std::string text = f.rules.no_empty_text ? R"({"type":"string","minLength":1})" : R"({"type":"string"})";
  const std::string least = f.rules.no_empty_list ? R"(,"minItems":1)" : "";
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

// The values that the server accepts, as JSON Schema. Null means the same as an absent field, so only a required field
// must not be null.
void write_types(JsonWriter& w, const Field& f) {
  std::vector<std::string> schemas = schemas_of(f);
  if (schemas.size() == 1) {  // {"type":"string", ...}: null joins its type
    constexpr std::string_view kHead = "{\"type\":\"";
    const std::string_view one = schemas[0];
    const size_t end = one.find('"', kHead.size());
    const std::string type = "\"" + std::string(one.substr(kHead.size(), end - kHead.size())) + "\"";
    w.key("type").raw(f.rules.required ? type : "[" + type + ",\"null\"]");
    if (end + 2 < one.size()) w.raw(one.substr(end + 2, one.size() - end - 3));
  } else if (!schemas.empty()) {
    if (!f.rules.required) schemas.emplace_back(R"({"type":"null"})");
    w.key("anyOf").open_array();
    for (const std::string& one : schemas) w.raw(one);
    w.close_array();
  }
  if (f.rules.refused != nullptr) {
    w.key("enum").raw(type_text(f.type).neutral);
  } else if (!f.rules.choices.empty()) {
    w.key("enum").open_array();
    for (const std::string_view choice : f.rules.choices) w.string(choice);
    if (!f.rules.required) w.null();
    w.close_array();
  }
}

void write_field(JsonWriter& w, const Field& f) {
  const FieldRules& rules = f.rules;
  w.key(f.name).open_object();
  write_types(w, f);
  if (rules.min > -kNoBound) w.key(rules.above_min ? "exclusiveMinimum" : "minimum").raw(bound_text(rules.min));
  if (rules.max < kNoBound) w.key("maximum").raw(bound_text(rules.max));
  if (rules.shape != nullptr) w.raw(rules.shape);
  std::string doc = f.doc;
  if (rules.refused != nullptr) doc += doc.empty() ? "Refused." : " Refused for now.";
  if (*rules.fallback != '\0') doc += std::string(doc.empty() ? "" : " ") + "Default: " + rules.fallback + ".";
  w.member("description", doc).close_object();
}

void write_schema(JsonWriter& w, const Schema& schema) {
  w.key(schema.name).open_object().member("type", "object").member("description", schema.doc);
  w.member_bool("additionalProperties", true).key("properties").open_object();
  for (const Field& field : schema.fields) write_field(w, field);
  w.close_object().key("required").open_array();
  for (const Field& field : schema.fields) {
    if (field.rules.required) w.string(field.name);
  }
  w.close_array().close_object();
}

// The schemas that routes use, each once.
std::vector<const Schema*> used_schemas() {
  std::vector<const Schema*> out;
  for (const Route& route : routes()) {
    const Schema* schema = route.options.schema == nullptr ? nullptr : &route.options.schema();
    if (schema != nullptr && std::find(out.begin(), out.end(), schema) == out.end()) out.push_back(schema);
  }
  return out;
}

void write_operation(JsonWriter& w, const Route& route) {
  const bool has_body = route.options.schema != nullptr;
  w.key(ascii_lower(route.method)).open_object().member("summary", route.summary);
  if (const size_t open = route.path.find('{'); open != std::string_view::npos) {
    w.key("parameters").open_array().open_object();
    w.member("name", route.path.substr(open + 1, route.path.find('}') - open - 1)).member("in", "path");
    w.member_bool("required", true).key("schema").raw(R"({"type":"string"})").close_object().close_array();
  }
  if (has_body) {
    w.key("requestBody").open_object().member_bool("required", true).key("content").open_object();
    w.key("application/json").open_object().key("schema").open_object();
    w.member("$ref", std::string("#/components/schemas/") + route.options.schema().name);
    w.close_object().close_object().close_object().close_object();
  }
  w.key("responses").open_object().key("200").open_object().member("description", "The answer.");
  w.key("content").open_object().key(route.options.content_type).raw("{}");
  if (has_body) w.key("text/event-stream").raw("{}");
  w.close_object().close_object();
  w.key("default").raw(R"({"description":"What was wrong.","content":{"application/json":{}}})");
  w.close_object().close_object();
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

constexpr const char* kStyle =
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 "
    "1rem;color:#222;background:#fff}"
    "h1{margin-bottom:0}code,pre{font:14px ui-monospace,monospace;background:#f4f4f2;border-radius:4px}"
    "code{padding:.1em .3em}pre{padding:1em;overflow-x:auto}table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;vertical-align:top;padding:.3em .6em;border-bottom:1px solid #ddd}"
    "details{margin:.5em 0}summary{cursor:pointer}.m{color:#777}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}code,pre{background:#2a2a2a}"
    "td,th{border-color:#444}}";

}  // namespace

std::string openapi_json(std::string_view version) {
  JsonWriter w;
  w.open_object().member("openapi", "3.1.0").key("info").open_object();
  w.member("title", "quire").member("version", version).close_object();
  w.key("paths").open_object();
  std::string_view last;
  for (const Route& route : routes()) {
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
      "The names and shapes are vLLM's and OpenAI's, so that their clients work unchanged. A field that is not listed\n"
      "is ignored, and the log names it once. A wrong type or range is a 400 whose `param` names the field.\n\n"
      "## Routes\n\n| Method | Path | What it does | Body |\n|---|---|---|---|\n";
  for (const Route& route : routes()) {
    out += fmt::format("| {} | `{}` | {} | ", route.method, route.path, route.summary);
    if (route.options.schema != nullptr) {
      const char* name = route.options.schema().name;
      out += fmt::format("[{}](#{})", name, ascii_lower(name));
    }
    out += " |\n";
  }
  for (const Schema* schema : used_schemas()) {
    out += fmt::format("\n## {}\n\n{}\n\n| Field | Type | Default | Range | |\n|---|---|---|---|---|\n", schema->name,
                       schema->doc);
    for (const Field& f : schema->fields) {
      std::string range = range_text(f.rules);
      for (const std::string_view choice : f.rules.choices) (range += range.empty() ? "" : ", ") += choice;
      std::string doc = f.doc;
      if (f.rules.refused != nullptr) doc += (doc.empty() ? "" : " ") + std::string("**Refused** for now.");
      out += fmt::format("| `{}`{} | {} | {} | {} | {} |\n", f.name, f.rules.required ? " (required)" : "",
                         type_text(f.type).phrase, f.rules.fallback, range, doc);
    }
  }
  return out;
}

std::string docs_page(std::string_view version, std::string_view model_name) {
  std::string out = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>quire</title>";
  out +=
      "<meta name=\"viewport\" content=\"width=device-width\"><style>" + std::string(kStyle) + "</style></head><body>";
  out += "<h1>quire</h1><p class=\"m\">version " + escape(version) + ", serving <code>" + escape(model_name) +
         "</code></p>";
  out +=
      "<pre>curl http://HOST:PORT/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "  -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"max_tokens\": 64}'</pre>";
  out +=
      "<p>The names and shapes are vLLM's and OpenAI's; <a href=\"openapi.json\">openapi.json</a> describes them to "
      "programs. Fields that are not listed are accepted and ignored.</p>";
  for (const Route& route : routes()) {
    out += fmt::format("<details><summary><code>{} {}</code> {}</summary>", route.method, escape(route.path),
                       escape(route.summary));
    if (route.options.schema != nullptr) {
      out += "<table><tr><th>Field</th><th>Default</th><th></th></tr>";
      for (const Field& field : route.options.schema().fields) {
        out += fmt::format("<tr><td><code>{}</code>{}</td><td>{}</td><td>{}{}</td></tr>", field.name,
                           field.rules.required ? " (required)" : "", escape(field.rules.fallback), escape(field.doc),
                           field.rules.refused != nullptr ? " Refused for now." : "");
      }
      out += "</table>";
    }
    out += "</details>";
  }
  return out + "</body></html>";
}

}  // namespace quire::api
