// SPDX-License-Identifier: Apache-2.0
// /v1/responses: answers a conversation in the form of OpenAI's Responses API.
#include <algorithm>
#include <ctime>

#include "api/constraint_fields.h"
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
  // "logprobs": a list, which is empty unless the request asked for it.
  void write_logprobs(JsonWriter& w, const LogprobRows& rows, TokenTexts& texts) const {
    w.key("logprobs");
    write_token_logprobs(w, own_.logprobs ? rows : LogprobRows{}, texts, service_.model().tokenizer().get());
  }

  bool cut() const { return choices_.at(0).finish == engine::FinishReason::kLength; }
  const char* final_status() const { return cut() ? "incomplete" : "completed"; }

  // The text and logprobs so far. A stream keeps them here, an answer that is sent whole in its choice.
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

  // The Response object; if `done`, with its output and usage.
  void write_response(JsonWriter& w, const char* status, bool done, const ApiError* error = nullptr) const {
    w.open_object().member("id", options_.id).member("object", "response").member_int("created_at", created_);
    w.member("status", status).member("model", service_.options().served_names[0]);
    w.key("completed_at").value_or_null(done && !cut(), [&] { w.integer(static_cast<int64_t>(std::time(nullptr))); });
    w.key("error").value_or_null(error != nullptr, [&] {
      w.open_object().member("code", "server_error").member("message", error->message).close_object();
    });
    w.key("incomplete_details").value_or_null(done && cut(), [&] {
      w.open_object().member("reason", "max_output_tokens").close_object();
    });
    w.key("output").open_array();
    if (done) write_item(w, true);
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
      w.member_int("output_index", 0).key("item");
      write_item(w, done);
    });
  }
  // Sends an event about the only part of the only item.
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
      return send_json(*reply_, w.take());
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
  // For a stream:
  bool started_ = false;
  int64_t sequence_ = 0;
  std::string text_;
  LogprobRows rows_;
  TokenTexts texts_;
};

// The messages of a chat from instructions and input.
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
  for (size_t i = 0; i < input.as_array().size(); ++i) {
    const json::Value& item = input.as_array()[i];
    const std::string where = "input[" + std::to_string(i) + "]";
    const json::Value* type = item.find("type");
    if (type != nullptr && !type->is_null() && !(type->is_string() && type->as_string() == "message")) {
      return bad_field(where + ".type", "must be message: tools, references and reasoning are not taken yet.");
    }
    QUIRE_ASSIGN(std::string role, string_at(item, "role", where));
    if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
      return bad_field(where + ".role",
                       "must be user, assistant, system or developer, got \"" + role.substr(0, 40) + "\".");
    }
    QUIRE_ASSIGN(json::Value content, text_content(item, {"input_text", "output_text", "text"}, where));
    messages.emplace_back(json::Object{{"role", std::move(role)}, {"content", std::move(content)}});
  }
  // An answer that was cut short is continued, as in vLLM.
  const json::Value* status = input.as_array().back().find("status");
  const bool open = status != nullptr && status->is_string() &&
                    (status->as_string() == "in_progress" || status->as_string() == "incomplete");
  chat.continue_final_message = open && messages.back().find("role")->as_string() == "assistant";
  chat.add_generation_prompt = !chat.continue_final_message;
  chat.messages = std::move(messages);
  return chat;
}

// Fields that have few legal values as long as tools and formats are not supported.
ApiStatus check_settings(const Body& body) {
  if (const json::Value* choice = body.get("tool_choice")) {
    if (!choice->is_string() || (choice->as_string() != "auto" && choice->as_string() != "none")) {
      return bad_field("tool_choice", "must be auto or none: tools cannot be called by this server yet.");
    }
  }
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
      ids = std::move(shorter);
    }
  }
  return ids;
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
  w.key("tools").open_array().close_array().member_bool("background", false);
  w.member_int("max_output_tokens", params.max_tokens.value_or(0)).member_null("max_tool_calls");
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

ApiStatus start_responses(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, responses_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_TRY(check_settings(body));
  QUIRE_ASSIGN(sampling::SamplingParams params, read_sampling(body, service));
  QUIRE_ASSIGN(llm::ConstraintSpec constraint, read_constraint(body));
  QUIRE_ASSIGN(GenerationOptions options, read_options(request, body, service, "resp_"));
  QUIRE_ASSIGN(ChatInput chat, read_conversation(body));
  chat.cancelled = request.cancelled;
  chat.kwargs = body.take("chat_template_kwargs");
  QUIRE_TRY(read_effort(body, chat));

  Responses::Options own;
  const std::vector<std::string> include = body.strings("include");
  own.logprobs = std::find(include.begin(), include.end(), "message.output_text.logprobs") != include.end();
  if (own.logprobs) params.logprobs = body.integer("top_logprobs").value_or(0);
  const std::optional<int64_t> wanted = body.integer("max_output_tokens");
  const int64_t max_len = service.model().max_model_len();
  if (wanted && *wanted > max_len) {
    return bad_field("max_output_tokens", "is " + std::to_string(*wanted) +
                                              ", but the model's maximum context length is " + std::to_string(max_len) +
                                              " tokens.");
  }
  const bool truncate = body.string("truncation") == "auto";
  QUIRE_ASSIGN(std::vector<int32_t> ids,
               truncate ? truncated_tokens(service, chat, wanted.value_or(1)) : chat_tokens(service, std::move(chat)));
  QUIRE_TRY(fit_length(service, ids.size(), wanted, std::nullopt, params));
  own.echo = echo_of(body, params);
  return start_one(service, request, body, std::move(ids), std::move(params), std::move(constraint),
                   std::make_shared<Responses>(service, reply, std::move(options), std::move(own)));
}

}  // namespace

void serve_responses(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_responses(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

void serve_response_by_id(Service&, const HttpRequest& request, const ReplyPtr& reply) {
  refuse(request, *reply,
         not_found_error("answers are not kept by this server, so none can be fetched, cancelled or deleted by its id; "
                         "close the connection to cancel one.",
                         "response_id"));
}

}  // namespace quire::api
