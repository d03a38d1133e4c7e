// SPDX-License-Identifier: Apache-2.0
// Chooses a template, converts messages to the shape that it needs, and renders.
#include "text/jinja/chat_template.h"

#include <algorithm>

#include "text/jinja/text.h"

namespace quire::text {
namespace {

Failure prefixed(const std::string& prefix, const Error& error) {
  return Error{error.code, prefix + error.message};
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  return parse_named({{"default", std::string(source)}});
}

Result<ChatTemplate> ChatTemplate::parse_config(const json::Value& chat_template) {
  if (chat_template.is_string()) return parse(chat_template.as_string());
  if (!chat_template.is_array()) {
    return invalid_argument({"The field chat_template must be a string or an array of named templates, not ",
                             json::describe(chat_template.kind()), "."});
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
    return invalid_argument("The model has an empty list of chat templates; give one with --chat-template.");
  ChatTemplate result;
  for (const auto& [name, source] : named) {
    auto parsed = jinja::Template::parse(source);
    if (!parsed.ok()) {
      return named.size() == 1 ? parsed.failure() : prefixed("In the template \"" + name + "\": ", parsed.error());
    }
    result.templates_.push_back({name, source, *parsed, find_traits(*parsed)});
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
  return not_found({"The model has no chat template called \"", std::string(name.empty() ? "default" : name),
                    "\"; it has: ", known, "."});
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
  return chosen->traits.format;
}

bool ChatTemplate::shows_plain_text() const {
  return std::all_of(templates_.begin(), templates_.end(), [](const Named& n) { return n.traits.shows_strings; });
}

bool ChatTemplate::shows_system() const {
  return std::all_of(templates_.begin(), templates_.end(), [](const Named& n) { return n.traits.shows_system; });
}

namespace {

bool has_items(const json::Value& value) {
  return value.is_array() && !value.as_array().empty();
}

// Appended to the text of the last message, to find its end in the prompt. The space at its end shows whether the
// template trims contents.
constexpr std::string_view kContinueTag = "QUIRE_CONTINUES_HERE ";

Failure nothing_to_continue() {
  return invalid_argument(
      "continue_final_message is set, but the last message has no text to continue; end the conversation with a "
      "message that has content.");
}

// Marks the end of the last message's text; returns that text.
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

// Truncates the prompt right after the last message's text, as transformers does.
Result<MarkedText> truncate_at_mark(MarkedText marked, const std::string& text) {
  std::string& prompt = marked.text;
  const std::string_view tag = kContinueTag.substr(0, kContinueTag.size() - 1);
  const size_t at = prompt.rfind(tag);
  if (at == std::string::npos || prompt.find(jinja::strip(text, nullptr, true, true)) == std::string::npos) {
    return invalid_argument(
        "continue_final_message is set, but the text of the last message is not in the rendered prompt: this chat "
        "template changes it.");
  }
  const bool kept_blanks = prompt.compare(at, kContinueTag.size(), kContinueTag) == 0;
  prompt.resize(at);
  if (!kept_blanks) prompt.resize(jinja::strip(prompt, nullptr, false, true).size());
  marked.origins.truncate(prompt.size());
  return marked;
}

// Whether the content is null or missing, which some templates cannot add to a string.
bool lacks_content(const json::Value& message) {
  const json::Value* content = message.find("content");
  return content == nullptr || content->is_null();
}

}  // namespace

Result<MarkedText> ChatTemplate::render_with(const Named& chosen, const ChatRequest& request,
                                             json::Value messages) const {
  std::string final;
  if (request.continue_final_message) {
    QUIRE_ASSIGN(final, mark_final_text(messages));
  }
  // Of two variables with one name, the engine uses the last, and a request may have many.
  const json::Value generation(request.add_generation_prompt), bos(request.bos_token), eos(request.eos_token);
  json::Object tokens;
  for (const auto& [token, text] : request.special_tokens) tokens.emplace_back(token, text);
  std::vector<jinja::Variable> variables = {{"messages", &messages, Origin::kUntrusted, true},
                                            {"tools", &request.tools, Origin::kUntrusted},
                                            {"documents", &request.documents, Origin::kUntrusted},
                                            {"add_generation_prompt", &generation},
                                            {"bos_token", &bos},
                                            {"eos_token", &eos}};
  for (const auto& [token, text] : tokens) variables.push_back({token, &text});
  const auto add_all = [&](const json::Value& kwargs, Origin origin) {
    if (!kwargs.is_object()) return;
    for (const auto& [key, value] : kwargs.as_object()) variables.push_back({key, &value, origin});
  };
  add_all(request.default_kwargs, Origin::kTemplate);
  add_all(request.kwargs, Origin::kUntrusted);
  jinja::RenderOptions options;
  options.now = request.now;
  options.cancelled = request.cancelled;
  QUIRE_ASSIGN(MarkedText prompt, chosen.parsed.render_marked(variables, options));
  if (request.continue_final_message) return truncate_at_mark(std::move(prompt), final);
  return prompt;
}

Result<ChatPrompt> ChatTemplate::render(const ChatRequest& request, std::string_view name) const {
  if (!request.messages.is_array()) return invalid_argument("The field messages must be an array of messages.");
  if (!request.kwargs.is_null() && !request.kwargs.is_object()) {
    return invalid_argument("The field chat_template_kwargs must be an object.");
  }
  if (request.continue_final_message && request.add_generation_prompt) {
    return invalid_argument(
        "continue_final_message and add_generation_prompt cannot both be true: set one of them to false.");
  }
  QUIRE_ASSIGN(const Named* chosen, choose(!request.tools.is_null(), name));
  ContentRules rules = content_rules(request.content_format, chosen->traits);
  const bool as_is = request.content_format == ContentFormat::kAsIs;
  json::Value messages = request.messages;
  const auto normalize = [&]() -> Status {
    QUIRE_ASSIGN(messages, normalize_messages(request.messages, rules));
    place_instructions(messages, chosen->traits);
    place_reasoning(messages, chosen->traits, rules);
    if (chosen->traits.one_call && !request.continue_final_message) part_calls(messages);
    return {};
  };
  if (!as_is) QUIRE_TRY(normalize());
  const json::Array& given = request.messages.as_array();
  const bool may_retry = !as_is && !rules.fill_null && std::any_of(given.begin(), given.end(), lacks_content);
  auto marked = render_with(*chosen, request, std::move(messages));
  if (!marked.ok() && may_retry && marked.error().code == ErrorCode::kInvalidArgument &&
      !marked.error().message.starts_with(jinja::kRaisedPrefix)) {
    // A template that cannot handle null (an assistant that only calls tools) gets empty content, as in other servers.
    rules.fill_null = true;
    QUIRE_TRY(normalize());
    auto filled = render_with(*chosen, request, std::move(messages));
    if (filled.ok()) marked = std::move(filled);
  }
  if (!marked.ok()) return marked.failure();
  ChatPrompt prompt;
  prompt.origins = marked->origins.ranges(marked->size());
  prompt.text = std::move(marked->text);
  return prompt;
}

}  // namespace quire::text
