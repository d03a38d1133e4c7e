// SPDX-License-Identifier: Apache-2.0
// Reads tools, tool choices and past calls.
#include "api/tools.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

using markup::ToolChoice;

std::string type_of(const json::Value& object) {
  const json::Value* type = member(object, "type");
  return type != nullptr && type->is_string() ? type->as_string() : "";
}

// Names go into prompts and grammars as they are, so they must be plain words.
bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolName && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
           std::string_view("_-.:/").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

ApiResult<std::string> tool_name(const json::Value& object, const std::string& where) {
  const json::Value* name = member(object, "name");
  if (name == nullptr) return bad_field(where + ".name", "is missing; it is required.");
  if (!name->is_string()) return bad_field(where + ".name", "must be a string.");
  if (!is_tool_name(name->as_string())) {
    return bad_field(where + ".name", {"must be 1 to ", kMaxToolName,
                                       " letters, digits and the characters _ - . : / of a tool's name."});
  }
  return name->as_string();
}

// Adds a tool whose definition has name, description, strict and, in the member `schema`, its parameters.
ApiStatus add_tool(ToolSet& set, const json::Value& definition, const char* schema, const std::string& where) {
  markup::Tool tool;
  QUIRE_ASSIGN(tool.name, tool_name(definition, where));
  json::Object function = {{"name", tool.name}};
  if (const json::Value* text = member(definition, "description")) {
    if (!text->is_string()) return bad_field(where + ".description", "must be a string.");
    tool.description = text->as_string();
    function.emplace_back("description", *text);
  }
  if (const json::Value* parameters = member(definition, schema)) {
    if (!parameters->is_object()) return bad_field(where + "." + schema, "must be an object, a JSON Schema.");
    tool.parameters = *parameters;
    function.emplace_back("parameters", *parameters);
  } else {
    // No parameters means a function without any.
    function.emplace_back("parameters", json::Object{{"type", "object"}, {"properties", json::Object{}}});
  }
  if (const json::Value* strict = member(definition, "strict")) {
    if (!strict->is_bool()) return bad_field(where + ".strict", "must be true or false.");
    tool.strict = strict->as_bool();
    function.emplace_back("strict", *strict);
  }
  if (set.shown.is_null()) set.shown = json::Array{};
  set.shown.as_array().emplace_back(json::Object{{"type", "function"}, {"function", std::move(function)}});
  set.tools.push_back(std::move(tool));
  return Ok{};
}

bool has_tool(const ToolSet& set, std::string_view name) {
  return std::any_of(set.tools.begin(), set.tools.end(), [&](const markup::Tool& tool) { return tool.name == name; });
}

// The tool that a choice names, at `where`.
ApiStatus choose_named(ToolSet& set, const json::Value& object, const std::string& where) {
  const json::Value* name = member(object, "name");
  if (name == nullptr || !name->is_string() || name->as_string().empty()) {
    return bad_field(where + ".name", "must be the name of one of the tools.");
  }
  if (!has_tool(set, name->as_string())) {
    return bad_field(where + ".name",
                     {"is \"", utf8::beginning(name->as_string(), 80), "\", which is not among the tools."});
  }
  set.choice = ToolChoice::kNamed;
  set.named = name->as_string();
  return Ok{};
}

// Keeps only the tools of an allowed_tools choice: {"mode": "auto" or "required", "tools": [...]}. In chats the names
// are one level deeper, in `inside`.
ApiStatus choose_allowed(ToolSet& set, const json::Value& object, const char* inside, const std::string& where) {
  const json::Value* mode = member(object, "mode");
  const std::string wanted = mode != nullptr && mode->is_string() ? mode->as_string() : "";
  if (wanted != "auto" && wanted != "required") return bad_field(where + ".mode", "must be auto or required.");
  const json::Value* list = member(object, "tools");
  if (list == nullptr || !list->is_array() || list->as_array().empty()) {
    return bad_field(where + ".tools", "must be a list of tools that is not empty.");
  }
  std::unordered_set<std::string> allowed;
  for (size_t i = 0; i < list->as_array().size(); ++i) {
    std::string at = where + ".tools[" + std::to_string(i) + "]";
    const json::Value* entry = &list->as_array()[i];
    if (*inside != '\0') {
      entry = member(*entry, inside);
      at += std::string(".") + inside;
    }
    if (entry == nullptr || !entry->is_object()) return bad_field(at, "must be an object.");
    QUIRE_ASSIGN(std::string name, tool_name(*entry, at));
    allowed.insert(std::move(name));
  }
  ToolSet kept;
  kept.parallel = set.parallel;
  kept.choice = wanted == "auto" ? ToolChoice::kAuto : ToolChoice::kRequired;
  kept.custom = std::move(set.custom);
  kept.shown = json::Array{};
  for (size_t i = 0; i < set.tools.size(); ++i) {
    if (!allowed.contains(set.tools[i].name)) continue;
    kept.tools.push_back(std::move(set.tools[i]));
    kept.shown.as_array().push_back(std::move(set.shown.as_array()[i]));
  }
  if (kept.tools.empty()) return bad_field(where + ".tools", "names none of the tools.");
  set = std::move(kept);
  return Ok{};
}

// A choice that is a word.
ApiStatus choose_word(ToolSet& set, const std::string& word, bool auto_needs_tools) {
  const bool known = word == "none" || word == "auto" || word == "required";
  if (!known) return bad_field("tool_choice", "must be none, auto or required, or an object that names a tool.");
  if (word == "none") {
    set.choice = ToolChoice::kNone;
    return Ok{};
  }
  if (set.tools.empty()) {
    if (word == "auto" && !auto_needs_tools) return Ok{};
    return bad_field("tool_choice", {"is \"", word, "\", but there are no tools; tools must be set with it."});
  }
  set.choice = word == "auto" ? ToolChoice::kAuto : ToolChoice::kRequired;
  return Ok{};
}

ApiStatus check_has_tools(const ToolSet& set) {
  if (!set.tools.empty()) return Ok{};
  return bad_field("tool_choice", "names a tool, but there are no tools; tools must be set with it.");
}

ApiStatus read_chat_choice(const json::Value& choice, ToolSet& set) {
  if (choice.is_string()) return choose_word(set, choice.as_string(), true);
  if (!choice.is_object()) return bad_field("tool_choice", "must be none, auto, required or an object.");
  QUIRE_TRY(check_has_tools(set));
  const std::string type = type_of(choice);
  if (type == "allowed_tools") {
    const json::Value* inner = member(choice, "allowed_tools");
    if (inner == nullptr || !inner->is_object()) return bad_field("tool_choice.allowed_tools", "must be an object.");
    return choose_allowed(set, *inner, "function", "tool_choice.allowed_tools");
  }
  if (type != "function") return bad_field("tool_choice.type", "must be function or allowed_tools.");
  const json::Value* function = member(choice, "function");
  if (function == nullptr || !function->is_object()) {
    return bad_field("tool_choice.function", "must be an object with the name of a tool.");
  }
  return choose_named(set, *function, "tool_choice.function");
}

ApiStatus read_responses_choice(const json::Value& choice, ToolSet& set) {
  if (choice.is_string()) return choose_word(set, choice.as_string(), false);
  if (!choice.is_object()) return bad_field("tool_choice", "must be none, auto, required or an object.");
  QUIRE_TRY(check_has_tools(set));
  const std::string type = type_of(choice);
  if (type == "allowed_tools") return choose_allowed(set, choice, "", "tool_choice");
  if (type != "function" && type != "custom") {
    return bad_field("tool_choice.type", "must be function, custom or allowed_tools; this server has no other tools.");
  }
  return choose_named(set, choice, "tool_choice");
}

ApiStatus read_messages_choice(const json::Value& choice, ToolSet& set) {
  const std::string type = type_of(choice);
  if (const json::Value* disable = member(choice, "disable_parallel_tool_use")) {
    if (!disable->is_bool()) return bad_field("tool_choice.disable_parallel_tool_use", "must be true or false.");
    set.parallel = !disable->as_bool();
  }
  if (type == "none" || type == "auto") {
    if (type == "none") set.choice = ToolChoice::kNone;
    return Ok{};
  }
  if (type != "any" && type != "tool") return bad_field("tool_choice.type", "must be auto, any, tool or none.");
  if (set.tools.empty()) return bad_field("tool_choice.type", {"is \"", type, "\", but there are no tools."});
  if (type == "tool") return choose_named(set, choice, "tool_choice");
  set.choice = ToolChoice::kRequired;
  return Ok{};
}

// A custom tool takes a text. The model sees a function with one string as its argument.
ApiStatus add_custom_tool(ToolSet& set, const json::Value& tool, const std::string& where) {
  if (const json::Value* format = member(tool, "format"); format != nullptr && type_of(*format) != "text") {
    return bad_field(where + ".format", "must have the type text: grammars of custom tools are not supported.");
  }
  json::Value definition{json::Object{}};
  for (const char* name : {"name", "description"}) {
    if (const json::Value* value = tool.find(name)) definition.set(name, *value);
  }
  definition.set("parameters",
                 json::Object{{"type", "object"},
                              {"properties", json::Object{{kCustomInput, json::Object{{"type", "string"}}}}},
                              {"required", json::Array{kCustomInput}},
                              {"additionalProperties", false}});
  QUIRE_TRY(add_tool(set, definition, "parameters", where));
  set.custom.insert(set.tools.back().name);
  return Ok{};
}

// Adds a tool of the Responses API; the functions of a namespace become functions named namespace__name.
ApiStatus add_responses_tool(ToolSet& set, const json::Value& tool, const std::string& where) {
  const std::string type = type_of(tool);
  if (type == "function") return add_tool(set, tool, "parameters", where);
  if (type == "custom") return add_custom_tool(set, tool, where);
  if (type != "namespace") {
    return bad_field(where + ".type", {"is \"", utf8::beginning(type, 40),
                                       "\"; this server takes function, custom and namespace, and has no built-in "
                                       "tools."});
  }
  QUIRE_ASSIGN(const std::string space, tool_name(tool, where));
  const json::Value* inner = member(tool, "tools");
  if (inner == nullptr || !inner->is_array()) return bad_field(where + ".tools", "must be a list of functions.");
  for (size_t i = 0; i < inner->as_array().size(); ++i) {
    const std::string at = where + ".tools[" + std::to_string(i) + "]";
    json::Value function = inner->as_array()[i];
    if (type_of(function) != "function") return bad_field(at + ".type", "must be function.");
    QUIRE_ASSIGN(const std::string name, tool_name(function, at));
    function.set("name", space + "__" + name);
    QUIRE_TRY(add_tool(set, function, "parameters", at));
  }
  return Ok{};
}

// Calls `add` for each tool of the request, and makes auto the choice if there is one.
template <typename Add>
ApiStatus read_tools(const Body& body, ToolSet& set, const Add& add) {
  const json::Value* tools = body.get("tools");
  if (tools == nullptr) return Ok{};
  for (size_t i = 0; i < tools->as_array().size(); ++i) {
    QUIRE_TRY(add(tools->as_array()[i], "tools[" + std::to_string(i) + "]"));
  }
  if (!set.tools.empty()) set.choice = ToolChoice::kAuto;
  return Ok{};
}

}  // namespace

ApiResult<ToolSet> read_chat_tools(const Body& body) {
  ToolSet set;
  QUIRE_TRY(read_tools(body, set, [&](const json::Value& tool, const std::string& where) -> ApiStatus {
    if (member(tool, "type") != nullptr && type_of(tool) != "function") {
      return bad_field(where + ".type", "must be function.");
    }
    const json::Value* function = member(tool, "function");
    if (function == nullptr || !function->is_object()) {
      return bad_field(where + ".function", "must be an object with the name of the function.");
    }
    return add_tool(set, *function, "parameters", where + ".function");
  }));
  set.parallel = body.boolean("parallel_tool_calls", true);
  if (const json::Value* choice = body.get("tool_choice")) QUIRE_TRY(read_chat_choice(*choice, set));
  return set;
}

ApiResult<ToolSet> read_responses_tools(const Body& body) {
  ToolSet set;
  QUIRE_TRY(read_tools(body, set, [&](const json::Value& tool, const std::string& where) {
    return add_responses_tool(set, tool, where);
  }));
  set.parallel = body.boolean("parallel_tool_calls", true);
  if (const json::Value* choice = body.get("tool_choice")) QUIRE_TRY(read_responses_choice(*choice, set));
  return set;
}

ApiResult<ToolSet> read_messages_tools(const Body& body) {
  ToolSet set;
  QUIRE_TRY(read_tools(body, set, [&](const json::Value& tool, const std::string& where) -> ApiStatus {
    // Tools of the client have no type, or the type custom; others run on Anthropic's servers.
    if (member(tool, "type") != nullptr && type_of(tool) != "custom") {
      return bad_field(where + ".type", "must be custom: this server has no built-in tools.");
    }
    return add_tool(set, tool, "input_schema", where);
  }));
  if (const json::Value* choice = body.get("tool_choice")) QUIRE_TRY(read_messages_choice(*choice, set));
  return set;
}

json::Value arguments_object(const std::string& text) {
  if (text.empty()) return json::Object{};
  auto parsed = json::parse(text);
  if (parsed.ok() && parsed->is_object()) return std::move(*parsed);
  log_warn("a past tool call has arguments that are not a JSON object; the model is shown {{}} instead");
  return json::Object{};
}

json::Value history_call(std::string id, std::string name, json::Value arguments) {
  json::Value function(json::Object{{"name", std::move(name)}, {"arguments", std::move(arguments)}});
  return json::Object{{"id", std::move(id)}, {"type", "function"}, {"function", std::move(function)}};
}

namespace {

ApiStatus normalize_call(json::Value& call, const std::string& where) {
  if (!call.is_object()) return bad_field(where, "must be an object with id, type and function.");
  if (member(call, "type") != nullptr && type_of(call) != "function") {
    return bad_field(where + ".type", "must be function.");
  }
  const json::Value* given = member(call, "function");
  if (given == nullptr || !given->is_object()) return bad_field(where + ".function", "must be an object.");
  const json::Value* name = member(*given, "name");
  if (name == nullptr || !name->is_string()) return bad_field(where + ".function.name", "must be a string.");
  const json::Value* arguments = member(*given, "arguments");
  json::Value function = *given;
  if (arguments == nullptr) {
    function.set("arguments", json::Object{});
  } else if (!arguments->is_object()) {
    function.set("arguments", arguments_object(arguments->is_string() ? arguments->as_string() : "?"));
  }
  call.set("function", std::move(function));
  if (member(call, "type") == nullptr) call.set("type", "function");
  return Ok{};
}

// Older templates read reasoning_content, newer ones reasoning.
void name_reasoning_twice(json::Value& message) {
  const json::Value* reasoning = member(message, "reasoning");
  if (reasoning == nullptr) reasoning = member(message, "reasoning_content");
  if (reasoning == nullptr || !reasoning->is_string()) return;
  const json::Value text = *reasoning;
  message.set("reasoning", text);
  message.set("reasoning_content", text);
}

ApiResult<int64_t> normalize_calls(json::Value& message, const std::string& where) {
  for (auto it = message.as_object().begin(); it != message.as_object().end(); ++it) {
    if (it->first != "tool_calls") continue;
    json::Value& calls = it->second;
    if (calls.is_null() || (calls.is_array() && calls.as_array().empty())) {
      message.as_object().erase(it);
      return int64_t{0};
    }
    if (!calls.is_array()) return bad_field(where + ".tool_calls", "must be a list.");
    size_t at = 0;
    for (json::Value& call : calls.as_array()) {
      QUIRE_TRY(normalize_call(call, where + ".tool_calls[" + std::to_string(at++) + "]"));
    }
    return static_cast<int64_t>(at);
  }
  return int64_t{0};
}

}  // namespace

ApiResult<int64_t> normalize_history(json::Value& messages) {
  int64_t total = 0;
  for (size_t i = 0; i < messages.as_array().size(); ++i) {
    json::Value& message = messages.as_array()[i];
    const json::Value* found = member(message, "role");
    const std::string role = found != nullptr && found->is_string() ? found->as_string() : "";
    if (role == "tool" && member(message, "content") == nullptr) message.set("content", "");
    if (role != "assistant") continue;
    name_reasoning_twice(message);
    QUIRE_ASSIGN(const int64_t calls, normalize_calls(message, "messages[" + std::to_string(i) + "]"));
    total += calls;
  }
  return total;
}

void complete_results(json::Value& messages, CallIdStyle style, bool named) {
  std::unordered_map<std::string, std::string> names;  // of tools, by the id of the call
  for (json::Value& message : messages.as_array()) {
    for (auto& [key, calls] : message.as_object()) {
      if (key != "tool_calls" || !calls.is_array()) continue;
      for (json::Value& call : calls.as_array()) {
        const json::Value* id = member(call, "id");
        const json::Value* function = member(call, "function");
        const json::Value* name = function == nullptr ? nullptr : member(*function, "name");
        if (id == nullptr || !id->is_string()) continue;
        const std::string given = id->as_string();
        if (name != nullptr && name->is_string()) names[given] = name->as_string();
        if (std::string fits = fitting_call_id(style, given); fits != given) call.set("id", std::move(fits));
      }
    }
    const json::Value* id = member(message, "tool_call_id");
    if (id == nullptr || !id->is_string()) continue;
    const std::string given = id->as_string();
    const auto found = names.find(given);
    if (named && found != names.end() && member(message, "name") == nullptr) message.set("name", found->second);
    if (std::string fits = fitting_call_id(style, given); fits != given) message.set("tool_call_id", std::move(fits));
  }
}

}  // namespace quire::api
