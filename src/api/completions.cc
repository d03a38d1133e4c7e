// SPDX-License-Identifier: Apache-2.0
// /v1/completions: continues texts or token ids.
#include <algorithm>
#include <map>
#include <unordered_set>

#include "api/constraint_fields.h"
#include "api/json_writer.h"
#include "api/request_fields.h"

namespace quire::api {
namespace {

constexpr size_t kMaxPrompts = 1024;
constexpr size_t kMaxPromptTokens = size_t{1} << 20;  // in all prompts of a request, if there are several

// Where the logprobs of a growing choice have arrived.
struct LogprobState {
  TokenTexts texts;
  int64_t offset = 0;  // in characters of the text
};

// The bytes of `text`, from `at` on, that belong to a token of a prompt that shows as `shown`. A token that is not in
// the text, such as a BOS that was added, has none.
size_t width_in(std::string_view text, size_t at, std::string_view shown, bool special) {
  const std::string_view rest = text.substr(at);
  if (rest.starts_with(shown)) return shown.size();
  if (at == 0 && shown.starts_with(' ') && rest.starts_with(shown.substr(1))) return shown.size() - 1;  // one was added
  return special ? 0 : std::min(shown.size(), rest.size());  // else the tokenizer has changed the text
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

class Completions final : public Generation {
 public:
  struct Options {
    std::optional<int64_t> logprobs;
    bool echo = false;
    bool prompt_logprobs = false;
    bool skip_special = true;
    std::vector<std::string> prompts;  // their texts; only with echo
  };
  Completions(Service& service, ReplyPtr reply, GenerationOptions options, Options own)
      : Generation(service, std::move(reply), std::move(options)), own_(std::move(own)) {}

 private:
  bool is_special(int32_t token) const {
    const auto& tokenizer = service_.model().tokenizer();
    return tokenizer != nullptr && tokenizer->is_special(token);
  }

  // Writes the logprobs of the choice's prompt (if `echoes`) and of these tokens as OpenAI's four parallel lists.
  void write_logprobs(JsonWriter& w, const Choice& choice, bool echoes, const std::vector<int32_t>& tokens,
                      const LogprobRows& rows, LogprobState& state) const {
    JsonWriter o, v, t, m;
    o.open_array();
    v.open_array();
    t.open_array();
    m.open_array();
    // Returns the token's text, which counts for the offsets also where the lists have its id.
    const auto add = [&](int32_t token, const std::vector<sampling::TokenLogprob>* row) {
      std::string text = state.texts.text(token);
      t.string(state.texts.show(token));
      o.integer(state.offset);
      if (row == nullptr || row->empty()) {
        v.null();
        m.null();
      } else {
        v.number(json_logprob((*row)[0].logprob));
        m.open_object();
        std::unordered_set<std::string> seen;
        for (const sampling::TokenLogprob& entry : *row) {
          const auto [name, is_new] = seen.insert(state.texts.show(entry.token));
          if (is_new) json_key(m, *name).number(json_logprob(entry.logprob));
        }
        m.close_object();
      }
      state.texts.advance(token);
      return text;
    };
    if (echoes) {
      const PromptState& prompt = prompts_[choice.prompt];
      const std::string_view text = own_.prompts[choice.prompt];
      for (size_t i = 0, at = 0; i < prompt.ids.size(); ++i) {
        const std::string shown =
            add(prompt.ids[i], i == 0 || i > prompt.logprobs.size() ? nullptr : &prompt.logprobs[i - 1]);
        const size_t width = width_in(text, at, shown, is_special(prompt.ids[i]));
        state.offset += count_characters(text.substr(at, width));
        at += width;
      }
      state.offset = count_characters(text);
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string shown = add(tokens[i], i < rows.size() ? &rows[i] : nullptr);
      if (!own_.skip_special || !is_special(tokens[i])) state.offset += count_characters(shown);
    }
    w.open_object();
    w.key("text_offset").raw(o.close_array().text()).key("token_logprobs").raw(v.close_array().text());
    w.key("tokens").raw(t.close_array().text()).key("top_logprobs").raw(m.close_array().text());
    w.close_object();
  }

  // A key that is the text of a token, which may need escapes.
  static JsonWriter& json_key(JsonWriter& w, const std::string& name) {
    std::string quoted;
    json::append_quoted(quoted, name);
    return w.key(std::string_view(quoted).substr(1, quoted.size() - 2));
  }

  void write_head(JsonWriter& w) const {
    w.open_object().member("id", options_.id).member("object", "text_completion").member_int("created", created_);
    w.member("model", options_.model);
  }

  void write_ending(JsonWriter& w, const Choice& choice) const {
    w.key("finish_reason").value_or_null(choice.finish != engine::FinishReason::kNone, [&] {
      w.string(engine::name(choice.finish));
    });
    write_stop_reason(w, choice);
  }

  void piece(Choice& choice, Piece& piece) override {
    llm::Delta& delta = piece.delta;
    const PromptState& prompt = prompts_[choice.prompt];
    const bool echo_now = own_.echo && !choice.begun;
    if (options_.drop_answer) {
      delta.text.clear();
      delta.tokens.clear();
      delta.logprobs.clear();
    }
    JsonWriter w;
    write_head(w);
    w.key("choices").open_array().open_object().member_int("index", static_cast<int64_t>(choice.index));
    w.member("text", echo_now ? own_.prompts[choice.prompt] + delta.text : delta.text);
    w.key("logprobs").value_or_null(own_.logprobs.has_value(), [&] {
      write_logprobs(w, choice, echo_now, delta.tokens, delta.logprobs, state_of(choice));
    });
    write_ending(w, choice);
    if (options_.return_token_ids) {
      w.key("prompt_token_ids").value_or_null(!choice.begun, [&] { write_ids(w, prompt.ids); });
      w.key("token_ids");
      write_ids(w, delta.tokens);
    }
    if (choice.finish != engine::FinishReason::kNone) write_receipt(w, choice);
    w.close_object().close_array();
    if (options_.continuous_usage) {
      w.key("usage");
      write_usage(w, completion_tokens());
    }
    w.close_object();
    send_event(w.text());
  }

  void finish() override { options_.stream ? finish_stream() : finish_whole(); }

  void finish_stream() {
    if (options_.include_usage) {
      JsonWriter w;
      write_head(w);
      w.key("choices").open_array().close_array().key("usage");
      write_usage(w, completion_tokens());
      w.close_object();
      send_event(w.text());
    }
    write_raw("data: [DONE]\n\n");
    reply_->end();
  }

  void finish_whole() {
    JsonWriter w;
    write_head(w);
    w.key("choices").open_array();
    for (auto& [index, choice] : choices_) write_choice(w, choice);
    w.close_array().member_null("service_tier");
    write_fingerprint(w);
    w.key("usage");
    write_usage(w, completion_tokens());
    w.member_null("kv_transfer_params").close_object();
    send_json(*reply_, w.take());
  }

  void write_choice(JsonWriter& w, Choice& choice) {
    const auto* tokenizer = service_.model().tokenizer().get();
    const PromptState& prompt = prompts_[choice.prompt];
    if (options_.drop_answer) {
      choice.text.clear();
      choice.tokens.clear();
      choice.logprobs.clear();
    }
    w.open_object().member_int("index", static_cast<int64_t>(choice.index));
    w.member("text", own_.echo ? own_.prompts[choice.prompt] + choice.text : choice.text);
    w.key("logprobs").value_or_null(own_.logprobs.has_value(), [&] {
      LogprobState state{TokenTexts(tokenizer, options_.tokens_as_ids)};
      write_logprobs(w, choice, own_.echo, choice.tokens, choice.logprobs, state);
    });
    write_ending(w, choice);
    w.key("token_ids").value_or_null(options_.return_token_ids, [&] { write_ids(w, choice.tokens); });
    w.key("prompt_logprobs").value_or_null(own_.prompt_logprobs, [&] {
      write_prompt_logprobs(w, prompt.logprobs, tokenizer);
    });
    w.key("prompt_token_ids").value_or_null(options_.return_token_ids, [&] { write_ids(w, prompt.ids); });
    write_receipt(w, choice);
    w.close_object();
  }

  LogprobState& state_of(const Choice& choice) {
    const LogprobState fresh{TokenTexts(service_.model().tokenizer().get(), options_.tokens_as_ids)};
    return states_.emplace(choice.index, fresh).first->second;
  }

  const Options own_;
  std::map<size_t, LogprobState> states_;  // for the choices of a stream that have begun, by index
};

ApiResult<std::vector<llm::Prompt>> read_prompts(const Service& service, const Body& body) {
  const json::Value& prompt = *body.get("prompt");
  const bool special = body.boolean("add_special_tokens", true);
  std::vector<llm::Prompt> out;
  const auto add = [&](const json::Value& one) -> ApiStatus {
    if (one.is_string()) {
      QUIRE_TRY(check_text_length(service, one.as_string().size()));
      out.emplace_back(llm::TextPrompt{one.as_string(), special});
    } else {
      llm::TokenPrompt tokens;
      for (const json::Value& id : one.as_array()) tokens.push_back(static_cast<int32_t>(id.as_int()));
      out.emplace_back(std::move(tokens));
    }
    return Ok{};
  };
  if (prompt.is_string() || prompt.as_array()[0].is_int()) {
    QUIRE_TRY(add(prompt));
    return out;
  }
  if (const size_t size = prompt.as_array().size(); size > kMaxPrompts) {
    return bad_field("prompt", {"has ", size, " entries; at most 1024 are taken."});
  }
  for (const json::Value& one : prompt.as_array()) QUIRE_TRY(add(one));
  return out;
}

// Called before any prompt is tokenised.
ApiStatus check_sequences(size_t prompts, int64_t n) {
  const int64_t sequences = static_cast<int64_t>(prompts) * n;
  if (sequences <= sampling::kMaxSequences) return Ok{};
  return bad_field("n", {"must be smaller: ", prompts, " prompts with n ", n, " are ", sequences,
                         " sequences, and at most ", sampling::kMaxSequences, " are accepted."});
}

// What echo shows of a prompt: the text as it was sent, or that of its tokens if there is no such text.
std::string echo_of(const Service& service, const llm::Prompt& sent, const std::vector<int32_t>& ids, bool truncated,
                    bool skip_special) {
  const auto* text = std::get_if<llm::TextPrompt>(&sent);
  if (text != nullptr && !truncated) return text->text;
  const auto& tokenizer = service.model().tokenizer();
  return tokenizer == nullptr ? std::string() : tokenizer->decode(ids, skip_special);
}

ApiStatus start_completions(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, completion_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(sampling::SamplingParams params, read_sampling(body, service));
  QUIRE_ASSIGN(const llm::ConstraintSpec spec, read_constraint(body));
  QUIRE_ASSIGN(GenerationOptions options, read_options(request, body, service, "cmpl-"));
  QUIRE_ASSIGN(std::vector<llm::Prompt> prompts, read_prompts(service, body));

  Completions::Options own;
  own.logprobs = body.integer("logprobs");
  own.echo = body.boolean("echo", false);
  own.skip_special = params.skip_special_tokens;
  std::optional<int64_t> max_tokens = body.integer("max_tokens");
  if (max_tokens == 0) {
    if (!own.echo) return bad_field("max_tokens", "must be at least 1, unless echo is true.");
    if (options.return_receipt) return bad_field("return_receipt", "needs an answer, so max_tokens must not be 0.");
    options.drop_answer = true;
    max_tokens = 1;
  }
  options.constraint = spec;
  params.logprobs = own.logprobs;
  own.prompt_logprobs = params.prompt_logprobs.has_value();
  if (own.echo && own.logprobs) {
    // The rows of the prompt are written with those of the answer; the larger number serves both.
    params.prompt_logprobs = std::max(params.prompt_logprobs.value_or(0), *own.logprobs);
  }
  llm::GenerateRequest common;
  QUIRE_TRY(read_scheduling(request, body, common));
  // The settings are checked once for all prompts; only the length of the answer differs between them.
  sampling::SamplingParams settings = params;
  settings.max_tokens = max_tokens ? max_tokens : params.max_tokens;
  QUIRE_ASSIGN(auto checked, service.model().check(std::move(settings)));
  QUIRE_TRY(check_sequences(prompts.size(), params.n));
  QUIRE_ASSIGN(const engine::ConstraintPtr constraint, service.model().constrain(spec, checked));
  std::vector<engine::Request> requests;
  size_t total = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const llm::Prompt& prompt = prompts[i];
    const auto failed = [&](const ApiError& error) -> ApiFailure {
      return prompts.size() == 1 ? ApiFailure(error) : at_place(error, "prompt[" + std::to_string(i) + "]");
    };
    if (request.cancelled != nullptr && *request.cancelled) return Ok{};  // nobody waits for the answer
    auto read = service.model().tokens_of(prompt);
    if (!read.ok()) return failed(to_api_error(read.error()).get());
    std::vector<int32_t> ids = std::move(*read);
    const size_t whole = ids.size();
    truncate_prompt(body, service.model().max_model_len(), ids);
    if (own.echo) own.prompts.push_back(echo_of(service, prompt, ids, ids.size() < whole, own.skip_special));
    total += ids.size();
    if (total > kMaxPromptTokens && prompts.size() > 1) {
      return bad_field(
          "prompt", {"has more than ", kMaxPromptTokens, " tokens in all its entries; send them in several requests."});
    }
    sampling::SamplingParams own_length = params;
    const ApiStatus fits = fit_length(service, ids.size(), max_tokens, sampling::kDefaultMaxTokens, own_length);
    if (!fits.ok()) return failed(fits.error());
    checked.set_max_tokens(*own_length.max_tokens);
    auto ready = service.model().prepare(std::move(ids), checked, common.priority, common.cache_salt, constraint);
    if (!ready.ok()) return failed(to_api_error(ready.error()).get());
    requests.push_back(std::move(*ready));
  }
  return std::make_shared<Completions>(service, reply, std::move(options), std::move(own))->start(std::move(requests));
}

}  // namespace

void serve_completions(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_completions(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

}  // namespace quire::api
