// SPDX-License-Identifier: Apache-2.0
// /v1/messages and /v1/messages/count_tokens: conversations in Anthropic's form.
#include <algorithm>

#include "api/constraint_fields.h"
#include "api/conversation.h"
#include "api/json_writer.h"

namespace quire::api {
namespace {

constexpr size_t kMaxStops = 4;

class Messages final : public Generation {
 public:
  using Generation::Generation;

 private:
  // Anthropic's clients add up the three input counts, so input_tokens leaves out the cached tokens, as in vLLM.
  // Writing to the cache costs nothing: cache_creation_input_tokens is 0.
  void write_counts(JsonWriter& w, int64_t output_tokens) const {
    const bool details = service_.options().enable_prompt_tokens_details;
    w.key("usage").open_object();
    w.member_int("input_tokens", prompt_tokens() - (details ? cached_tokens() : 0));
    if (details) {
      w.member_int("cache_creation_input_tokens", 0).member_int("cache_read_input_tokens", cached_tokens());
    }
    w.member_int("output_tokens", output_tokens).close_object();
  }

  // stop_reason and stop_sequence; both are null while the answer is being generated.
  void write_stop(JsonWriter& w, const Choice& choice) const {
    w.key("stop_reason");
    if (choice.finish == engine::FinishReason::kLength) {
      w.string("max_tokens");
    } else if (choice.finish == engine::FinishReason::kStop) {
      w.string(std::holds_alternative<std::string>(choice.stop_reason) ? "stop_sequence" : "end_turn");
    } else {
      w.null();
    }
    const auto* text = std::get_if<std::string>(&choice.stop_reason);
    w.key("stop_sequence").value_or_null(text != nullptr, [&] { w.string(*text); });
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
    send_json(*reply_, w.close_object().take());
  }

  void fail(const ApiError& error) override {
    if (!started_) return send_anthropic_error(*reply_, error);
    reply_->note("error", error.message);
    send_event("error", error.anthropic_body());
    reply_->end();
  }

  bool started_ = false;
};

// Agents put a line with a new number into the system prompt of each request, for Anthropic's billing. With it the
// prefix cache would never find the prompt again.
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
    QUIRE_ASSIGN(const std::string type, string_at(block, "type", where));
    if (type != "text") return bad_field(where + ".type", "must be text.");
    QUIRE_ASSIGN(const std::string text, string_at(block, "text", where));
    if (!is_billing_line(text)) joined += text;
  }
  return joined;
}

// The member `name` of an object field, "" if it is absent. A value that is not one of `known` is refused: the error is
// the member's name and `refusal`.
ApiResult<std::string> known_member(const Body& body, const char* field, const char* name,
                                    std::initializer_list<std::string_view> known, const char* refusal) {
  const json::Value* object = body.get(field);
  const json::Value* value = object == nullptr ? nullptr : object->find(name);
  if (value == nullptr || value->is_null()) return std::string();
  if (value->is_string() && std::find(known.begin(), known.end(), value->as_string()) != known.end()) {
    return value->as_string();
  }
  return bad_field(std::string(field) + "." + name, refusal);
}

ApiResult<ChatInput> read_conversation(const Body& body) {
  QUIRE_TRY(known_member(body, "thinking", "type", {"disabled"},
                         "must be disabled: this server does not part thoughts from answers yet."));
  QUIRE_TRY(known_member(body, "tool_choice", "type", {"auto", "none"},
                         "must be auto or none: tools cannot be called by this server yet."));
  QUIRE_ASSIGN(const std::string effort,
               known_member(body, "output_config", "effort", {"low", "medium", "high", "xhigh", "max"},
                            "must be low, medium, high, xhigh or max."));

  ChatInput input;
  json::Array messages;
  QUIRE_ASSIGN(std::string system, read_system(body));
  if (!system.empty()) messages.emplace_back(json::Object{{"role", "system"}, {"content", std::move(system)}});
  const json::Array& turns = body.get("messages")->as_array();
  std::string last;
  for (size_t i = 0; i < turns.size(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    QUIRE_ASSIGN(std::string role, string_at(turns[i], "role", where));
    if (role != "user" && role != "assistant" && role != "system") {
      return bad_field(where + ".role", "must be user or assistant, got \"" + role.substr(0, 40) + "\".");
    }
    QUIRE_ASSIGN(json::Value content, text_content(turns[i], {"text"}, where));
    messages.emplace_back(json::Object{{"role", role}, {"content", std::move(content)}});
    last = std::move(role);
  }
  input.messages = std::move(messages);
  input.kwargs = body.take("chat_template_kwargs");
  if (!effort.empty()) set_effort(input.kwargs, effort);
  // A last turn of the assistant is the beginning of the answer: the model continues it.
  input.continue_final_message = last == "assistant";
  input.add_generation_prompt = !input.continue_final_message;
  return input;
}

ApiStatus start_messages(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, messages_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(sampling::SamplingParams params, read_sampling(body, service));
  QUIRE_ASSIGN(llm::ConstraintSpec constraint, read_constraint(body));
  params.stop = body.strings("stop_sequences");
  if (params.stop.size() > kMaxStops) {
    return bad_field("stop_sequences", "has " + std::to_string(params.stop.size()) + " texts; at most 4 are taken.");
  }
  QUIRE_ASSIGN(GenerationOptions options, read_options(request, body, service, "msg_"));
  QUIRE_ASSIGN(ChatInput input, read_conversation(body));
  input.cancelled = request.cancelled;
  QUIRE_ASSIGN(std::vector<int32_t> ids, chat_tokens(service, std::move(input)));
  QUIRE_TRY(fit_length(service, ids.size(), body.integer("max_tokens"), std::nullopt, params));
  return start_one(service, request, body, std::move(ids), std::move(params), std::move(constraint),
                   std::make_shared<Messages>(service, reply, std::move(options)));
}

ApiResult<int64_t> count_tokens(const Service& service, const HttpRequest& request) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, count_tokens_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(ChatInput input, read_conversation(body));
  input.cancelled = request.cancelled;
  QUIRE_ASSIGN(const std::vector<int32_t> ids, chat_tokens(service, std::move(input)));
  return static_cast<int64_t>(ids.size());
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
  send_json(*reply, w.take());
}

}  // namespace quire::api
