// SPDX-License-Identifier: Apache-2.0
// /v1/messages and /v1/messages/count_tokens: conversations in Anthropic's form.
#include <optional>

#include "api/constraint_fields.h"
#include "api/json_writer.h"
#include "api/messages_input.h"

namespace quire::api {
namespace {

using Kind = markup::Event::Kind;

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
      const bool called = choice.reader && choice.reader->num_calls() > 0;
      const bool at_text = std::holds_alternative<std::string>(choice.stop_reason);
      w.string(called ? "tool_use" : at_text ? "stop_sequence" : "end_turn");
    } else {
      w.null();
    }
    const auto* text = std::get_if<std::string>(&choice.stop_reason);
    w.key("stop_sequence").value_or_null(text != nullptr, [&] { w.string(*text); });
  }

  void open_message(JsonWriter& w) const {
    w.open_object().member("id", options_.id).member("type", "message").member("role", "assistant");
    w.member("model", options_.model).key("content").open_array();
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
  }

  // Sends an event about the open block; `write` writes the members of `member`.
  template <typename Write>
  void send_block_event(const char* type, const char* member, const Write& write) {
    JsonWriter w;
    w.open_object().member("type", type).member_int("index", blocks_ - 1).key(member).open_object();
    write(w);
    send_event(type, w.close_object().close_object().text());
  }

  void open_block(const AnswerEvent& event) {
    close_block();
    ++blocks_;
    open_ = event.kind == Kind::kArguments ? Kind::kCallBegin : event.kind;
    send_block_event("content_block_start", "content_block", [&](JsonWriter& w) {
      if (open_ == Kind::kReasoning) {
        w.member("type", "thinking").member("thinking", "").member("signature", "");
      } else if (open_ == Kind::kContent) {
        w.member("type", "text").member("text", "");
      } else {
        w.member("type", "tool_use").member("id", event.id).member("name", event.name).key("input").raw("{}");
      }
    });
  }

  void close_block() {
    if (!open_) return;
    if (open_ == Kind::kReasoning) {
      send_block_event("content_block_delta", "delta",
                       [&](JsonWriter& w) { w.member("type", "signature_delta").member("signature", random_hex()); });
    }
    JsonWriter w;
    w.open_object().member("type", "content_block_stop").member_int("index", blocks_ - 1).close_object();
    send_event("content_block_stop", w.text());
    open_.reset();
  }

  void send_block(const AnswerEvent& event) {
    if (event.kind == Kind::kCallEnd) return close_block();
    const Kind kind = event.kind == Kind::kArguments ? Kind::kCallBegin : event.kind;
    if (!open_ || open_ != kind || event.kind == Kind::kCallBegin) open_block(event);
    if (event.text.empty()) return;
    send_block_event("content_block_delta", "delta", [&](JsonWriter& w) {
      if (kind == Kind::kReasoning) {
        w.member("type", "thinking_delta").member("thinking", event.text);
      } else if (kind == Kind::kContent) {
        w.member("type", "text_delta").member("text", event.text);
      } else {
        w.member("type", "input_json_delta").member("partial_json", event.text);
      }
    });
  }

  void piece(Choice&, Piece& piece) override {
    if (!started_) send_start();
    for (const AnswerEvent& event : piece.events) send_block(event);
  }

  static void write_block(JsonWriter& w, const AnswerPart& part) {
    w.open_object();
    if (part.kind == Kind::kReasoning) {
      w.member("type", "thinking").member("thinking", part.text).member("signature", random_hex());
    } else if (part.kind == Kind::kContent) {
      w.member("type", "text").member("text", part.text);
    } else {
      const auto input = json::parse(part.text);  // a call that the length cut may be no JSON
      w.member("type", "tool_use").member("id", part.id).member("name", part.name);
      w.key("input").raw(input.ok() && input.value().is_object() ? part.text : "{}");
    }
    w.close_object();
  }

  void finish() override {
    const Choice& choice = choices_.at(0);
    JsonWriter w;
    if (options_.stream) {
      if (blocks_ == 0) open_block({});
      close_block();
      w.open_object().member("type", "message_delta").key("delta").open_object();
      write_stop(w, choice);
      w.close_object();
      write_counts(w, completion_tokens());
      send_event("message_delta", w.close_object().text());
      send_event("message_stop", R"({"type":"message_stop"})");
      return reply_->end();
    }
    open_message(w);
    for (const AnswerPart& part : choice.reader->parts()) write_block(w, part);
    if (choice.reader->parts().empty()) write_block(w, {});
    w.close_array();
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
  std::optional<Kind> open_;  // of the block that is being sent
  int64_t blocks_ = 0;        // that have been begun
};

ApiStatus start_messages(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, messages_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(sampling::SamplingParams params, read_sampling(body, service));
  QUIRE_ASSIGN(llm::ConstraintSpec constraint, read_constraint(body));
  params.stop = body.strings("stop_sequences");
  if (params.stop.size() > kMaxStops) {
    return bad_field("stop_sequences", {"has ", params.stop.size(), " texts; at most ", kMaxStops, " are taken."});
  }
  QUIRE_ASSIGN(GenerationOptions options, read_options(request, body, service, "msg_"));
  QUIRE_ASSIGN(const ToolSet tools, read_messages_tools(body));
  QUIRE_ASSIGN(MessagesInput input, read_messages_input(body));
  input.chat.cancelled = request.cancelled;
  show_tools(service, tools, input.chat);
  QUIRE_ASSIGN(const std::shared_ptr<AnswerFormat> format, answer_format(service, tools, input.chat));
  format->include_reasoning = input.shows_thinking;
  format->keep_parts = !options.stream;
  format->call_prefix = "toolu_";
  QUIRE_ASSIGN(ChatTokens prompt, chat_tokens(service, std::move(input.chat)));
  settle_format(service, prompt.tail, *format);
  QUIRE_TRY(join_constraints(*format, input.thinking_budget, constraint));
  options.format = format;
  options.constraint = constraint;
  QUIRE_TRY(fit_length(service, prompt.ids.size(), body.integer("max_tokens"), std::nullopt, params));
  return start_one(service, request, body, std::move(prompt.ids), std::move(params), std::move(constraint),
                   std::make_shared<Messages>(service, reply, std::move(options)));
}

ApiResult<int64_t> count_tokens(const Service& service, const HttpRequest& request) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, count_tokens_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(const ToolSet tools, read_messages_tools(body));
  QUIRE_ASSIGN(MessagesInput input, read_messages_input(body));
  input.chat.cancelled = request.cancelled;
  show_tools(service, tools, input.chat);
  QUIRE_ASSIGN(const ChatTokens prompt, chat_tokens(service, std::move(input.chat)));
  return static_cast<int64_t>(prompt.ids.size());
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
