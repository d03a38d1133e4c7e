// SPDX-License-Identifier: Apache-2.0
// Writes tools, calls and results as plain text.
#include "api/tool_description.h"

#include <algorithm>
#include <string>
#include <utility>

namespace quire::api {
namespace {

// Appends text to a message's content, which is a string, a list of parts or missing.
void append_text(json::Value& message, const std::string& text, const char* separator) {
  const json::Value* content = message.find("content");
  if (content != nullptr && content->is_array()) {
    json::Value parts = *content;
    parts.as_array().emplace_back(json::Object{{"type", "text"}, {"text", text}});
    message.set("content", std::move(parts));
    return;
  }
  std::string whole = content != nullptr && content->is_string() ? content->as_string() : "";
  if (!whole.empty()) whole += separator;
  message.set("content", whole + text);
}

// Puts a text in front of the message's content.
void prepend_text(json::Value& message, const std::string& text) {
  const json::Value* content = message.find("content");
  if (content == nullptr || !content->is_array()) {
    return message.set("content", text + (content != nullptr && content->is_string() ? content->as_string() : ""));
  }
  json::Array parts = content->as_array();
  parts.insert(parts.begin(), json::Object{{"type", "text"}, {"text", text}});
  message.set("content", std::move(parts));
}

bool has_role(const json::Value& message, std::string_view role) {
  const json::Value* value = message.find("role");
  return value != nullptr && value->is_string() && value->as_string() == role;
}

std::string written_calls(const json::Value& calls) {
  std::string out;
  for (const json::Value& call : calls.as_array()) {
    const json::Value* function = call.find("function");
    const json::Value* name = function == nullptr ? nullptr : function->find("name");
    const json::Value* arguments = function == nullptr ? nullptr : function->find("arguments");
    if (name == nullptr || arguments == nullptr) continue;
    if (!out.empty()) out += "\n";
    out += "<tool_call>\n{\"name\": " + json::dump(*name) + ", \"arguments\": " + json::dump(*arguments) +
           "}\n</tool_call>";
  }
  return out;
}

std::string written_result(const json::Value& message) {
  const json::Value* content = message.find("content");
  std::string text;
  if (content != nullptr && content->is_string()) {
    text = content->as_string();
  } else if (content != nullptr && content->is_array()) {
    for (const json::Value& part : content->as_array()) {
      const json::Value* piece = part.find("text");
      if (piece == nullptr || !piece->is_string()) continue;
      if (!text.empty()) text += "\n";
      text += piece->as_string();
    }
  }
  return "<tool_response>\n" + text + "\n</tool_response>";
}

}  // namespace

void describe_tools(const json::Value& tools, bool in_system, json::Value& messages) {
  std::string text =
      "You can call functions to help with the user's request. These are the functions, as JSON:\n<tools>";
  for (const json::Value& tool : tools.as_array()) text += "\n" + json::dump(tool);
  text +=
      "\n</tools>\nTo call a function, write a JSON object with its name and its arguments inside <tool_call> and "
      "</tool_call>:\n<tool_call>\n{\"name\": \"function_name\", \"arguments\": {\"argument\": "
      "\"value\"}}\n</tool_call>\n"
      "Its result is given to you inside <tool_response> and </tool_response>.";
  json::Array& list = messages.as_array();
  const auto user =
      std::find_if(list.begin(), list.end(), [](const json::Value& one) { return has_role(one, "user"); });
  if (!in_system && user != list.end()) return prepend_text(*user, text + "\n\n");
  if (!list.empty() && has_role(list[0], "system")) return append_text(list[0], text, "\n\n");
  list.insert(list.begin(), json::Object{{"role", "system"}, {"content", std::move(text)}});
}

void write_out_calls(json::Value& messages) {
  json::Array out;
  bool after_result = false;  // results, and what the user adds, become one message: some templates want turns in turn
  for (json::Value& message : messages.as_array()) {
    if (has_role(message, "tool")) {
      if (!std::exchange(after_result, true)) out.emplace_back(json::Object{{"role", "user"}});
      append_text(out.back(), written_result(message), "\n");
      continue;
    }
    const json::Value* content = message.find("content");
    if (after_result && has_role(message, "user") && content != nullptr && content->is_string()) {
      append_text(out.back(), content->as_string(), "\n\n");
      continue;
    }
    after_result = false;
    const json::Value* calls = message.find("tool_calls");
    if (has_role(message, "assistant") && calls != nullptr && calls->is_array()) {
      append_text(message, written_calls(*calls), "\n");
      std::erase_if(message.as_object(), [](const json::Member& member) { return member.first == "tool_calls"; });
    }
    out.push_back(std::move(message));
  }
  messages = std::move(out);
}

}  // namespace quire::api
