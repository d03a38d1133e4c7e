// SPDX-License-Identifier: Apache-2.0
// Reading the messages of a conversation, and starting its answer.
#include "api/conversation.h"

#include <algorithm>
#include <utility>

#include "api/constraint_fields.h"
#include "api/tool_description.h"
#include "base/log.h"
#include "base/utf8.h"

namespace quire::api {

ApiResult<std::string> string_at(const json::Value& object, const char* name, const std::string& where) {
  const json::Value* value = object.find(name);
  const std::string place = where + "." + name;
  if (value == nullptr || value->is_null()) return bad_field(place, "is missing; it is required.");
  if (!value->is_string()) {
    return bad_field(place, {"must be a string, not ", json::describe(value->kind()), "."});
  }
  return value->as_string();
}

ApiResult<json::Value> text_content(const json::Value& object, const char* name,
                                    std::initializer_list<std::string_view> types, const std::string& where) {
  const json::Value* content = object.find(name);
  const std::string place = where + "." + name;
  if (content == nullptr || content->is_null()) return bad_field(place, "is missing; it is required.");
  if (content->is_string()) return *content;
  if (!content->is_array()) return bad_field(place, "must be a string or a list of parts with text.");
  json::Array parts;
  for (const json::Value& part : content->as_array()) {
    const std::string at = place + "[" + std::to_string(parts.size()) + "]";
    if (!part.is_object()) return bad_field(at, "must be an object with type and text.");
    QUIRE_ASSIGN(const std::string type, string_at(part, "type", at));
    if (std::find(types.begin(), types.end(), type) == types.end()) {
      return bad_field(at + ".type", {"is \"", utf8::beginning(type, 40), "\"; this server takes only \"",
                                      std::string(*types.begin()), "\" for now."});
    }
    QUIRE_ASSIGN(std::string text, string_at(part, type == "refusal" ? "refusal" : "text", at));
    parts.emplace_back(json::Object{{"type", "text"}, {"text", std::move(text)}});
  }
  if (parts.empty()) return json::Value("");
  if (parts.size() == 1) return *parts[0].find("text");
  return json::Value(std::move(parts));
}

void show_tools(const Service& service, const ToolSet& tools, ChatInput& input) {
  const bool hidden = tools.choice == markup::ToolChoice::kNone && service.options().exclude_tools_when_choice_none;
  if (hidden || tools.tools.empty()) return;
  input.tools = tools.shown;
  bool describes = service.options().markup.describes_tools;
  const text::ChatTemplate* loaded = service.model().chat_template();
  bool in_system = loaded == nullptr || loaded->shows_system();
  if (input.chat_template) {
    const auto own = text::ChatTemplate::parse(*input.chat_template);
    describes = own.ok() && !template_shows_tools(service.model(), &own.value());
    in_system = own.ok() && own->shows_system();
  }
  if (!describes) return;
  describe_tools(input.tools, in_system, input.messages);
  input.tools = nullptr;
  write_out_calls(input.messages);
}

ApiResult<std::shared_ptr<AnswerFormat>> answer_format(const Service& service, const ToolSet& tools,
                                                       const ChatInput& input) {
  const MarkupChoice& markup = service.options().markup;
  if (tools.callable() && markup.dialect.tools == nullptr) {
    return bad_field("tools",
                     "cannot be called: this server runs without a parser for tool calls (--tool-call-parser none); "
                     "set tool_choice to \"none\" to show them to the model only.");
  }
  auto format = std::make_shared<AnswerFormat>();
  format->dialect = markup.dialect;
  if (tools.tools.empty()) format->dialect.tools = nullptr;
  format->earlier_calls = input.earlier_calls;
  if (format->dialect.tools != nullptr) {
    format->call_ids = call_id_style(markup::name(*format->dialect.tools));
    format->options.tools = tools.tools;
    format->options.choice = tools.choice;
    format->options.named = tools.named;
    format->options.parallel = tools.parallel;
  }
  // set() looks at every member, and a request may have a hundred thousand: the defaults, which are few, join them.
  json::Value& kwargs = format->options.template_kwargs;
  kwargs = input.kwargs.is_object() ? input.kwargs : json::Object{};
  const json::Value& defaults = service.options().default_chat_template_kwargs;
  if (defaults.is_object()) {
    for (const auto& [name, value] : defaults.as_object()) {
      if (kwargs.find(name) == nullptr) kwargs.set(name, value);
    }
  }
  return format;
}

void settle_format(const Service& service, const std::string& tail, AnswerFormat& format) {
  if (!format.parses()) return;
  format.options.starts_in_reasoning =
      markup::starts_in_reasoning(format.dialect, tail, format.options.template_kwargs);
  const MarkupChoice& markup = service.options().markup;
  format.kept_special = format.dialect.tools != nullptr ? markup.kept_special : markup.kept_reasoning;
}

ApiStatus join_constraints(const AnswerFormat& format, std::optional<int64_t> budget, llm::ConstraintSpec& constraint) {
  using markup::ToolChoice;
  const markup::ParseOptions& options = format.options;
  const bool forced = options.choice == ToolChoice::kRequired || options.choice == ToolChoice::kNamed;
  if (constraint.grammar && options.choice == ToolChoice::kNamed &&
      constraint.field.starts_with("structured_outputs")) {
    return bad_field(constraint.field,
                     "cannot be combined with a tool_choice that names a tool; leave one of them out.");
  }
  if (constraint.grammar && forced) {
    log_warn("{} has no effect: tool_choice makes the answer a tool call", constraint.field);
    constraint.grammar.reset();
  }
  const json::Value wanted = constraint.grammar ? tag_format(*constraint.grammar) : json::Value();
  json::Value tag;
  if (options.choice != ToolChoice::kNone) {
    QUIRE_ASSIGN(tag, markup::tool_constraint(format.dialect, options, wanted));
    if (!tag.is_null() && !constraint.grammar) constraint.field = "tools";
  } else if (constraint.grammar) {
    json::Value around = markup::answer_constraint(format.dialect, wanted);
    if (!(around == wanted)) tag = std::move(around);
  }
  if (!tag.is_null()) {
    if (!constraint.grammar) {
      constraint.grammar.emplace().any_order = false;
      constraint.grammar->additional_properties = false;
      constraint.grammar->whitespace_pattern = " ?";  // small models would fill a call with line breaks
    }
    constraint.grammar->kind = grammar::Spec::Kind::kStructuralTag;
    constraint.grammar->json = std::move(tag);
  }
  llm::ReasoningRules& reasoning = constraint.reasoning;
  reasoning.starts_inside = options.starts_in_reasoning;
  reasoning.ends = markup::reasoning_ends(format.dialect);
  if (format.dialect.tools != nullptr && options.choice != markup::ToolChoice::kNone) {
    reasoning.implicit_ends = markup::implicit_reasoning_ends(format.dialect);
  }
  reasoning.token_budget = budget;
  return Ok{};
}

ApiStatus start_one(Service& service, const HttpRequest& request, const Body& body, std::vector<int32_t> ids,
                    sampling::SamplingParams params, llm::ConstraintSpec constraint,
                    const std::shared_ptr<Generation>& generation) {
  llm::GenerateRequest generate;
  generate.prompt = std::move(ids);
  generate.params = std::move(params);
  generate.constraint = std::move(constraint);
  QUIRE_TRY(read_scheduling(request, body, generate));
  auto ready = service.model().prepare(std::move(generate));
  if (!ready.ok()) {
    // The request had this number under another name.
    const bool renamed = ready.error().field == "logprobs" && body.has("top_logprobs");
    return renamed ? bad_request("top_" + ready.error().message, "top_logprobs") : to_api_error(ready.error());
  }
  std::vector<engine::Request> requests;
  requests.push_back(std::move(*ready));
  return generation->start(std::move(requests));
}

}  // namespace quire::api
