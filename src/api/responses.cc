// SPDX-License-Identifier: Apache-2.0
// /v1/responses: conversations in the form of OpenAI's Responses API.
#include <algorithm>
#include <ctime>

#include "api/conversation.h"
#include "api/json_writer.h"

namespace quire::api {
namespace {

class Responses final : public Generation {
 public:
  struct Options {
    bool logprobs = false;
    std::string echo;  // the members of the answer that repeat the request, as JSON
  };
  Responses(Service& service, ReplyPtr reply, GenerationOptions options, Options own)
      : Generation(service, std::move(reply), std::move(options)),
        own_(std::move(own)),
        item_("msg_" + options_.id_key),
        texts_(service_.model().tokenizer().get(), options_.tokens_as_ids) {}

 private:
  // "logprobs": a list that is empty unless it was asked for.
  void write_logprobs(JsonWriter& w, const LogprobRows& rows, TokenTexts& texts) const {
    w.key("logprobs");
    write_token_logprobs(w, own_.logprobs ? rows : LogprobRows{}, texts, service_.model().tokenizer().get());
  }

  bool cut() const { return choices_.at(0).finish == engine::FinishReason::kLength; }
  const char* final_status() const { return cut() ? "incomplete" : "completed"; }

  // The text and logprobs so far: a stream keeps them here, a whole answer in its choice.
  const std::string& text() const { return options_.stream ? text_ : choices_.at(0).text; }
  const LogprobRows& rows() const { return options_.stream ? rows_ : choices_.at(0).logprobs; }

  void write_part(JsonWriter& w, std::string_view text, const LogprobRows& rows) const {
    w.open_object().member("type", "output_text").key("annotations").open_array().close_array();
    TokenTexts texts(service_.model().tokenizer().get(), options_.tokens_as_ids);
    write_logprobs(w, rows, texts);
    w.member("text", text).close_object();
  }

  void write_item(JsonWriter& w, bool done) const {
    w.open_object().member("id", item_).member("type", "message").member("role", "assistant");
    w.member("status", done ? final_status() : "in_progress").key("content").open_array();
    if (done) write_part(w, text(), rows());
    w.close_array().close_object();
  }

  void write_counts(JsonWriter& w) const {
    w.open_object().member_int("input_tokens", prompt_tokens()).key("input_tokens_details").open_object();
    w.member_int("cached_tokens", cached_tokens()).member_int("cache_write_tokens", 0).close_object();
    w.member_int("output_tokens", completion_tokens()).key("output_tokens_details").open_object();
    w.member_int("reasoning_tokens", 0).close_object();
    w.member_int("total_tokens", prompt_tokens() + completion_tokens()).close_object();
  }

  // The Response object. `done`: with its output and usage.
  void write_response(JsonWriter& w, const char* status, bool done, const ApiError* error = nullptr) const {
    w.open_object().member("id", options_.id).member("object", "response").member_int("created_at", created_);
    w.member("status", status).member("model", service_.options().served_names[0]);
    w.key("completed_at");
    if (done && !cut()) {
      w.integer(static_cast<int64_t>(std::time(nullptr)));
    } else {
      w.null();
    }
    w.key("error");
    if (error != nullptr) {
      w.open_object().member("code", "server_error").member("message", error->message).close_object();
    } else {
      w.null();
    }
    w.key("incomplete_details");
    if (done && cut()) {
      w.open_object().member("reason", "max_output_tokens").close_object();
    } else {
      w.null();
    }
    w.key("output").open_array();
    if (done) write_item(w, true);
    w.close_array().raw(own_.echo).key("usage");
    if (done) {
      write_counts(w);
    } else {
      w.null();
    }
    w.close_object();
  }

  // One event: its type and number, then what `write` adds.
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
      w.member_int("output_index", 0).key("item");
      write_item(w, done);
    });
  }
  // An event of the one part of the one item.
  template <typename Write>
  void send_part(const char* type, const Write& write) {
    send(type, [&](JsonWriter& w) {
      w.member("item_id", item_).member_int("output_index", 0).member_int("content_index", 0);
      write(w);
    });
  }

  void piece(Choice& choice, llm::Delta& delta) override {
    if (!choice.begun) {
      started_ = true;
      send_response("response.created", "in_progress", false);
      send_response("response.in_progress", "in_progress", false);
      send_item("response.output_item.added", false);
      send_part("response.content_part.added", [&](JsonWriter& w) {
        w.key("part");
        write_part(w, "", {});
      });
    }
    if (!delta.text.empty() || (own_.logprobs && !delta.logprobs.empty())) {
      send_part("response.output_text.delta", [&](JsonWriter& w) {
        w.member("delta", delta.text);
        write_logprobs(w, delta.logprobs, texts_);
      });
    }
    text_ += delta.text;
    std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(rows_));
  }

  void finish() override {
    if (!options_.stream) {
      JsonWriter w;
      write_response(w, final_status(), true);
      return send_json(*reply_, 200, w.take());
    }
    send_part("response.output_text.done", [&](JsonWriter& w) {
      w.member("text", text_);
      TokenTexts texts(service_.model().tokenizer().get(), options_.tokens_as_ids);
      write_logprobs(w, rows_, texts);
    });
    send_part("response.content_part.done", [&](JsonWriter& w) {
      w.key("part");
      write_part(w, text_, rows_);
    });
    send_item("response.output_item.done", true);
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
  const std::string item_;
  // Of a stream:
  bool started_ = false;
  int64_t sequence_ = 0;
  std::string text_;
  LogprobRows rows_;
  TokenTexts texts_;
};

// input and instructions as a chat's messages.
ApiResult<ChatInput> read_conversation(const Body& body) {
  json::Array messages;
  if (const std::string text = body.string("instructions"); !text.empty()) {
    messages.emplace_back(json::Object{{"role", "system"}, {"content", text}});
  }
  ChatInput chat;
  const json::Value& input = *body.get("input");
  if (input.is_string()) {
    messages.emplace_back(json::Object{{"role", "user"}, {"content", input}});
    chat.messages = std::move(messages);
    return chat;
  }
  if (input.as_array().empty()) return bad_request("input must not be empty.", "input");
  for (size_t i = 0; i < input.as_array().size(); ++i) {
    const json::Value& item = input.as_array()[i];
    const std::string where = "input[" + std::to_string(i) + "]";
    const json::Value* type = item.find("type");
    if (type != nullptr && !type->is_null() && !(type->is_string() && type->as_string() == "message")) {
      return bad_request(where + ".type must be message: tools, references and reasoning are not taken yet.",
                         where + ".type");
    }
    auto role = string_at(item, "role", where);
    if (!role.ok()) return role.error();
    if (*role != "user" && *role != "assistant" && *role != "system" && *role != "developer") {
      return bad_request(
          where + ".role must be user, assistant, system or developer, got \"" + role->substr(0, 40) + "\".",
          where + ".role");
    }
    auto content = text_content(item, {"input_text", "output_text", "text"}, where);
    if (!content.ok()) return content.error();
    messages.emplace_back(json::Object{{"role", std::move(*role)}, {"content", std::move(*content)}});
  }
  // An answer that was cut short goes on, as in vLLM.
  const json::Value* status = input.as_array().back().find("status");
  const bool open = status != nullptr && status->is_string() &&
                    (status->as_string() == "in_progress" || status->as_string() == "incomplete");
  chat.continue_final_message = open && messages.back().find("role")->as_string() == "assistant";
  chat.add_generation_prompt = !chat.continue_final_message;
  chat.messages = std::move(messages);
  return chat;
}

// What may only have one value as long as there are no tools, formats and kept answers.
ApiStatus check_settings(const Body& body) {
  if (const json::Value* choice = body.get("tool_choice")) {
    if (!choice->is_string() || (choice->as_string() != "auto" && choice->as_string() != "none")) {
      return bad_request("tool_choice must be auto or none: tools cannot be called by this server yet.", "tool_choice");
    }
  }
  if (const json::Value* text = body.get("text")) {
    const json::Value* format = text->find("format");
    const json::Value* type = format == nullptr ? nullptr : format->find("type");
    const bool plain = type != nullptr && type->is_string() && type->as_string() == "text";
    if (format != nullptr && !format->is_null() && !plain) {
      return bad_request("text.format must have the type text: constrained output is not supported yet.",
                         "text.format");
    }
    const json::Value* verbosity = text->find("verbosity");
    if (verbosity != nullptr && !verbosity->is_null() && !verbosity->is_string()) {
      return bad_request("text.verbosity must be a string.", "text.verbosity");
    }
  }
  if (const json::Value* metadata = body.get("metadata")) {
    for (const auto& [name, value] : metadata->as_object()) {
      if (!value.is_string()) return bad_request("metadata must hold strings only.", "metadata");
    }
  }
  return Ok{};
}

ApiStatus read_effort(const Body& body, ChatInput& chat) {
  const json::Value* reasoning = body.get("reasoning");
  const json::Value* effort = reasoning == nullptr ? nullptr : reasoning->find("effort");
  if (effort == nullptr || effort->is_null()) return Ok{};
  static const Field row{"reasoning.effort",
                         FieldType::kString,
                         "",
                         "",
                         -kNoBound,
                         kNoBound,
                         false,
                         false,
                         "none|minimal|low|medium|high|xhigh|max"};
  if (auto checked = check_field(*effort, row, row.name); !checked.ok()) return checked.error();
  set_effort(chat.kwargs, effort->as_string());
  return Ok{};
}

// truncation auto: drops the oldest turns behind the leading instructions, as few as leave room for an answer. The
// first turn that stays is the user's, for templates that insist on it.
ApiResult<std::vector<int32_t>> truncated_tokens(const Service& service, const ChatInput& whole, int64_t wanted) {
  const int64_t max_len = service.model().max_model_len();
  auto ids = chat_tokens(service, whole);
  const auto too_long = [&](ApiResult<std::vector<int32_t>>& result, int64_t most) {
    return result.ok() ? static_cast<int64_t>(result->size()) > most : result.error().param == "input_text";
  };
  if (!too_long(ids, max_len - 1)) return ids;
  const int64_t most = max_len - std::clamp<int64_t>(wanted, 1, std::max<int64_t>(max_len / 2, 1));
  const json::Array& messages = whole.messages.as_array();
  const auto role = [&](size_t i) -> const std::string& { return messages[i].find("role")->as_string(); };
  size_t head = 0;
  while (head < messages.size() && (role(head) == "system" || role(head) == "developer")) ++head;
  std::vector<size_t> starts;
  for (size_t i = head + 1; i < messages.size(); ++i) {
    if (role(i) == "user") starts.push_back(i);
  }
  // The shorter the rest, the likelier it fits: halve until the longest that does is found.
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
      ids = std::move(shorter);
    }
  }
  return ids;
}

// What the answer repeats of the request.
std::string echo_of(const Body& body, const sampling::SamplingParams& params) {
  JsonWriter w;
  const auto given = [&](const char* name, const char* fallback) {
    const json::Value* value = body.get(name);
    w.key(name).raw(value == nullptr ? fallback : json::dump(*value));
  };
  const auto member_of = [&](const char* object, const char* name) {
    const json::Value* value = body.has(object) ? body.get(object)->find(name) : nullptr;
    return value == nullptr ? "null" : json::dump(*value);
  };
  given("instructions", "null");
  given("metadata", "{}");
  w.member_bool("parallel_tool_calls", body.boolean("parallel_tool_calls", true));
  w.key("temperature").number(params.temperature).key("top_p").number(params.top_p);
  w.key("presence_penalty").number(params.presence_penalty).key("frequency_penalty").number(params.frequency_penalty);
  given("tool_choice", "\"auto\"");
  w.key("tools").open_array().close_array().member_bool("background", false);
  w.member_int("max_output_tokens", params.max_tokens.value_or(0)).member_null("max_tool_calls");
  w.member_null("previous_response_id").member_null("prompt");
  w.key("reasoning").open_object().key("effort").raw(member_of("reasoning", "effort")).member_null("summary");
  w.close_object();
  given("service_tier", "\"auto\"");
  w.member_bool("store", false);
  w.key("text").raw(R"({"format":{"type":"text"},"verbosity":)" + member_of("text", "verbosity") + "}");
  w.member_int("top_logprobs", body.integer("top_logprobs").value_or(0));
  given("truncation", "\"disabled\"");
  given("user", "null");
  return w.take();
}

ApiStatus start_responses(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  auto body = Body::parse(request.body, responses_schema());
  if (!body.ok()) return body.error();
  if (auto known = service.check_model(*body); !known.ok()) return known.error();
  if (auto settings = check_settings(*body); !settings.ok()) return settings.error();
  auto params = read_sampling(*body, service);
  if (!params.ok()) return params.error();
  auto options = read_options(request, *body, service, "resp_");
  if (!options.ok()) return options.error();
  auto chat = read_conversation(*body);
  if (!chat.ok()) return chat.error();
  chat->cancelled = request.cancelled;
  chat->kwargs = body->take("chat_template_kwargs");
  if (auto effort = read_effort(*body, *chat); !effort.ok()) return effort.error();

  Responses::Options own;
  const std::vector<std::string> include = body->strings("include");
  own.logprobs = std::find(include.begin(), include.end(), "message.output_text.logprobs") != include.end();
  if (own.logprobs) params->logprobs = body->integer("top_logprobs").value_or(0);
  const std::optional<int64_t> wanted = body->integer("max_output_tokens");
  const int64_t max_len = service.model().max_model_len();
  if (wanted && *wanted > max_len) {
    return bad_request("max_output_tokens is " + std::to_string(*wanted) +
                           ", but the model's maximum context length is " + std::to_string(max_len) + " tokens.",
                       "max_output_tokens");
  }
  auto ids = body->string("truncation") == "auto" ? truncated_tokens(service, *chat, wanted.value_or(1))
                                                  : chat_tokens(service, std::move(*chat));
  if (!ids.ok()) return ids.error();
  if (auto fits = fit_length(service, ids->size(), wanted, std::nullopt, *params); !fits.ok()) return fits.error();
  own.echo = echo_of(*body, *params);
  return start_one(service, request, *body, std::move(*ids), std::move(*params),
                   std::make_shared<Responses>(service, reply, std::move(*options), std::move(own)));
}

}  // namespace

void serve_responses(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_responses(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

}  // namespace quire::api
