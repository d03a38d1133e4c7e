// SPDX-License-Identifier: Apache-2.0
// Finds out where a template looks for the reasoning of earlier answers, and puts it there.
#include <string>
#include <string_view>

#include "text/jinja/chat_template.h"

namespace quire::text {
namespace {

constexpr std::string_view kReasoning = "QUIRE_REASONING", kText = "QUIRE_TEXT";

// An answer that calls a tool, with the question and the tool's result: templates show reasoning there, if anywhere.
Result<std::string> probe_answer(const jinja::Template& parsed, json::Object answer) {
  json::Value function(json::Object{{"name", "f"}, {"arguments", json::Object{}}});
  const json::Value call(json::Object{{"id", "abcdefghi"}, {"type", "function"}, {"function", std::move(function)}});
  answer.emplace_back("role", "assistant");
  answer.emplace_back("tool_calls", json::Array{call});
  json::Value definition(json::Object{
      {"name", "f"},
      {"description", ""},
      {"parameters", json::Object{{"type", "object"}, {"properties", json::Object{}}, {"required", json::Array{}}}}});
  json::Value tool(json::Object{{"type", "function"}, {"function", std::move(definition)}});
  json::Value question(json::Object{{"role", "user"}, {"content", "?"}});
  json::Value result(json::Object{{"role", "tool"}, {"tool_call_id", "abcdefghi"}, {"name", "f"}, {"content", "!"}});
  return probe(parsed, {std::move(question), json::Value(std::move(answer)), std::move(result)},
               json::Array{std::move(tool)});
}

// Whether the reasoning is shown, other than as a string of a list or an object that was printed.
bool shown(const Result<std::string>& prompt) {
  if (!prompt.ok()) return false;
  const size_t at = prompt->find(kReasoning);
  if (at == std::string::npos) return false;
  const char next = at + kReasoning.size() < prompt->size() ? (*prompt)[at + kReasoning.size()] : '\n';
  return next != '\'' && next != '"';
}

json::Value thinking_part(const std::string& text) {
  return json::Object{{"type", "thinking"}, {"thinking", text}};
}

const json::Value* text_member(const json::Value& message, const char* name) {
  const json::Value* value = message.find(name);
  return value != nullptr && value->is_string() && !value->as_string().empty() ? value : nullptr;
}

bool is_answer(const json::Value& message) {
  const json::Value* role = text_member(message, "role");
  return role != nullptr && role->as_string() == "assistant";
}

bool calls_tools(const json::Value& message) {
  const json::Value* calls = message.find("tool_calls");
  return calls != nullptr && calls->is_array() && !calls->as_array().empty();
}

// Puts a part with the reasoning in front of the content.
void add_part(json::Value& message, const std::string& reasoning) {
  json::Array parts = {thinking_part(reasoning)};
  const json::Value* content = message.find("content");
  if (content != nullptr && content->is_string() && !content->as_string().empty()) {
    parts.emplace_back(json::Object{{"type", "text"}, {"text", *content}});
  } else if (content != nullptr && content->is_array()) {
    for (const json::Value& part : content->as_array()) {
      if (is_thinking_part(part)) return;
      parts.push_back(part);
    }
  }
  message.set("content", std::move(parts));
}

void add_thinking(json::Value& message, const std::string& reasoning, bool or_text) {
  if (message.find("thinking") != nullptr) return;
  const json::Value* content = text_member(message, "content");
  if (!or_text || content == nullptr || !calls_tools(message)) return message.set("thinking", reasoning);
  message.set("thinking", reasoning + "\n" + content->as_string());
  message.set("content", "");
}

}  // namespace

void find_reasoning(const jinja::Template& parsed, bool takes_lists, TemplateTraits& traits) {
  const std::string reasoning(kReasoning);
  if (shown(probe_answer(parsed, {{"content", ""}, {"reasoning", reasoning}, {"reasoning_content", reasoning}}))) {
    return;
  }
  if (shown(probe_answer(parsed, {{"content", ""}, {"thinking", reasoning}}))) {
    traits.reasoning = ReasoningPlace::kThinking;
    const auto both = probe_answer(parsed, {{"content", std::string(kText)}, {"thinking", reasoning}});
    traits.thinking_or_text = !both.ok();
  } else if (takes_lists && shown(probe_answer(parsed, {{"content", json::Array{thinking_part(reasoning)}}}))) {
    traits.reasoning = ReasoningPlace::kPart;
  }
}

bool is_thinking_part(const json::Value& part) {
  const json::Value* type = part.find("type");
  const json::Value* text = part.find("thinking");
  return type != nullptr && type->is_string() && type->as_string() == "thinking" && text != nullptr &&
         text->is_string();
}

void name_thinking_parts(json::Value& message) {
  const json::Value* content = message.find("content");
  if (!is_answer(message) || content == nullptr || !content->is_array()) return;
  std::string thoughts;
  json::Array rest;
  for (const json::Value& part : content->as_array()) {
    if (is_thinking_part(part)) {
      thoughts += part.find("thinking")->as_string();
    } else {
      rest.push_back(part);
    }
  }
  if (rest.size() == content->as_array().size()) return;
  message.set("content", rest.empty() ? json::Value("") : json::Value(std::move(rest)));
  if (text_member(message, "reasoning") != nullptr || text_member(message, "reasoning_content") != nullptr) return;
  message.set("reasoning", thoughts);
  message.set("reasoning_content", thoughts);
}

void place_reasoning(json::Value& messages, const TemplateTraits& traits, const ContentRules& rules) {
  if (traits.reasoning == ReasoningPlace::kReasoning || !messages.is_array()) return;
  if (traits.reasoning == ReasoningPlace::kPart && !rules.keep_thinking) return;
  for (json::Value& message : messages.as_array()) {
    if (!is_answer(message)) continue;
    const json::Value* given = text_member(message, "reasoning");
    if (given == nullptr) given = text_member(message, "reasoning_content");
    if (given == nullptr) continue;
    const std::string reasoning = given->as_string();
    if (traits.reasoning == ReasoningPlace::kPart) {
      add_part(message, reasoning);
    } else {
      add_thinking(message, reasoning, traits.thinking_or_text);
    }
  }
}

}  // namespace quire::text
