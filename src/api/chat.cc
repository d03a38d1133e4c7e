// SPDX-License-Identifier: Apache-2.0
// /v1/chat/completions: conversations to be answered.
#include <utility>

#include "api/constraint_fields.h"
#include "api/conversation.h"
#include "api/json_writer.h"
#include "api/roles.h"

namespace quire::api {
namespace {

using Kind = markup::Event::Kind;

class Chat final : public Generation {
 public:
  struct Options {
    bool logprobs = false;
    int64_t top_logprobs = 0;
    bool prompt_logprobs = false;
    std::string role;
    std::string echo;  // in front of each answer
  };
  Chat(Service& service, ReplyPtr reply, GenerationOptions options, Options own)
      : Generation(service, std::move(reply), std::move(options)), own_(std::move(own)) {}

 private:
  void write_content(JsonWriter& w, const LogprobRows& rows, TokenTexts& texts) const {
    w.open_object().key("content");
    write_token_logprobs(w, rows, texts, service_.model().tokenizer().get());
    w.close_object();
  }

  void write_head(JsonWriter& w, const char* object) const {
    w.open_object().member("id", options_.id).member("object", object).member_int("created", created_);
    w.member("model", options_.model);
  }

  // Where a chunk stands in the stream of its choice.
  struct Place {
    bool first = false;                  // the chunk with the role
    bool last = false;                   // the one with the finish reason
    const llm::Delta* tokens = nullptr;  // its tokens and logprobs; null: another chunk has them
  };

  // Sends one event of a choice. `write_delta` writes the members of "delta".
  template <typename WriteDelta>
  void send_chunk(const Choice& choice, const Place& place, const WriteDelta& write_delta) {
    JsonWriter w;
    write_head(w, "chat.completion.chunk");
    w.key("choices").open_array().open_object().member_int("index", static_cast<int64_t>(choice.index));
    w.key("delta").open_object();
    write_delta(w);
    w.close_object();
    w.key("logprobs")
        .value_or_null(shows_logprobs() && place.tokens != nullptr && !place.tokens->logprobs.empty(),
                       [&] { write_content(w, place.tokens->logprobs, texts_.at(choice.index)); });
    w.key("finish_reason").value_or_null(place.last, [&] { w.string(finish_reason(choice)); });
    if (place.last) {
      write_stop_reason(w, choice);
      write_receipt(w, choice);
    }
    if (shows_ids() && place.tokens != nullptr) {
      w.key("token_ids");
      write_ids(w, place.tokens->tokens);
    }
    w.close_object().close_array();
    if (place.first && options_.return_token_ids) {
      w.key("prompt_token_ids");
      write_ids(w, prompts_[0].ids);
    }
    if (place.last && !options_.include_usage && !service_.options().fingerprint.empty()) {
      w.member("system_fingerprint", service_.options().fingerprint);
    }
    if (options_.continuous_usage) {
      w.key("usage");
      write_usage(w, place.first ? 0 : completion_tokens());
    }
    w.close_object();
    send_event(w.text());
  }

  // Reasoning that is left out must not show through its tokens.
  bool hides_tokens() const { return !options_.format->include_reasoning && counts_reasoning(); }
  bool shows_logprobs() const { return own_.logprobs && !hides_tokens(); }
  bool shows_ids() const { return options_.return_token_ids && !hides_tokens(); }

  // An answer with calls ends with tool_calls, unless the length cut it or the request named the tool, as with OpenAI.
  const char* finish_reason(const Choice& choice) const {
    const bool called = choice.reader && choice.reader->num_calls() > 0;
    if (!called || choice.finish != engine::FinishReason::kStop) return engine::name(choice.finish);
    return options_.format->options.choice == markup::ToolChoice::kNamed ? "stop" : "tool_calls";
  }

  static void write_reasoning(JsonWriter& w, std::string_view text) {
    w.member("reasoning", text).member("reasoning_content", text);
  }

  // The calls of the events [from, to), with one entry for each call.
  static void write_call_deltas(JsonWriter& w, const std::vector<AnswerEvent>& events, size_t from, size_t to) {
    w.key("tool_calls").open_array();
    for (size_t i = from; i < to;) {
      const int32_t call = events[i].call;
      w.open_object().member_int("index", call);
      const bool begins = events[i].kind == Kind::kCallBegin;
      if (begins) w.member("id", events[i].id).member("type", "function");
      w.key("function").open_object();
      if (begins) w.member("name", events[i].name);
      std::string arguments;
      for (; i < to && events[i].call == call; ++i) arguments += events[i].text;
      w.member("arguments", arguments).close_object().close_object();
    }
    w.close_array();
  }

  static bool of_calls(Kind kind) { return kind != Kind::kReasoning && kind != Kind::kContent; }

  // Each stretch of one kind is a chunk of its own, so that clients see them in order.
  void piece(Choice& choice, Piece& piece) override {
    texts_.try_emplace(choice.index, service_.model().tokenizer().get(), options_.tokens_as_ids);
    if (!choice.begun) {
      send_chunk(choice, {.first = true},
                 [&](JsonWriter& w) { w.member("role", own_.role).member("content", own_.echo); });
    }
    const std::vector<AnswerEvent>& events = piece.events;
    Place place{.tokens = &piece.delta};
    const bool last = piece.delta.finish != engine::FinishReason::kNone;
    for (size_t from = 0; from < events.size();) {
      const Kind kind = events[from].kind;
      size_t to = from + 1;
      while (to < events.size() && of_calls(kind) && of_calls(events[to].kind)) ++to;
      if (kind == Kind::kCallEnd && to == from + 1) {  // nothing but the end of a call: clients do not see it
        from = to;
        continue;
      }
      place.last = last && to == events.size();
      send_chunk(choice, place, [&](JsonWriter& w) {
        if (kind == Kind::kReasoning) {
          write_reasoning(w, events[from].text);
        } else if (kind == Kind::kContent) {
          w.member("content", events[from].text);
        } else {
          write_call_deltas(w, events, from, to);
        }
      });
      place.tokens = nullptr;
      from = to;
    }
    const bool tokens_left = place.tokens != nullptr && (shows_logprobs() || shows_ids());
    if ((last && !place.last) || (!last && tokens_left)) {
      place.last = last;
      send_chunk(choice, place, [](JsonWriter&) {});
    }
  }

  void finish() override { options_.stream ? finish_stream() : finish_whole(); }

  void finish_stream() {
    if (options_.include_usage) {
      JsonWriter w;
      write_head(w, "chat.completion.chunk");
      w.key("choices").open_array().close_array().key("usage");
      write_usage(w, completion_tokens());
      if (!service_.options().fingerprint.empty()) w.member("system_fingerprint", service_.options().fingerprint);
      w.close_object();
      send_event(w.text());
    }
    write_raw("data: [DONE]\n\n");
    reply_->end();
  }

  void write_calls(JsonWriter& w, const AnswerReader& reader) const {
    w.key("tool_calls").open_array();
    for (const AnswerPart& part : reader.parts()) {
      if (part.kind != Kind::kCallBegin) continue;
      w.open_object().member("id", part.id).member("type", "function").key("function").open_object();
      w.member("name", part.name).member("arguments", part.text).close_object().close_object();
    }
    w.close_array();
  }

  void write_choice(JsonWriter& w, const Choice& choice) const {
    const AnswerReader& reader = *choice.reader;
    const std::string reasoning = reader.joined(Kind::kReasoning);
    const std::string content = own_.echo + reader.joined(Kind::kContent);
    const bool nothing = content.empty() && (reader.num_calls() > 0 || !reasoning.empty());
    w.open_object().member_int("index", static_cast<int64_t>(choice.index)).key("message").open_object();
    w.member("role", own_.role).key("content").value_or_null(!nothing, [&] { w.string(content); });
    for (const char* name : {"refusal", "annotations", "audio", "function_call"}) w.member_null(name);
    if (reasoning.empty()) {
      w.member_null("reasoning");
    } else {
      write_reasoning(w, reasoning);
    }
    if (reader.num_calls() > 0) write_calls(w, reader);
    w.close_object();
    w.key("logprobs").value_or_null(shows_logprobs(), [&] {
      TokenTexts texts(service_.model().tokenizer().get(), options_.tokens_as_ids);
      write_content(w, choice.logprobs, texts);
    });
    w.member("finish_reason", finish_reason(choice));
    write_stop_reason(w, choice);
    w.key("token_ids").value_or_null(shows_ids(), [&] { write_ids(w, choice.tokens); });
    write_receipt(w, choice);
    w.close_object();
  }

  void finish_whole() {
    JsonWriter w;
    write_head(w, "chat.completion");
    w.key("choices").open_array();
    for (const auto& [index, choice] : choices_) write_choice(w, choice);
    w.close_array().member_null("service_tier");
    write_fingerprint(w);
    w.key("usage");
    write_usage(w, completion_tokens());
    w.key("prompt_logprobs").value_or_null(own_.prompt_logprobs, [&] {
      write_prompt_logprobs(w, prompts_[0].logprobs, service_.model().tokenizer().get());
    });
    w.key("prompt_token_ids").value_or_null(options_.return_token_ids, [&] { write_ids(w, prompts_[0].ids); });
    w.member_null("kv_transfer_params").close_object();
    send_json(*reply_, w.take());
  }

  const Options own_;
  std::map<size_t, TokenTexts> texts_;  // for the choices of a stream that have begun, by index
};

// Every choice is read by a parser with a copy of the tools, so many choices with large tools are refused.
ApiStatus check_choices(const ToolSet& tools, int64_t n) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  if (n <= 1 || !tools.callable()) return Ok{};
  if (json::dump(tools.shown).size() <= kMaxBytes / static_cast<size_t>(n)) return Ok{};
  return bad_field("n", "must be smaller with tools of this size.");
}

// What the prompt has between the text parts of a message: a newline where it joins them, nothing where the template
// takes them as they are.
std::string between_parts(const Service& service, const ToolSet& tools, const ChatInput& input) {
  using text::ContentFormat;
  ContentFormat format = service.options().content_format;
  if (format == ContentFormat::kAuto) {
    const auto find = [&](const text::ChatTemplate& one) { return one.content_format(!tools.tools.empty()); };
    const text::ChatTemplate* loaded = service.model().chat_template();
    auto found = Result<ContentFormat>(ContentFormat::kString);
    if (input.chat_template) {
      if (auto own = text::ChatTemplate::parse(*input.chat_template); own.ok()) found = find(*own);
    } else if (loaded != nullptr) {
      found = find(*loaded);
    }
    if (found.ok()) format = *found;
  }
  return format == ContentFormat::kString ? "\n" : "";
}

// The text of the last message if it has that role; `between` stands between its parts.
std::string last_text(const json::Value& messages, const std::string& role, const std::string& between) {
  const json::Value& last = messages.as_array().back();
  const json::Value* its_role = last.find("role");
  const json::Value* content = last.find("content");
  if (its_role == nullptr || !its_role->is_string() || its_role->as_string() != role || content == nullptr) return "";
  if (content->is_string()) return content->as_string();
  if (!content->is_array()) return "";
  std::string text;
  bool first = true;
  for (const json::Value& part : content->as_array()) {
    const json::Value* piece = part.is_string() ? &part : part.find("text");
    if (piece == nullptr || !piece->is_string()) continue;
    if (!std::exchange(first, false)) text += between;
    text += piece->as_string();
  }
  return text;
}

ApiStatus start_chat(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, chat_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(const ToolSet tools, read_chat_tools(body));
  QUIRE_ASSIGN(sampling::SamplingParams params, read_sampling(body, service));
  QUIRE_ASSIGN(llm::ConstraintSpec constraint, read_constraint(body));
  const bool reasons = service.options().markup.dialect.reasoning != nullptr;
  QUIRE_ASSIGN(const std::optional<int64_t> budget, read_thinking_budget(body, reasons));
  QUIRE_ASSIGN(GenerationOptions options, read_options(request, body, service, "chatcmpl-"));
  QUIRE_TRY(check_choices(tools, options.n));
  QUIRE_ASSIGN(ChatInput input, read_chat(body));
  QUIRE_TRY(check_roles(service, input));
  input.cancelled = request.cancelled;

  Chat::Options own;
  own.logprobs = body.boolean("logprobs", false);
  own.top_logprobs = body.integer("top_logprobs").value_or(0);
  own.prompt_logprobs = params.prompt_logprobs.has_value();
  if (own.top_logprobs != 0 && !own.logprobs) return bad_field("top_logprobs", "need logprobs to be true.");
  if (own.logprobs) params.logprobs = own.top_logprobs;
  own.role = service.options().response_role;
  if (input.continue_final_message) {
    const json::Value* role = input.messages.as_array().back().find("role");
    if (role != nullptr && role->is_string()) own.role = role->as_string();
  }
  if (body.boolean("echo", false)) {
    own.echo = last_text(input.messages, own.role, between_parts(service, tools, input));
  }
  show_tools(service, tools, input);
  QUIRE_ASSIGN(const std::shared_ptr<AnswerFormat> format, answer_format(service, tools, input));
  format->include_reasoning = body.boolean("include_reasoning", true);
  if (options.return_receipt && !format->include_reasoning) {
    return bad_field("return_receipt", "shows the tokens of the reasoning, so include_reasoning must not be false.");
  }
  format->keep_parts = !options.stream;
  format->call_prefix = "chatcmpl-tool-";
  QUIRE_ASSIGN(ChatTokens prompt, chat_tokens(service, std::move(input)));
  settle_format(service, prompt.tail, *format);
  QUIRE_TRY(join_constraints(*format, budget, constraint));
  options.format = format;
  options.constraint = constraint;
  std::vector<int32_t> ids = std::move(prompt.ids);
  truncate_prompt(body, service.model().max_model_len(), ids);
  std::optional<int64_t> max_tokens = body.integer("max_completion_tokens");
  if (!max_tokens) max_tokens = body.integer("max_tokens");
  QUIRE_TRY(fit_length(service, ids.size(), max_tokens, std::nullopt, params));
  return start_one(service, request, body, std::move(ids), std::move(params), std::move(constraint),
                   std::make_shared<Chat>(service, reply, std::move(options), std::move(own)));
}

}  // namespace

void serve_chat(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_chat(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

}  // namespace quire::api
