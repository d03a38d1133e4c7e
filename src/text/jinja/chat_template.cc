// SPDX-License-Identifier: Apache-2.0
// Chooses a template, brings messages into the shape that it wants, and renders.
#include "text/jinja/chat_template.h"

#include <algorithm>

#include "text/jinja/text.h"

namespace quire::text {
namespace {

Error prefixed(const std::string& prefix, const Error& error) {
  return {error.code, prefix + error.message};
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  return parse_named({{"default", std::string(source)}});
}

Result<ChatTemplate> ChatTemplate::parse_config(const json::Value& chat_template) {
  if (chat_template.is_string()) return parse(chat_template.as_string());
  if (!chat_template.is_array()) {
    return invalid_argument(
        std::string("The field chat_template must be a string or an array of named templates, not ") +
        json::describe(chat_template.kind()) + ".");
  }
  std::vector<std::pair<std::string, std::string>> named;
  for (const json::Value& entry : chat_template.as_array()) {
    const json::Value* name = entry.find("name");
    const json::Value* source = entry.find("template");
    if (name == nullptr || source == nullptr || !name->is_string() || !source->is_string()) {
      return invalid_argument("Each entry of the array chat_template must have the strings name and template.");
    }
    named.emplace_back(name->as_string(), source->as_string());
  }
  return parse_named(named);
}

Result<ChatTemplate> ChatTemplate::parse_named(const std::vector<std::pair<std::string, std::string>>& named) {
  if (named.empty())
    return invalid_argument("The model has an empty list of chat templates; give one by --chat-template.");
  ChatTemplate result;
  for (const auto& [name, source] : named) {
    auto parsed = jinja::Template::parse(source);
    if (!parsed.ok()) {
      return named.size() == 1 ? parsed.error() : prefixed("In the template \"" + name + "\": ", parsed.error());
    }
    const ContentFormat format = detect_content_format(parsed->program());
    result.templates_.push_back({name, source, *parsed, format});
  }
  return result;
}

Result<const ChatTemplate::Named*> ChatTemplate::choose(bool has_tools, std::string_view name) const {
  auto find = [&](std::string_view wanted) -> const Named* {
    for (const Named& candidate : templates_) {
      if (candidate.name == wanted) return &candidate;
    }
    return nullptr;
  };
  const Named* chosen = nullptr;
  if (!name.empty()) {
    chosen = find(name);
  } else {
    if (has_tools) chosen = find("tool_use");
    if (chosen == nullptr) chosen = find("default");
    if (chosen == nullptr && templates_.size() == 1) chosen = &templates_[0];
  }
  if (chosen != nullptr) return chosen;
  std::string known;
  for (const Named& candidate : templates_) known += (known.empty() ? "" : ", ") + candidate.name;
  return not_found("The model has no chat template called \"" + std::string(name.empty() ? "default" : name) +
                   "\"; it has: " + known + ".");
}

std::vector<std::string> ChatTemplate::names() const {
  std::vector<std::string> out;
  for (const Named& named : templates_) out.push_back(named.name);
  return out;
}

const std::string& ChatTemplate::source(std::string_view name) const {
  static const std::string kNone;
  for (const Named& named : templates_) {
    if (named.name == name) return named.source;
  }
  return kNone;
}

Result<ContentFormat> ChatTemplate::content_format(bool has_tools, std::string_view name) const {
  QUIRE_ASSIGN(const Named* chosen, choose(has_tools, name));
  return chosen->format;
}

namespace {

bool has_items(const json::Value& value) {
  return value.is_array() && !value.as_array().empty();
}

// Put behind the last message's text, to find where it ends in the prompt. The blank at its end shows whether the
// template trims contents.
constexpr std::string_view kContinueTag = "QUIRE_CONTINUES_HERE ";

Error nothing_to_continue() {
  return invalid_argument(
      "continue_final_message is set, but the last message has no text to continue; end the conversation with a "
      "message "
      "that has content.");
}

// Marks the end of the last message's text; gives that text.
Result<std::string> mark_final_text(json::Value& messages) {
  if (!has_items(messages)) return nothing_to_continue();
  json::Value& message = messages.as_array().back();
  const json::Value* content = message.find("content");
  if (content == nullptr) return nothing_to_continue();
  if (content->is_string()) {
    const std::string text = content->as_string();
    message.set("content", text + std::string(kContinueTag));
    return text;
  }
  if (!content->is_array()) return nothing_to_continue();
  json::Value parts = *content;
  for (auto part = parts.as_array().rbegin(); part != parts.as_array().rend(); ++part) {
    const json::Value* piece = part->find("text");
    if (piece == nullptr || !piece->is_string()) continue;
    const std::string text = piece->as_string();
    part->set("text", text + std::string(kContinueTag));
    message.set("content", std::move(parts));
    return text;
  }
  return nothing_to_continue();
}

// Cuts the prompt off right after the last message's text, as transformers does.
Result<std::string> cut_at_mark(std::string prompt, const std::string& text) {
  const std::string_view tag = kContinueTag.substr(0, kContinueTag.size() - 1);
  const size_t at = prompt.rfind(tag);
  if (at == std::string::npos || prompt.find(jinja::strip(text, nullptr, true, true)) == std::string::npos) {
    return invalid_argument(
        "continue_final_message is set, but the last message's text does not appear in the rendered prompt: this chat "
        "template changes it.");
  }
  const bool kept_blanks = prompt.compare(at, kContinueTag.size(), kContinueTag) == 0;
  prompt.resize(at);
  if (!kept_blanks) prompt.resize(jinja::strip(prompt, nullptr, false, true).size());
  return prompt;
}

json::Value make_context(const ChatRequest& request, json::Value messages) {
  // Members are only appended, and of two with one name the engine takes the last: a request may bring many.
  json::Object context;
  context.emplace_back("messages", std::move(messages));
  context.emplace_back("tools", request.tools);
  context.emplace_back("documents", request.documents);
  context.emplace_back("add_generation_prompt", request.add_generation_prompt);
  context.emplace_back("bos_token", request.bos_token);
  context.emplace_back("eos_token", request.eos_token);
  for (const auto& [name, token] : request.special_tokens) context.emplace_back(name, token);
  if (request.kwargs.is_object()) {
    for (const auto& [name, value] : request.kwargs.as_object()) context.emplace_back(name, value);
  }
  return json::Value(std::move(context));
}

}  // namespace

Result<std::string> ChatTemplate::render(const ChatRequest& request, std::string_view name) const {
  if (!request.messages.is_array()) return invalid_argument("The field messages must be an array of messages.");
  if (!request.kwargs.is_null() && !request.kwargs.is_object()) {
    return invalid_argument("The field chat_template_kwargs must be an object.");
  }
  if (request.continue_final_message && request.add_generation_prompt) {
    return invalid_argument(
        "continue_final_message and add_generation_prompt exclude each other: set one of them to false.");
  }
  QUIRE_ASSIGN(const Named* chosen, choose(!request.tools.is_null(), name));
  const ContentFormat format = request.content_format == ContentFormat::kAuto ? chosen->format : request.content_format;
  json::Value messages = request.messages;
  if (format != ContentFormat::kAsIs) {
    QUIRE_ASSIGN(messages, normalize_messages(request.messages, format));
  }
  std::string final;
  if (request.continue_final_message) {
    QUIRE_ASSIGN(final, mark_final_text(messages));
  }
  jinja::RenderOptions options;
  options.now = request.now;
  options.cancelled = request.cancelled;
  QUIRE_ASSIGN(std::string prompt, chosen->parsed.render(make_context(request, std::move(messages)), options));
  if (request.continue_final_message) return cut_at_mark(std::move(prompt), final);
  return prompt;
}

}  // namespace quire::text
