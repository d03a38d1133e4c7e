// SPDX-License-Identifier: Apache-2.0
// /v1/responses and /v1/responses/input_tokens: conversations in the form of OpenAI's Responses API.
#include <algorithm>
#include <ctime>

#include "api/constraint_fields.h"
#include "api/json_writer.h"
#include "api/responses_input.h"

namespace quire::api {
namespace {

using Kind = markup::Event::Kind;

class Responses final : public Generation {
 public:
  struct Options {
    bool logprobs = false;
    std::string echo;                        // the members of the answer that repeat the request, as JSON
    std::unordered_set<std::string> custom;  // tools that take a text
  };
  Responses(Service& service, ReplyPtr reply, GenerationOptions options, Options own)
      : Generation(service, std::move(reply), std::move(options)),
        own_(std::move(own)),
        texts_(service_.model().tokenizer().get(), options_.tokens_as_ids) {}

 private:
  // "logprobs": a list, which is empty unless the request asked for it.
  void write_logprobs(JsonWriter& w, const LogprobRows& rows, TokenTexts& texts) const {
    w.key("logprobs");
    write_token_logprobs(w, own_.logprobs ? rows : LogprobRows{}, texts, service_.model().tokenizer().get());
  }

  bool cut() const { return choices_.at(0).finish == engine::FinishReason::kLength; }
  const char* final_status() const { return cut() ? "incomplete" : "completed"; }

  // The parts of the answer, each of which is an item of the output.
  const std::vector<AnswerPart>& parts() const { return choices_.at(0).reader->parts(); }
  bool is_custom(const AnswerPart& part) const {
    return part.kind == Kind::kCallBegin && own_.custom.contains(part.name);
  }

  std::string item_id(size_t index) const {
    const AnswerPart& part = parts()[index];
    const char* prefix = part.kind == Kind::kReasoning ? "rs_"
                         : part.kind == Kind::kContent ? "msg_"
                         : is_custom(part)             ? "ctc_"
                                                       : "fc_";
    return prefix + options_.id_key + (index == 0 ? "" : "_" + std::to_string(index));
  }

  // The text that a custom tool was given: the only argument of the call.
  static std::string custom_input(const AnswerPart& part) {
    const auto arguments = json::parse(part.text);
    const json::Value* input = arguments.ok() ? arguments.value().find(kCustomInput) : nullptr;
    return input != nullptr && input->is_string() ? input->as_string() : "";
  }

  void write_part(JsonWriter& w, const AnswerPart& part, bool done) const {
    if (part.kind == Kind::kReasoning) {
      w.open_object().member("type", "reasoning_text").member("text", done ? part.text : "").close_object();
      return;
    }
    w.open_object().member("type", "output_text").key("annotations").open_array().close_array();
    TokenTexts texts(service_.model().tokenizer().get(), options_.tokens_as_ids);
    write_logprobs(w, done ? part.logprobs : LogprobRows{}, texts);
    w.member("text", done ? part.text : "").close_object();
  }

  void write_item(JsonWriter& w, size_t index, bool done) const {
    const AnswerPart& part = parts()[index];
    const bool whole = !cut() || index + 1 < parts().size();
    w.open_object().member("id", item_id(index));
    w.member("status", !done ? "in_progress" : whole ? "completed" : "incomplete");
    if (part.kind == Kind::kCallBegin) {
      const bool custom = is_custom(part);
      w.member("type", custom ? "custom_tool_call" : "function_call").member("call_id", part.id);
      w.member("name", part.name);
      if (custom) {
        w.member("input", done ? custom_input(part) : "");
      } else {
        w.member("arguments", done ? part.text : "");
      }
      w.close_object();
      return;
    }
    if (part.kind == Kind::kReasoning) {
      w.member("type", "reasoning").key("summary").open_array().close_array();
    } else {
      w.member("type", "message").member("role", "assistant");
    }
    w.key("content").open_array();
    if (done) write_part(w, part, true);
    w.close_array().close_object();
  }

  void write_counts(JsonWriter& w) const {
    w.open_object().member_int("input_tokens", prompt_tokens()).key("input_tokens_details").open_object();
    w.member_int("cached_tokens", cached_tokens()).member_int("cache_write_tokens", 0).close_object();
    w.member_int("output_tokens", completion_tokens()).key("output_tokens_details").open_object();
    w.member_int("reasoning_tokens", reasoning_tokens()).close_object();
    w.member_int("total_tokens", prompt_tokens() + completion_tokens()).close_object();
  }

  // The Response object; if `done`, with its output and usage.
  void write_response(JsonWriter& w, const char* status, bool done, const ApiError* error = nullptr) const {
    w.open_object().member("id", options_.id).member("object", "response").member_int("created_at", created_);
    w.member("status", status).member("model", options_.model);
    w.key("completed_at").value_or_null(done && !cut(), [&] { w.integer(static_cast<int64_t>(std::time(nullptr))); });
    w.key("error").value_or_null(error != nullptr, [&] {
      w.open_object().member("code", "server_error").member("message", error->message).close_object();
    });
    w.key("incomplete_details").value_or_null(done && cut(), [&] {
      w.open_object().member("reason", "max_output_tokens").close_object();
    });
    w.key("output").open_array();
    for (size_t i = 0; done && i < parts().size(); ++i) write_item(w, i, true);
    w.close_array().raw(own_.echo);
    w.key("usage").value_or_null(done, [&] { write_counts(w); });
    w.close_object();
  }

  // Sends one event: its type and number, then what `write` adds.
  template <typename Write>
  void send(const char* type, const Write& write) {
    JsonWriter w;
    w.open_object().member("type", type).member_int("sequence_number", sequence_++);
    write(w);
    w.close_object();
    send_event(type, w.text());
  }
  void send_response(const char* type, const char* status, bool done, const ApiError* error = nullptr) {
    send(type, [&](JsonWriter& w) {
      w.key("response");
      write_response(w, status, done, error);
    });
  }
  void send_item(const char* type, bool done) {
    send(type, [&](JsonWriter& w) {
      w.member_int("output_index", static_cast<int64_t>(*open_)).key("item");
      write_item(w, *open_, done);
    });
  }
  // Sends an event about the open item.
  template <typename Write>
  void send_about(const char* type, const Write& write) {
    send(type, [&](JsonWriter& w) {
      w.member("item_id", item_id(*open_)).member_int("output_index", static_cast<int64_t>(*open_));
      write(w);
    });
  }
  // Sends an event about the open item's text.
  template <typename Write>
  void send_part(const char* type, const Write& write) {
    send_about(type, [&](JsonWriter& w) {
      w.member_int("content_index", 0);
      write(w);
    });
  }
  void send_whole_part(const char* type, bool done) {
    send_part(type, [&](JsonWriter& w) {
      w.key("part");
      write_part(w, parts()[*open_], done);
    });
  }

  void open_item() {
    close_item();
    open_ = opened_++;
    send_item("response.output_item.added", false);
    if (parts()[*open_].kind != Kind::kCallBegin) send_whole_part("response.content_part.added", false);
  }

  void close_item() {
    if (!open_) return;
    const AnswerPart& part = parts()[*open_];
    if (part.kind == Kind::kCallBegin) {
      close_call(part);
    } else if (part.kind == Kind::kReasoning) {
      send_part("response.reasoning_text.done", [&](JsonWriter& w) { w.member("text", part.text); });
    } else {
      send_part("response.output_text.done", [&](JsonWriter& w) {
        w.member("text", part.text);
        TokenTexts texts(service_.model().tokenizer().get(), options_.tokens_as_ids);
        write_logprobs(w, part.logprobs, texts);
      });
    }
    if (part.kind != Kind::kCallBegin) send_whole_part("response.content_part.done", true);
    send_item("response.output_item.done", true);
    open_.reset();
  }

  void close_call(const AnswerPart& part) {
    if (!is_custom(part)) {
      send_about("response.function_call_arguments.done",
                 [&](JsonWriter& w) { w.member("name", part.name).member("arguments", part.text); });
      return;
    }
    const std::string input = custom_input(part);
    send_about("response.custom_tool_call_input.delta", [&](JsonWriter& w) { w.member("delta", input); });
    send_about("response.custom_tool_call_input.done", [&](JsonWriter& w) { w.member("input", input); });
  }

  void send_event_of(const AnswerEvent& event) {
    if (event.kind == Kind::kCallEnd) return close_item();
    const Kind kind = event.kind == Kind::kArguments ? Kind::kCallBegin : event.kind;
    if (!open_ || parts()[*open_].kind != kind || event.kind == Kind::kCallBegin) open_item();
    if (event.kind == Kind::kReasoning) {
      send_part("response.reasoning_text.delta", [&](JsonWriter& w) { w.member("delta", event.text); });
    } else if (event.kind == Kind::kArguments && !is_custom(parts()[*open_])) {
      send_about("response.function_call_arguments.delta", [&](JsonWriter& w) { w.member("delta", event.text); });
    } else if (event.kind == Kind::kContent && (!event.text.empty() || (own_.logprobs && !event.logprobs.empty()))) {
      send_part("response.output_text.delta", [&](JsonWriter& w) {
        w.member("delta", event.text);
        write_logprobs(w, event.logprobs, texts_);
      });
    }
  }

  void piece(Choice& choice, Piece& piece) override {
    if (!choice.begun) {
      started_ = true;
      send_response("response.created", "in_progress", false);
      send_response("response.in_progress", "in_progress", false);
    }
    for (const AnswerEvent& event : piece.events) send_event_of(event);
  }

  void finish() override {
    if (!options_.stream) {
      JsonWriter w;
      write_response(w, final_status(), true);
      return send_json(*reply_, w.take());
    }
    close_item();
    send_response(cut() ? "response.incomplete" : "response.completed", final_status(), true);
    reply_->end();
  }

  void fail(const ApiError& error) override {
    if (!started_) return send_error(*reply_, error);
    reply_->note("error", error.message);
    send_response("response.failed", "failed", false, &error);
    reply_->end();
  }

  const Options own_;
  // For a stream:
  bool started_ = false;
  int64_t sequence_ = 0;
  std::optional<size_t> open_;  // the item that is being sent
  size_t opened_ = 0;           // items that have been begun
  TokenTexts texts_;
};

ApiStatus check_settings(const Body& body) {
  if (const json::Value* text = body.get("text")) {
    const json::Value* verbosity = text->find("verbosity");
    if (verbosity != nullptr && !verbosity->is_null() && !verbosity->is_string()) {
      return bad_field("text.verbosity", "must be a string.");
    }
  }
  if (const json::Value* metadata = body.get("metadata")) {
    for (const auto& [name, value] : metadata->as_object()) {
      if (!value.is_string()) return bad_field("metadata", "must hold strings only.");
    }
  }
  return Ok{};
}

ApiStatus read_effort(const Body& body, ChatInput& chat) {
  const json::Value* reasoning = body.get("reasoning");
  const json::Value* effort = reasoning == nullptr ? nullptr : reasoning->find("effort");
  if (effort == nullptr || effort->is_null()) return Ok{};
  static const Field row{"reasoning.effort", FieldType::kString, "", {.choices = reasoning_efforts()}};
  QUIRE_TRY(check_field(*effort, row, row.name));
  set_effort(chat.kwargs, effort->as_string());
  return Ok{};
}

// truncation auto: drops the oldest turns after the leading instructions, as few as leave room for an answer. The first
// turn that is kept is the user's, because some templates require it.
ApiResult<ChatTokens> truncated_tokens(const Service& service, const ChatInput& whole, int64_t wanted) {
  const int64_t max_len = service.model().max_model_len();
  auto prompt = chat_tokens(service, whole);
  const auto too_long = [&](ApiResult<ChatTokens>& result, int64_t most) {
    return result.ok() ? static_cast<int64_t>(result->ids.size()) > most : result.error().param == "input_text";
  };
  if (!too_long(prompt, max_len - 1)) return prompt;
  const int64_t most = max_len - std::clamp<int64_t>(wanted, 1, std::max<int64_t>(max_len / 2, 1));
  const json::Array& messages = whole.messages.as_array();
  const auto role = [&](size_t i) -> const std::string& { return messages[i].find("role")->as_string(); };
  size_t head = 0;
  while (head < messages.size() && (role(head) == "system" || role(head) == "developer")) ++head;
  std::vector<size_t> starts;
  for (size_t i = head + 1; i < messages.size(); ++i) {
    if (role(i) == "user") starts.push_back(i);
  }
  // Later starts give shorter conversations: bisect for the first that fits.
  for (size_t low = 0, high = starts.size(); low < high;) {
    const size_t middle = (low + high) / 2;
    ChatInput cut = whole;
    json::Array& kept = cut.messages.as_array();
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(head),
               kept.begin() + static_cast<std::ptrdiff_t>(starts[middle]));
    auto shorter = chat_tokens(service, std::move(cut));
    if (too_long(shorter, most)) {
      low = middle + 1;
    } else {
      high = middle;
      prompt = std::move(shorter);
    }
  }
  return prompt;
}

// The members of the answer that repeat the request.
std::string echo_of(const Body& body, const sampling::SamplingParams& params) {
  JsonWriter w;
  const auto repeat = [&](const char* name, const char* fallback) {
    const json::Value* value = body.get(name);
    w.key(name).raw(value == nullptr ? fallback : json::dump(*value));
  };
  const auto member_of = [&](const char* object, const char* name) {
    const json::Value* value = body.has(object) ? body.get(object)->find(name) : nullptr;
    return value == nullptr ? "null" : json::dump(*value);
  };
  repeat("instructions", "null");
  repeat("metadata", "{}");
  w.member_bool("parallel_tool_calls", body.boolean("parallel_tool_calls", true));
  w.key("temperature").number(params.temperature).key("top_p").number(params.top_p);
  w.key("presence_penalty").number(params.presence_penalty).key("frequency_penalty").number(params.frequency_penalty);
  repeat("tool_choice", "\"auto\"");
  repeat("tools", "[]");
  w.member_bool("background", false).member_int("max_output_tokens", params.max_tokens.value_or(0));
  repeat("max_tool_calls", "null");
  w.member_null("previous_response_id").member_null("prompt");
  w.key("reasoning").open_object().key("effort").raw(member_of("reasoning", "effort")).member_null("summary");
  w.close_object();
  repeat("service_tier", "\"auto\"");
  w.member_bool("store", false);
  const std::string format = member_of("text", "format");
  w.key("text").open_object().key("format").raw(format == "null" ? R"({"type":"text"})" : format);
  w.key("verbosity").raw(member_of("text", "verbosity")).close_object();
  w.member_int("top_logprobs", body.integer("top_logprobs").value_or(0));
  repeat("truncation", "\"disabled\"");
  repeat("user", "null");
  return w.take();
}

// What the template is given of the request.
ApiResult<ChatInput> read_conversation(const Body& body, const HttpRequest& request) {
  QUIRE_ASSIGN(ChatInput chat, read_responses_input(body));
  chat.cancelled = request.cancelled;
  chat.kwargs = body.take("chat_template_kwargs");
  QUIRE_TRY(read_effort(body, chat));
  return chat;
}

ApiResult<int64_t> count_input(const Service& service, const HttpRequest& request) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, input_tokens_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(const ToolSet tools, read_responses_tools(body));
  QUIRE_ASSIGN(ChatInput chat, read_conversation(body, request));
  show_tools(service, tools, chat);
  QUIRE_ASSIGN(const ChatTokens prompt, chat_tokens(service, std::move(chat)));
  return static_cast<int64_t>(prompt.ids.size());
}

ApiStatus start_responses(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, responses_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_TRY(check_settings(body));
  QUIRE_ASSIGN(sampling::SamplingParams params, read_sampling(body, service));
  QUIRE_ASSIGN(llm::ConstraintSpec constraint, read_constraint(body));
  QUIRE_ASSIGN(GenerationOptions options, read_options(request, body, service, "resp_"));
  QUIRE_ASSIGN(const ToolSet tools, read_responses_tools(body));
  QUIRE_ASSIGN(ChatInput chat, read_conversation(body, request));

  Responses::Options own;
  const std::vector<std::string> include = body.strings("include");
  own.logprobs = std::find(include.begin(), include.end(), "message.output_text.logprobs") != include.end();
  if (own.logprobs) params.logprobs = body.integer("top_logprobs").value_or(0);
  const std::optional<int64_t> wanted = body.integer("max_output_tokens");
  const int64_t max_len = service.model().max_model_len();
  if (wanted && *wanted > max_len) {
    return bad_field("max_output_tokens",
                     {"is ", *wanted, ", but the model's maximum context length is ", max_len, " tokens."});
  }
  const bool truncate = body.string("truncation") == "auto";
  show_tools(service, tools, chat);
  QUIRE_ASSIGN(const std::shared_ptr<AnswerFormat> format, answer_format(service, tools, chat));
  format->keep_rows = own.logprobs;
  format->call_prefix = "call_";
  QUIRE_ASSIGN(ChatTokens prompt,
               truncate ? truncated_tokens(service, chat, wanted.value_or(1)) : chat_tokens(service, std::move(chat)));
  settle_format(service, prompt.tail, *format);
  QUIRE_TRY(join_constraints(*format, std::nullopt, constraint));
  options.format = format;
  options.constraint = constraint;
  QUIRE_TRY(fit_length(service, prompt.ids.size(), wanted, std::nullopt, params));
  own.echo = echo_of(body, params);
  own.custom = tools.custom;
  return start_one(service, request, body, std::move(prompt.ids), std::move(params), std::move(constraint),
                   std::make_shared<Responses>(service, reply, std::move(options), std::move(own)));
}

}  // namespace

void serve_responses(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_responses(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

void serve_input_tokens(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  auto count = count_input(service, request);
  if (!count.ok()) return send_error(*reply, count.error());
  JsonWriter w;
  w.open_object().member("object", "response.input_tokens").member_int("input_tokens", *count).close_object();
  send_json(*reply, w.take());
}

void serve_response_by_id(Host&, const HttpRequest& request, const ReplyPtr& reply) {
  refuse(request, *reply,
         not_found_error("answers are not kept by this server, so none can be fetched, cancelled or deleted by its id; "
                         "close the connection to cancel one.",
                         "response_id"));
}

}  // namespace quire::api
