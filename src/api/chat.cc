// SPDX-License-Identifier: Apache-2.0
// /v1/chat/completions: conversations to be answered.
#include "api/constraint_fields.h"
#include "api/conversation.h"
#include "api/json_writer.h"
#include "api/roles.h"

namespace quire::api {
namespace {

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
    w.member("model", service_.options().served_names[0]);
  }

  // Sends one event of a choice. `write_delta` writes the members of "delta"; a null `delta` marks the first event.
  template <typename WriteDelta>
  void send_chunk(const Choice& choice, bool last, const WriteDelta& write_delta, const llm::Delta* delta) {
    JsonWriter w;
    write_head(w, "chat.completion.chunk");
    w.key("choices").open_array().open_object().member_int("index", static_cast<int64_t>(choice.index));
    w.key("delta").open_object();
    write_delta(w);
    w.close_object();
    w.key("logprobs").value_or_null(own_.logprobs && delta != nullptr && !delta->logprobs.empty(), [&] {
      write_content(w, delta->logprobs, texts_.at(choice.index));
    });
    w.key("finish_reason").value_or_null(last, [&] { w.string(engine::name(choice.finish)); });
    if (last) write_stop_reason(w, choice);
    if (options_.return_token_ids && delta != nullptr) {
      w.key("token_ids");
      write_ids(w, delta->tokens);
    }
    w.close_object().close_array();
    if (delta == nullptr && options_.return_token_ids) {
      w.key("prompt_token_ids");
      write_ids(w, prompts_[0].ids);
    }
    if (last && !options_.include_usage && !service_.options().fingerprint.empty()) {
      w.member("system_fingerprint", service_.options().fingerprint);
    }
    if (options_.continuous_usage) {
      w.key("usage");
      write_usage(w, delta == nullptr ? 0 : completion_tokens());
    }
    w.close_object();
    send_event(w.text());
  }

  void piece(Choice& choice, llm::Delta& delta) override {
    texts_.try_emplace(choice.index, service_.model().tokenizer().get(), options_.tokens_as_ids);
    if (!choice.begun) {
      send_chunk(
          choice, false, [&](JsonWriter& w) { w.member("role", own_.role).member("content", own_.echo); }, nullptr);
    }
    const bool last = delta.finish != engine::FinishReason::kNone;
    send_chunk(
        choice, last, [&](JsonWriter& w) { w.member("content", delta.text); }, &delta);
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

  void write_choice(JsonWriter& w, const Choice& choice) const {
    w.open_object().member_int("index", static_cast<int64_t>(choice.index)).key("message").open_object();
    w.member("role", own_.role).member("content", own_.echo + choice.text);
    for (const char* name : {"refusal", "annotations", "audio", "function_call", "reasoning"}) w.member_null(name);
    w.close_object();
    w.key("logprobs").value_or_null(own_.logprobs, [&] {
      TokenTexts texts(service_.model().tokenizer().get(), options_.tokens_as_ids);
      write_content(w, choice.logprobs, texts);
    });
    w.member("finish_reason", engine::name(choice.finish));
    write_stop_reason(w, choice);
    w.key("token_ids").value_or_null(options_.return_token_ids, [&] { write_ids(w, choice.tokens); });
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

// With tool_choice none, tools are shown to the template. Calling them is not supported yet.
ApiStatus check_tools(const Body& body) {
  const json::Value* tools = body.get("tools");
  if (tools == nullptr || tools->as_array().empty()) return Ok{};
  const json::Value* choice = body.get("tool_choice");
  if (choice != nullptr && choice->is_string() && choice->as_string() == "none") return Ok{};
  return bad_request(
      "tools cannot be called by this server yet; leave tools out, or set tool_choice to \"none\" to show them to the "
      "model only.",
      "tools");
}

std::string last_text(const json::Value& messages, const std::string& role) {
  const json::Value& last = messages.as_array().back();
  const json::Value* its_role = last.find("role");
  const json::Value* content = last.find("content");
  if (its_role == nullptr || !its_role->is_string() || its_role->as_string() != role) return "";
  return content != nullptr && content->is_string() ? content->as_string() : "";
}

ApiStatus start_chat(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, chat_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_TRY(check_tools(body));
  QUIRE_ASSIGN(sampling::SamplingParams params, read_sampling(body, service));
  QUIRE_ASSIGN(llm::ConstraintSpec constraint, read_constraint(body));
  QUIRE_TRY(read_thinking_budget(body, false));
  QUIRE_ASSIGN(GenerationOptions options, read_options(request, body, service, "chatcmpl-"));
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
  if (body.boolean("echo", false)) own.echo = last_text(input.messages, own.role);
  QUIRE_ASSIGN(std::vector<int32_t> ids, chat_tokens(service, std::move(input)));
  truncate_prompt(body, service, ids);
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
