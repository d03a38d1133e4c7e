// SPDX-License-Identifier: Apache-2.0
// /v1/messages and /v1/messages/count_tokens: conversations in Anthropic's form.
#include <algorithm>

#include "api/conversation.h"
#include "api/json_writer.h"

namespace quire::api {
namespace {

constexpr size_t kMaxStops = 4;

class Messages final : public Generation {
 public:
  using Generation::Generation;

 private:
  // Anthropic's clients add up the three input counts, so what came from the cache is not in input_tokens, as in vLLM.
  // Nothing is ever charged for being kept: cache_creation_input_tokens is 0.
  void write_counts(JsonWriter& w, int64_t output_tokens) const {
    const bool details = service_.options().enable_prompt_tokens_details;
    w.key("usage").open_object();
    w.member_int("input_tokens", prompt_tokens() - (details ? cached_tokens() : 0));
    if (details) {
      w.member_int("cache_creation_input_tokens", 0).member_int("cache_read_input_tokens", cached_tokens());
    }
    w.member_int("output_tokens", output_tokens).close_object();
  }

  // stop_reason and stop_sequence; both null while the answer is being made.
  void write_stop(JsonWriter& w, const Choice& choice) const {
    w.key("stop_reason");
    if (choice.finish == engine::FinishReason::kLength) {
      w.string("max_tokens");
    } else if (choice.finish == engine::FinishReason::kStop) {
      w.string(std::holds_alternative<std::string>(choice.stop_reason) ? "stop_sequence" : "end_turn");
    } else {
      w.null();
    }
    w.key("stop_sequence");
    if (const auto* text = std::get_if<std::string>(&choice.stop_reason)) {
      w.string(*text);
    } else {
      w.null();
    }
  }

  void open_message(JsonWriter& w) const {
    w.open_object().member("id", options_.id).member("type", "message").member("role", "assistant");
    w.member("model", service_.options().served_names[0]).key("content").open_array();
  }

  void send_start() {
    started_ = true;
    JsonWriter w;
    w.open_object().member("type", "message_start").key("message");
    open_message(w);
    w.close_array();
    write_stop(w, Choice{});
    write_counts(w, 0);
    w.close_object().close_object();
    send_event("message_start", w.text());
    send_event("content_block_start",
               R"({"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}})");
  }

  void piece(Choice&, llm::Delta& delta) override {
    if (!started_) send_start();
    if (delta.text.empty()) return;
    JsonWriter w;
    w.open_object().member("type", "content_block_delta").member_int("index", 0).key("delta");
    w.open_object().member("type", "text_delta").member("text", delta.text).close_object().close_object();
    send_event("content_block_delta", w.text());
  }

  void finish() override {
    const Choice& choice = choices_.at(0);
    JsonWriter w;
    if (options_.stream) {
      send_event("content_block_stop", R"({"type":"content_block_stop","index":0})");
      w.open_object().member("type", "message_delta").key("delta").open_object();
      write_stop(w, choice);
      w.close_object();
      write_counts(w, completion_tokens());
      send_event("message_delta", w.close_object().text());
      send_event("message_stop", R"({"type":"message_stop"})");
      return reply_->end();
    }
    open_message(w);
    w.open_object().member("type", "text").member("text", choice.text).close_object().close_array();
    write_stop(w, choice);
    write_counts(w, completion_tokens());
    send_json(*reply_, 200, w.close_object().take());
  }

  void fail(const ApiError& error) override {
    if (!started_) return send_anthropic_error(*reply_, error);
    reply_->note("error", error.message);
    send_event("error", error.anthropic_body());
    reply_->end();
  }

  bool started_ = false;
};

// Agents put a line with a number of its own into each request's system prompt, for Anthropic's accounts; it would
// keep the prefix cache from ever finding the prompt again.
bool is_billing_line(std::string_view text) {
  return text.rfind("x-anthropic-billing-header", 0) == 0;
}

ApiResult<std::string> read_system(const Body& body) {
  const json::Value* system = body.get("system");
  if (system == nullptr) return std::string();
  if (system->is_string()) return system->as_string();
  std::string joined;
  size_t at = 0;
  for (const json::Value& block : system->as_array()) {
    const std::string where = "system[" + std::to_string(at++) + "]";
    auto type = string_at(block, "type", where);
    if (!type.ok()) return type.error();
    if (*type != "text") return bad_request(where + ".type must be text.", where + ".type");
    auto text = string_at(block, "text", where);
    if (!text.ok()) return text.error();
    if (!is_billing_line(*text)) joined += *text;
  }
  return joined;
}

// A member of an object field, if it is there: a string that is one of `known`.
ApiResult<std::string> known_member(const Body& body, const char* field, const char* name,
                                    std::initializer_list<std::string_view> known, const char* otherwise) {
  const json::Value* object = body.get(field);
  const json::Value* value = object == nullptr ? nullptr : object->find(name);
  if (value == nullptr || value->is_null()) return std::string();
  if (value->is_string() && std::find(known.begin(), known.end(), value->as_string()) != known.end()) {
    return value->as_string();
  }
  const std::string where = std::string(field) + "." + name;
  return bad_request(where + " " + otherwise, where);
}

ApiResult<ChatInput> read_conversation(const Body& body) {
  auto thinking = known_member(body, "thinking", "type", {"disabled"},
                               "must be disabled: this server does not part thoughts from answers yet.");
  if (!thinking.ok()) return thinking.error();
  auto tools = known_member(body, "tool_choice", "type", {"auto", "none"},
                            "must be auto or none: tools cannot be called by this server yet.");
  if (!tools.ok()) return tools.error();
  auto effort = known_member(body, "output_config", "effort", {"low", "medium", "high", "xhigh", "max"},
                             "must be low, medium, high, xhigh or max.");
  if (!effort.ok()) return effort.error();
  auto format = known_member(body, "output_config", "format", {},
                             "asks for constrained output, which this server does not do yet; leave it out.");
  if (!format.ok()) return format.error();

  ChatInput input;
  json::Array messages;
  auto system = read_system(body);
  if (!system.ok()) return system.error();
  if (!system->empty()) messages.emplace_back(json::Object{{"role", "system"}, {"content", std::move(*system)}});
  const json::Array& turns = body.get("messages")->as_array();
  if (turns.empty()) return bad_request("messages must not be empty.", "messages");
  std::string last;
  for (size_t i = 0; i < turns.size(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    auto role = string_at(turns[i], "role", where);
    if (!role.ok()) return role.error();
    if (*role != "user" && *role != "assistant" && *role != "system") {
      return bad_request(where + ".role must be user or assistant, got \"" + role->substr(0, 40) + "\".",
                         where + ".role");
    }
    auto content = text_content(turns[i], {"text"}, where);
    if (!content.ok()) return content.error();
    messages.emplace_back(json::Object{{"role", *role}, {"content", std::move(*content)}});
    last = std::move(*role);
  }
  input.messages = std::move(messages);
  input.kwargs = body.take("chat_template_kwargs");
  if (!effort->empty()) set_effort(input.kwargs, *effort);
  // Anthropic's way to put words into the model's mouth: it goes on where the assistant's turn ends.
  input.continue_final_message = last == "assistant";
  input.add_generation_prompt = !input.continue_final_message;
  return input;
}

ApiStatus read_stops(const Body& body, sampling::SamplingParams& params) {
  params.stop = body.strings("stop_sequences");
  if (params.stop.size() > kMaxStops) {
    return bad_request("stop_sequences has " + std::to_string(params.stop.size()) + " texts; at most 4 are taken.",
                       "stop_sequences");
  }
  if (std::find(params.stop.begin(), params.stop.end(), "") != params.stop.end()) {
    return bad_request("stop_sequences must not hold an empty text.", "stop_sequences");
  }
  return Ok{};
}

ApiStatus start_messages(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  auto body = Body::parse(request.body, messages_schema());
  if (!body.ok()) return body.error();
  if (auto known = service.check_model(*body); !known.ok()) return known.error();
  auto params = read_sampling(*body, service);
  if (!params.ok()) return params.error();
  if (auto stops = read_stops(*body, *params); !stops.ok()) return stops.error();
  auto options = read_options(request, *body, service, "msg_");
  if (!options.ok()) return options.error();
  auto input = read_conversation(*body);
  if (!input.ok()) return input.error();
  input->cancelled = request.cancelled;
  auto ids = chat_tokens(service, std::move(*input));
  if (!ids.ok()) return ids.error();
  auto fits = fit_length(service, ids->size(), body->integer("max_tokens"), std::nullopt, *params);
  if (!fits.ok()) return fits.error();
  return start_one(service, request, *body, std::move(*ids), std::move(*params),
                   std::make_shared<Messages>(service, reply, std::move(*options)));
}

ApiResult<int64_t> count_tokens(const Service& service, const HttpRequest& request) {
  auto body = Body::parse(request.body, count_tokens_schema());
  if (!body.ok()) return body.error();
  if (auto known = service.check_model(*body); !known.ok()) return known.error();
  auto input = read_conversation(*body);
  if (!input.ok()) return input.error();
  input->cancelled = request.cancelled;
  auto ids = chat_tokens(service, std::move(*input));
  if (!ids.ok()) return ids.error();
  return static_cast<int64_t>(ids->size());
}

}  // namespace

void serve_messages(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_messages(service, request, reply); !started.ok()) {
    send_anthropic_error(*reply, started.error());
  }
}

void serve_count_tokens(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  auto count = count_tokens(service, request);
  if (!count.ok()) return send_anthropic_error(*reply, count.error());
  JsonWriter w;
  w.open_object().member_int("input_tokens", *count).close_object();
  send_json(*reply, 200, w.take());
}

}  // namespace quire::api
