// SPDX-License-Identifier: Apache-2.0
// Structural tags that make a model write calls in its own markup.
#include <string>
#include <utility>

#include "base/utf8.h"
#include "markup/convert.h"
#include "markup/formats.h"
#include "markup/markup.h"

namespace quire::markup {
namespace {

using json::Array;
using json::Object;
using json::Value;

Value const_string(std::string_view text) {
  return Object{{"type", "const_string"}, {"value", text}};
}
Value regex(std::string_view pattern) {
  return Object{{"type", "regex"}, {"pattern", pattern}};
}
Value any_text() {
  return Object{{"type", "any_text"}};
}
Value sequence(Array elements) {
  return Object{{"type", "sequence"}, {"elements", std::move(elements)}};
}
Value either(Array elements) {
  if (elements.size() == 1) return std::move(elements.front());
  return Object{{"type", "or"}, {"elements", std::move(elements)}};
}
Value optional(Value content) {
  return Object{{"type", "optional"}, {"content", std::move(content)}};
}
Value star(Value content) {
  return Object{{"type", "star"}, {"content", std::move(content)}};
}
Value tag(std::string_view begin, Value content, std::string_view end) {
  return Object{{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", end}};
}
Value tags_with_separator(Array tags, std::string_view separator, bool only_one) {
  return Object{{"type", "tags_with_separator"},
                {"tags", std::move(tags)},
                {"separator", separator},
                {"at_least_one", true},
                {"stop_after_first", only_one}};
}

Value any_object() {
  return Object{{"type", "object"}};
}

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(what, at)) != std::string_view::npos; at = found + what.size()) {
    out += text.substr(at, found - at);
    out += by;
  }
  out += text.substr(at);
  return out;
}

// The name as it stands in the markup: escaped where that is JSON or an attribute.
std::string written_name(const ToolFormat& format, std::string_view name) {
  if (format.write_begin.find("\"NAME\"") == std::string_view::npos) return std::string(name);
  if (format.encoding == Encoding::kTagged || format.encoding == Encoding::kNested) {
    return replaced(replaced(name, "&", "&amp;"), "\"", "&quot;");
  }
  std::string quoted;
  append_json_string(quoted, name);
  return quoted.substr(1, quoted.size() - 2);
}

// The value of one parameter: strings are raw text, all else is JSON.
Result<Value> parameter_value(const Schema& schema, const Types& types, const std::string& path) {
  if (!types.none() && !types.string) return Value(Object{{"type", "json_schema"}, {"json_schema", *schema.node}});
  if (types.none()) return any_text();
  if (!types.only_string()) {
    return unsupported({"The parameter ", path,
                        " may be a string or something else, which cannot be constrained in the markup of this model: "
                        "give it one type."});
  }
  if (const Value* values = schema.node->find("enum"); values != nullptr && values->is_array()) {
    Array choices;
    for (const Value& value : values->as_array()) choices.push_back(const_string(value.as_string()));
    return either(std::move(choices));
  }
  if (const Value* value = schema.node->find("const"); value != nullptr) return const_string(value->as_string());
  for (const auto& [keyword, value] : schema.node->as_object()) {
    if (keyword == "type" || keyword == "title" || keyword == "description" || keyword == "default" ||
        keyword == "examples") {
      continue;
    }
    return unsupported({"The keyword \"", keyword, "\" of the parameter ", path,
                        " cannot be constrained in the markup of this model."});
  }
  return any_text();
}

// The JSON type that stands in a parameter's tag.
std::string_view type_word(const Types& types) {
  if (types.none() || types.string) return "string";
  if (types.integer || types.number) return "number";
  if (types.boolean) return "boolean";
  if (types.object) return "object";
  return types.array ? "array" : "null";
}

bool is_required(const Value* required, const std::string& key) {
  if (required == nullptr || !required->is_array()) return false;
  for (const Value& name : required->as_array()) {
    if (name == Value(key)) return true;
  }
  return false;
}

// Parameters in tags for which json_schema has no style, in the order of the schema's properties.
Result<Value> tagged_parameters(const ToolFormat& format, const Value& parameters) {
  const Schema root = Schema{&parameters, &parameters}.resolved();
  const Value* properties = root.node == nullptr ? nullptr : root.node->find("properties");
  const Value* required = root.node == nullptr ? nullptr : root.node->find("required");
  Array elements;
  if (properties != nullptr && properties->is_object()) {
    for (const auto& [key, property] : properties->as_object()) {
      const Schema schema = Schema{root.root, &property}.resolved();
      const Types types = schema.types();
      QUIRE_ASSIGN(Value content, parameter_value(schema, types, "/properties/" + key));
      const std::string_view raw = types.none() || types.string ? "true" : "false";
      std::string begin = replaced(format.tagged.write_param_begin, "TYPE", type_word(types));
      begin = replaced(replaced(begin, "RAW", raw), "KEY", key);
      Value one = tag(begin, std::move(content), replaced(format.tagged.write_param_end, "KEY", key));
      elements.push_back(is_required(required, key) ? std::move(one) : optional(std::move(one)));
    }
  }
  if (elements.empty()) return const_string("");
  return sequence(std::move(elements));
}

// The format of a call's arguments.
Result<Value> arguments_format(const ToolFormat& format, const Tool& tool, bool by_schema) {
  const std::string_view style = format.tagged.style;
  const bool tagged = format.encoding == Encoding::kTagged || format.encoding == Encoding::kNested;
  if (!by_schema) {
    if (tagged) return any_text();
    return Value(Object{{"type", "json_schema"}, {"json_schema", any_object()}});
  }
  Value schema = tool.parameters;
  const Value* type = schema.find("type");
  if (type != nullptr && type->is_string() && type->as_string() != "object") {
    return invalid_field("tools", {"has parameters of the type \"", utf8::beginning(type->as_string(), 40), "\" for '",
                                   tool.name, "'; the arguments of a call are an object, so write \"object\"."});
  }
  if (schema.is_null()) {
    schema = Object{{"type", "object"}, {"properties", Object{}}, {"additionalProperties", false}};
  }
  if (tagged && style.empty()) return tagged_parameters(format, schema);
  Object content = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  if (!style.empty()) content.emplace_back("style", style);
  return Value(std::move(content));
}

// One call of one tool.
Result<Value> call_tag(const ToolFormat& format, std::string_view write_begin, const Tool& tool, bool by_schema) {
  QUIRE_ASSIGN(Value arguments, arguments_format(format, tool, by_schema));
  const std::string name = written_name(format, tool.name);
  // A number in the markup splits the begin of the tag.
  const size_t index = write_begin.find("INDEX");
  const std::string begin = replaced(write_begin.substr(0, index), "NAME", name);
  if (index == std::string_view::npos) return tag(begin, std::move(arguments), format.write_end);
  Array parts = {regex("[0-9]{1,4}"), const_string(replaced(write_begin.substr(index + 5), "NAME", name)),
                 std::move(arguments)};
  return tag(begin, sequence(std::move(parts)), format.write_end);
}

// Whether the arguments of this tool follow its schema.
bool by_schema(const ParseOptions& options, const Tool& tool) {
  return tool.strict || options.choice == ToolChoice::kRequired || options.choice == ToolChoice::kNamed;
}

Result<Array> call_tags(const ToolFormat& format, const ParseOptions& options, const std::vector<std::string>& begins) {
  Array tags;
  for (const Tool& tool : options.tools) {
    if (options.choice == ToolChoice::kNamed && tool.name != options.named) continue;
    for (const std::string& begin : begins) {
      QUIRE_ASSIGN(Value one, call_tag(format, begin, tool, by_schema(options, tool)));
      tags.push_back(std::move(one));
    }
  }
  if (tags.empty()) {
    return invalid_field("tool_choice", {"names the tool '", options.named, "', which is not among the tools."});
  }
  return tags;
}

// One or more calls, with the section around them.
Value calls(const ToolFormat& format, Array tags, bool only_one) {
  Value list = tags_with_separator(std::move(tags), format.write_separator, only_one);
  const bool array = format.json.written == "[]";
  const std::string begin = std::string(format.write_section_begin) + (array ? "[" : "");
  const std::string end = (array ? "]" : "") + std::string(format.write_section_end);
  if (begin.empty() && end.empty()) return list;
  return tag(begin, std::move(list), end);
}

// Free text in which the marker of a call begins a constrained call.
Value free_text_or_calls(const ToolFormat& format, Array tags, bool only_one) {
  const bool section = !format.write_section_begin.empty();
  std::string trigger;
  if (section) {
    trigger = format.begins.empty() ? std::string(format.open) : std::string(format.begins.front());
    const Value one = calls(format, std::move(tags), only_one);
    tags = Array{one};
  } else if (!format.bare.empty()) {
    // Only an answer that begins with the character is a call; all others are free text.
    const std::string first(format.bare);
    Array forms = {calls(format, std::move(tags), only_one),
                   regex("[ \\t\\r\\n]*([^ \\t\\r\\n" + replaced(first, "[", "\\[") + "][\\s\\S]*)?")};
    return either(std::move(forms));
  } else {
    trigger = format.begins.empty() ? std::string(format.open) : std::string(format.begins.front());
  }
  return Object{{"type", "triggered_tags"},
                {"triggers", Array{trigger}},
                {"tags", std::move(tags)},
                {"at_least_one", false},
                {"stop_after_first", only_one}};
}

// Messages that may stand before the call or the answer.
Value harmony_preamble() {
  Array messages = {tag("<|channel|>analysis<|message|>", any_text(), "<|end|><|start|>assistant"),
                    tag("<|channel|>commentary<|message|>", any_text(), "<|end|><|start|>assistant")};
  return star(either(std::move(messages)));
}

Value harmony_answer(Value content) {
  return tag("<|channel|>final<|message|>", std::move(content), "");
}

Result<Value> harmony_constraint(const ToolFormat& format, const ParseOptions& options, const Value& answer) {
  const std::vector<std::string> begins = {std::string(format.write_begin),
                                           " to=functions.NAME<|channel|>commentary <|constrain|>json<|message|>",
                                           " to=functions.NAME<|channel|>commentary json<|message|>"};
  QUIRE_ASSIGN(Array forms, call_tags(format, options, begins));
  if (options.choice == ToolChoice::kAuto) {
    forms.push_back(harmony_answer(answer.is_null() ? any_text() : answer));
  }
  return sequence({harmony_preamble(), either(std::move(forms))});
}

}  // namespace

Result<json::Value> tool_constraint(const Dialect& dialect, const ParseOptions& options, const json::Value& format) {
  const bool forced = options.choice == ToolChoice::kRequired || options.choice == ToolChoice::kNamed;
  if (options.choice == ToolChoice::kNone || options.tools.empty()) return json::Value();
  bool strict = !options.parallel || !format.is_null();
  for (const Tool& tool : options.tools) strict = strict || tool.strict;
  if (!forced && !strict) return json::Value();
  if (dialect.tools == nullptr) {
    return unsupported(
        "This model's chat template has no known markup for tool calls, so that they cannot be constrained; choose a "
        "parser with --tool-call-parser.",
        "tool_choice");
  }
  const ToolFormat& row = *dialect.tools;
  if (row.encoding == Encoding::kHarmony) return harmony_constraint(row, options, format);
  QUIRE_ASSIGN(Array tags, call_tags(row, options, {std::string(row.write_begin)}));
  const bool only_one = !options.parallel || options.choice == ToolChoice::kNamed;
  if (forced) {
    Value all = calls(row, std::move(tags), only_one);
    if (dialect.reasoning == nullptr) return all;
    // The prompt or the model may have opened the channel of the response, which ends before calls.
    if (dialect.reasoning->name == "kimi_k3") {
      return sequence({optional(const_string("<|open|>response<|sep|>")),
                       optional(const_string("<|close|>response<|sep|>")), std::move(all)});
    }
    // Models write newlines between their reasoning and a call.
    return sequence({regex("\\n{0,2}"), std::move(all)});
  }
  if (format.is_null()) return free_text_or_calls(row, std::move(tags), only_one);
  return either({calls(row, std::move(tags), only_one), answer_constraint(dialect, format)});
}

json::Value answer_constraint(const Dialect& dialect, const json::Value& format) {
  if (format.is_null() || dialect.reasoning == nullptr) return format;
  if (dialect.reasoning->harmony) return sequence({harmony_preamble(), harmony_answer(format)});
  if (dialect.reasoning->name == "kimi_k3") {
    return sequence({optional(const_string("<|open|>response<|sep|>")), format,
                     optional(const_string("<|close|>response<|sep|>"))});
  }
  return format;
}

}  // namespace quire::markup
