// SPDX-License-Identifier: Apache-2.0
// Finds out how a template takes instructions, and the reasoning and the calls of earlier answers, and gives them to it
// in this way.
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/chat_template.h"

namespace quire::text {
namespace {

constexpr std::string_view kReasoning = "QUIRE_REASONING", kText = "QUIRE_TEXT";
// Two calls of tools, and their results.
constexpr const char* kNames[] = {"quire_first", "quire_second"};
constexpr const char* kIds[] = {"abcdefgh1", "abcdefgh2"};
constexpr const char* kArguments[] = {"QUIRE_ARGUMENT_ONE", "QUIRE_ARGUMENT_TWO"};
constexpr const char* kResults[] = {"QUIRE_RESULT_ONE", "QUIRE_RESULT_TWO"};

json::Value probed_call(size_t i) {
  json::Value arguments(json::Object{{"x", kArguments[i]}});
  json::Value function(json::Object{{"name", kNames[i]}, {"arguments", std::move(arguments)}});
  return json::Object{{"id", kIds[i]}, {"type", "function"}, {"function", std::move(function)}};
}

json::Value probed_result(size_t i) {
  return json::Object{{"role", "tool"}, {"tool_call_id", kIds[i]}, {"name", kNames[i]}, {"content", kResults[i]}};
}

Result<std::string> probe_history(const jinja::Template& parsed, json::Array messages) {
  messages.insert(messages.begin(), json::Object{{"role", "user"}, {"content", "?"}});
  json::Array tools;
  for (const char* name : kNames) {
    json::Value parameter(json::Object{{"type", "string"}, {"description", ""}});
    json::Value schema(json::Object{
        {"type", "object"}, {"properties", json::Object{{"x", std::move(parameter)}}}, {"required", json::Array{"x"}}});
    json::Value function(json::Object{{"name", name}, {"description", ""}, {"parameters", std::move(schema)}});
    tools.emplace_back(json::Object{{"type", "function"}, {"function", std::move(function)}});
  }
  return probe(parsed, std::move(messages), std::move(tools));
}

// An answer that calls a tool, with the tool's result: templates show reasoning there, if anywhere.
Result<std::string> probe_answer(const jinja::Template& parsed, json::Object answer) {
  answer.emplace_back("role", "assistant");
  answer.emplace_back("tool_calls", json::Array{probed_call(0)});
  return probe_history(parsed, {json::Value(std::move(answer)), probed_result(0)});
}

// Whether the reasoning is shown, other than as a string of a list or an object that was printed.
bool shown(const Result<std::string>& prompt) {
  if (!prompt.ok()) return false;
  const size_t at = prompt->find(kReasoning);
  if (at == std::string::npos) return false;
  const char next = at + kReasoning.size() < prompt->size() ? (*prompt)[at + kReasoning.size()] : '\n';
  return next != '\'' && next != '"';
}

// Whether a prompt shows two calls, in one message or in two, and their results. Some templates take only null as the
// content of an answer that calls tools.
bool shows_both(const jinja::Template& parsed, bool in_one) {
  for (const json::Value& content : {json::Value(""), json::Value()}) {
    json::Array messages;
    const auto add_answer = [&](json::Array calls) {
      messages.emplace_back(
          json::Object{{"role", "assistant"}, {"content", content}, {"tool_calls", std::move(calls)}});
    };
    if (in_one) add_answer({probed_call(0), probed_call(1)});
    for (size_t i = 0; i < 2; ++i) {
      if (!in_one) add_answer({probed_call(i)});
      messages.push_back(probed_result(i));
    }
    const auto prompt = probe_history(parsed, std::move(messages));
    if (!prompt.ok()) continue;
    const auto has = [&](std::string_view text) { return prompt->find(text) != std::string::npos; };
    return has(kArguments[0]) && has(kArguments[1]) && has(kResults[0]) && has(kResults[1]);
  }
  return false;
}

// Whether a prompt shows messages of these roles in front of a question.
bool shows_instructions(const jinja::Template& parsed, const std::vector<std::string>& roles) {
  json::Array messages;
  for (size_t i = 0; i < roles.size(); ++i) {
    messages.emplace_back(json::Object{{"role", roles[i]}, {"content", kResults[i]}});
  }
  messages.emplace_back(json::Object{{"role", "user"}, {"content", "?"}});
  const auto prompt = probe(parsed, std::move(messages), nullptr);
  for (size_t i = 0; i < roles.size(); ++i) {
    if (!prompt.ok() || prompt->find(kResults[i]) == std::string::npos) return false;
  }
  return true;
}

// A short conversation with a message of that role, whose content is `content`.
Result<std::string> probe_role(const jinja::Template& parsed, const std::string& role, json::Value content) {
  json::Value question(json::Object{{"role", "user"}, {"content", "?"}});
  json::Value message(json::Object{{"role", role}, {"content", std::move(content)}});
  if (role == "assistant") return probe(parsed, {question, std::move(message), question}, nullptr);
  if (role != "tool") return probe(parsed, {std::move(message), std::move(question)}, nullptr);
  json::Value call(json::Object{{"role", "assistant"}, {"content", ""}, {"tool_calls", json::Array{probed_call(0)}}});
  message.set("tool_call_id", kIds[0]);
  message.set("name", kNames[0]);
  return probe_history(parsed, {std::move(call), std::move(message)});
}

json::Value thinking_part(const std::string& text) {
  return json::Object{{"type", "thinking"}, {"thinking", text}};
}

const json::Value* text_member(const json::Value& message, const char* name) {
  const json::Value* value = message.find(name);
  return value != nullptr && value->is_string() && !value->as_string().empty() ? value : nullptr;
}

size_t num_calls(const json::Value& message) {
  const json::Value* calls = message.find("tool_calls");
  return calls != nullptr && calls->is_array() ? calls->as_array().size() : 0;
}

bool has_role(const json::Value& message, std::string_view role) {
  const json::Value* given = text_member(message, "role");
  return given != nullptr && given->as_string() == role;
}

bool is_answer(const json::Value& message) {
  return has_role(message, "assistant");
}

bool instructs(const json::Value& message) {
  return message.is_object() && (has_role(message, "system") || has_role(message, "developer"));
}

// The parts of a content, which may be a string.
json::Array parts_of(const json::Value* content) {
  if (content == nullptr || content->is_null()) return {};
  if (content->is_array()) return content->as_array();
  return {json::Object{{"type", "text"}, {"text", *content}}};
}

// Appends the content of `from` to that of `to`.
void join_contents(json::Value& to, const json::Value& from) {
  const json::Value* before = to.find("content");
  const json::Value* after = from.find("content");
  if (before != nullptr && before->is_string() && after != nullptr && after->is_string()) {
    return to.set("content", before->as_string() + "\n\n" + after->as_string());
  }
  json::Array parts = parts_of(before);
  for (json::Value& part : parts_of(after)) parts.push_back(std::move(part));
  to.set("content", std::move(parts));
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
  if (!or_text || content == nullptr || num_calls(message) == 0) return message.set("thinking", reasoning);
  message.set("thinking", reasoning + "\n" + content->as_string());
  message.set("content", "");
}

// Adds an answer for each call. Its result follows; results that belong to no call come last.
void add_parted(json::Value message, std::span<json::Value> results, json::Array& out) {
  const json::Array calls = message.find("tool_calls")->as_array();
  std::vector<bool> used(results.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    // The first answer has the text and the reasoning.
    json::Value answer(json::Object{{"role", "assistant"}, {"content", ""}});
    if (i == 0) answer = std::move(message);
    answer.set("tool_calls", json::Array{calls[i]});
    out.push_back(std::move(answer));
    const json::Value* id = calls[i].find("id");
    const bool last = i + 1 == calls.size();
    for (size_t j = 0; j < results.size(); ++j) {
      if (used[j] || (!last && (id == nullptr || !(*results[j].find("tool_call_id") == *id)))) continue;
      used[j] = true;
      out.push_back(std::move(results[j]));
    }
  }
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

void find_instructions(const jinja::Template& parsed, TemplateTraits& traits) {
  const bool system = shows_instructions(parsed, {"system"});
  traits.shows_system = system;
  traits.loses_developer = system && !shows_instructions(parsed, {"developer"});
  traits.one_system = system && !shows_instructions(parsed, {"system", "system"});
}

void place_instructions(json::Value& messages, const TemplateTraits& traits) {
  if (!messages.is_array()) return;
  json::Array& all = messages.as_array();
  if (traits.loses_developer) {
    for (json::Value& message : all) {
      if (has_role(message, "developer")) message.set("role", "system");
    }
  }
  if (!traits.one_system) return;
  size_t count = 0;
  while (count < all.size() && instructs(all[count])) ++count;
  for (size_t i = 1; i < count; ++i) join_contents(all[0], all[i]);
  if (count > 1) all.erase(all.begin() + 1, all.begin() + static_cast<std::ptrdiff_t>(count));
}

void find_string_roles(const jinja::Template& parsed, TemplateTraits& traits) {
  for (const char* role : {"system", "developer", "assistant", "tool"}) {
    json::Array parts;
    for (const char* text : kResults) parts.emplace_back(json::Object{{"type", "text"}, {"text", text}});
    const auto from_list = probe_role(parsed, role, std::move(parts));
    const auto has = [](const Result<std::string>& prompt, const std::string& text) {
      return prompt.ok() && prompt->find(text) != std::string::npos;
    };
    // A list that was printed shows the names of its members.
    const std::string first = kResults[0];
    const bool printed = has(from_list, "'text': '" + first) || has(from_list, "\"text\": \"" + first);
    if (has(from_list, kResults[0]) && has(from_list, kResults[1]) && !printed) continue;
    if (has(probe_role(parsed, role, first), first)) traits.string_roles.emplace_back(role);
  }
}

void find_calls(const jinja::Template& parsed, TemplateTraits& traits) {
  traits.one_call = !shows_both(parsed, true) && shows_both(parsed, false);
}

void part_calls(json::Value& messages) {
  if (!messages.is_array()) return;
  json::Array out;
  json::Array& given = messages.as_array();
  for (size_t at = 0; at < given.size();) {
    json::Value& message = given[at++];
    if (!is_answer(message) || num_calls(message) < 2) {
      out.push_back(std::move(message));
      continue;
    }
    const size_t begin = at;
    while (at < given.size() && given[at].find("tool_call_id") != nullptr) ++at;
    add_parted(std::move(message), std::span(given).subspan(begin, at - begin), out);
  }
  messages = json::Value(std::move(out));
}

}  // namespace quire::text
