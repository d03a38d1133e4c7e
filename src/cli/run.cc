// SPDX-License-Identifier: Apache-2.0
// quire run: answers one prompt and streams the answer.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <variant>

#include "cli/chat.h"
#include "cli/command.h"
#include "cli/command_ranks.h"
#include "cli/constraint_flags.h"
#include "cli/flags.h"
#include "cli/hub/model_cache.h"
#include "cli/serve_ranks.h"

namespace quire::cli {
namespace {

using Clock = std::chrono::steady_clock;

// A conversation needs a terminal for both input and output.
bool can_converse() {
  return ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
}

struct RunFlags {
  llm::Options options;
  RankFlags ranks;
  SamplingFlags sampling;
  ConstraintFlags constraint;
  Words words;  // [MODEL] PROMPT
  std::string model;
  std::string system;
  bool raw = false;
  bool json = false;
  bool prompt_token_ids = false;
};

// Decides which of the arguments is the MODEL and which the PROMPT. A single argument is the PROMPT, unless it names a
// model and the prompt comes from elsewhere: piped in, or typed in a conversation.
std::optional<std::string> settle_words(RunFlags& flags) {
  const std::vector<std::string> words = flags.words.given();
  if (!flags.model.empty()) flags.options.model = flags.model;
  if (words.size() == 2) {
    flags.options.model = words[0];
    return words[1];
  }
  if (words.size() == 1) {
    const bool elsewhere = stdin_is_piped() || can_converse();
    if (!flags.model.empty() || !elsewhere || !resolve_model(words[0]).ok()) return words[0];
    flags.options.model = words[0];
  }
  return std::nullopt;
}

// The prompt to send: PROMPT, or standard input ("-", or no PROMPT), or both with an empty line between them.
// mpirun passes its own standard input on, also a terminal that nobody means to type at: it is read only for lack of a
// PROMPT.
Result<std::string> settle_prompt(const RunFlags& flags, const std::optional<std::string>& prompt) {
  if (!prompt && !stdin_is_piped()) {
    return invalid_argument("there is no prompt; give it as an argument or on standard input (quire run \"Hello\")");
  }
  const bool only_input = !prompt || *prompt == "-";
  // Token ids are a complete list: nothing is added to them.
  const bool appends = stdin_is_piped() && !flags.prompt_token_ids && flags.options.processes.group == nullptr;
  if (!only_input && !appends) return *prompt;
  QUIRE_ASSIGN(std::string text, read_stdin());
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (only_input) return text;
  return text.empty() ? *prompt : *prompt + "\n\n" + text;
}

Result<llm::Prompt> make_prompt(const RunFlags& flags, const llm::Llm& llm, const std::string& text) {
  if (flags.prompt_token_ids) {
    auto ids = json::parse(text);
    llm::TokenPrompt tokens;
    if (!ids.ok() || !ids->is_array())
      return invalid_argument("--prompt-token-ids needs a JSON list of integers as PROMPT");
    for (const json::Value& id : ids->as_array()) {
      if (!id.is_int() || id.as_int() < 0 || id.as_int() > INT32_MAX) {
        return invalid_argument("--prompt-token-ids needs a JSON list of token ids as PROMPT");
      }
      tokens.push_back(static_cast<int32_t>(id.as_int()));
    }
    return llm::Prompt(std::move(tokens));
  }
  if (flags.raw || (llm.chat_template() == nullptr && flags.system.empty())) return llm::Prompt(llm::TextPrompt{text});
  text::ChatRequest chat;
  json::Array messages;
  const auto add = [&](const char* role, const std::string& content) {
    json::Value message{json::Object{}};
    message.set("role", role);
    message.set("content", content);
    messages.push_back(std::move(message));
  };
  if (!flags.system.empty()) add("system", flags.system);
  add("user", text);
  chat.messages = std::move(messages);
  return llm::Prompt(std::move(chat));
}

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  json::Array logprobs;
  engine::FinishReason finish = engine::FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> stop_reason;
};

struct Timings {
  double first_token_s = 0;
  double total_s = 0;
};

json::Value answer_json(const Answer& answer, int64_t index, bool with_logprobs) {
  json::Value out{json::Object{}};
  out.set("index", index);
  out.set("text", answer.text);
  json::Array ids;
  for (const int32_t token : answer.tokens) ids.emplace_back(int64_t{token});
  out.set("token_ids", std::move(ids));
  out.set("finish_reason", engine::name(answer.finish));
  out.set("stop_reason", stop_reason_json(answer.stop_reason));
  if (with_logprobs) out.set("logprobs", answer.logprobs);
  return out;
}

// Streams until all n answers are complete; prints the first one as it is generated.
class Session {
 public:
  Session(llm::Llm& llm, const RunFlags& flags, llm::ConstraintSpec constraint)
      : llm_(llm), flags_(flags), constraint_(std::move(constraint)) {}

  int run(const llm::Prompt& text) {
    auto tokens = llm_.tokens_of(text);
    if (!tokens.ok()) return report(tokens.error());
    PrefillLine prefill(llm_, static_cast<int64_t>(tokens->size()));
    sampling::SamplingParams params = llm_.default_params();
    flags_.sampling.apply(params);
    if (!params.seed) params.seed = flags_.options.seed.value_or(0);
    const bool stream = !flags_.json && params.n == 1;
    const auto start = Clock::now();
    llm::GenerateRequest request;
    request.prompt = std::move(*tokens);
    request.params = params;
    request.constraint = constraint_;
    if (!llm_.own_adapters().empty()) request.adapter = llm_.own_adapters().front();
    auto id = llm_.submit(std::move(request));
    if (!id.ok()) {
      prefill.clear();
      return report(id.error());
    }
    answers_.resize(static_cast<size_t>(params.n));  // in range, since the request was accepted
    catch_interrupts();
    while (llm_.has_work()) {
      if (take_interrupt()) {
        prefill.clear();
        llm_.abort(*id);
        if (stream) std::fputc('\n', stdout);
        return kExitInterrupted;
      }
      for (llm::Delta& delta : llm_.step()) {
        prefill.clear();
        if (delta.error) return report(*delta.error);
        if (timings_.first_token_s == 0)
          timings_.first_token_s = std::chrono::duration<double>(Clock::now() - start).count();
        take(delta, stream);
      }
      if (timings_.first_token_s == 0) prefill.update();
    }
    timings_.total_s = std::chrono::duration<double>(Clock::now() - start).count();
    if (flags_.json) {
      print_json(params);
    } else if (!stream) {
      for (size_t i = 0; i < answers_.size(); ++i) std::printf("--- %zu\n%s\n", i + 1, answers_[i].text.c_str());
    } else if (answers_[0].text.empty() || answers_[0].text.back() != '\n') {
      std::fputc('\n', stdout);
    }
    if (stream) mark_cut(answers_[0]);
    return 0;
  }

 private:
  // Shows on a terminal that the answer was cut off; a file or a pipe gets only the answer.
  void mark_cut(const Answer& answer) const {
    if (answer.finish != engine::FinishReason::kLength || !can_converse() || ::isatty(STDERR_FILENO) == 0) return;
    const bool full = prompt_tokens_ + static_cast<int64_t>(answer.tokens.size()) >= llm_.max_model_len();
    const std::string mark =
        full ? "(cut off: the context of " + std::to_string(llm_.max_model_len()) + " tokens is full)"
             : "(cut off after " + std::to_string(answer.tokens.size()) + " tokens: --max-tokens)";
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", faint(STDERR_FILENO, mark).c_str());
  }

  void take(llm::Delta& delta, bool stream) {
    Answer& answer = answers_[static_cast<size_t>(delta.child)];
    answer.text += delta.text;
    answer.tokens.insert(answer.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    for (const auto& row : delta.logprobs) answer.logprobs.push_back(logprobs_json(row, llm_.tokenizer().get()));
    for (const auto& row : delta.prompt_logprobs) {
      if (delta.child == 0) prompt_logprobs_.push_back(logprobs_json(row, llm_.tokenizer().get()));
    }
    if (delta.finish != engine::FinishReason::kNone) answer.finish = delta.finish;
    answer.stop_reason = delta.stop_reason;
    prompt_tokens_ = delta.prompt_tokens;
    cached_tokens_ = std::max(cached_tokens_, delta.cached_tokens);
    if (!stream) return;
    if (llm_.tokenizer() == nullptr) {
      for (const int32_t token : delta.tokens) std::printf("%d ", token);
    }
    std::fwrite(delta.text.data(), 1, delta.text.size(), stdout);
    std::fflush(stdout);
  }

  void print_json(const sampling::SamplingParams& params) const {
    json::Value out{json::Object{}};
    out.set("model", llm_.name());
    json::Array choices;
    int64_t generated = 0;
    for (size_t i = 0; i < answers_.size(); ++i) {
      choices.push_back(answer_json(answers_[i], static_cast<int64_t>(i), params.logprobs.has_value()));
      generated += static_cast<int64_t>(answers_[i].tokens.size());
    }
    out.set("choices", std::move(choices));
    if (params.prompt_logprobs) {
      json::Array rows = {nullptr};  // one entry per token, as in vLLM; the first token has none
      rows.insert(rows.end(), prompt_logprobs_.begin(), prompt_logprobs_.end());
      out.set("prompt_logprobs", std::move(rows));
    }
    json::Value usage{json::Object{}};
    usage.set("prompt_tokens", prompt_tokens_);
    usage.set("completion_tokens", generated);
    usage.set("cached_tokens", cached_tokens_);
    out.set("usage", std::move(usage));
    json::Value timings{json::Object{}};
    timings.set("first_token_s", timings_.first_token_s);
    timings.set("total_s", timings_.total_s);
    out.set("timings", std::move(timings));
    std::printf("%s\n", json::dump(out, 2).c_str());
  }

  llm::Llm& llm_;
  const RunFlags& flags_;
  const llm::ConstraintSpec constraint_;
  std::vector<Answer> answers_;
  json::Array prompt_logprobs_;
  Timings timings_;
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
};

int converse(const RunFlags& flags) {
  ChatFlags chat_flags;
  chat_flags.options = flags.options;
  chat_flags.sampling = flags.sampling;
  chat_flags.model = flags.options.model.string();
  chat_flags.system = flags.system;
  return chat(chat_flags);
}

int run(RunFlags& flags, FirstRank& ranks) {
  const std::optional<std::string> prompt = settle_words(flags);
  // These flags mean one answer to one prompt.
  const bool one_shot = flags.raw || flags.json || flags.prompt_token_ids || flags.constraint.given();
  if (!prompt && !one_shot && can_converse() && !ranks.has_others()) return converse(flags);
  auto text = settle_prompt(flags, prompt);
  if (!text.ok()) return report(text.error());
  auto constraint = flags.constraint.read();
  if (!constraint.ok()) return report(constraint.error());
  const std::string model = flags.options.model.string();
  if (const Status status = resolve_model_argument(flags.options); !status.ok()) return report(status.error());
  ranks.start_others(model);
  auto llm = load_llm(flags.options);
  if (!llm.ok()) return report(llm.error());
  auto request = make_prompt(flags, **llm, *text);
  if (!request.ok()) return report(request.error());
  return Session(**llm, flags, std::move(*constraint)).run(*request);
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "Answer one prompt and exit");
  command->footer(
      "A single argument is the PROMPT, unless it names a model and the prompt is piped or typed.\n"
      "Piped input is sent after the PROMPT and an empty line; < /dev/null prevents this.\n"
      "On a terminal, without a PROMPT, it starts a conversation, as quire chat does.\n"
      "Examples:\n"
      "  quire run \"Why is the sky blue?\"\n"
      "  quire run ./model.gguf \"Why is the sky blue?\" --temperature 0\n"
      "  git log -5 | quire run \"Summarise these commits.\"\n"
      "  quire run \"Is the sky blue?\" --choice yes,no\n"
      "  cat letter.txt | quire run -");
  add_words(*command, flags->words, "PROMPT", "The prompt; - reads standard input");
  command->add_option("--model", flags->model, "Alternative to MODEL")->envname("QUIRE_MODEL")->type_name(kModelValue);
  command->add_option("--system", flags->system, "System message before the prompt")->envname("QUIRE_SYSTEM");
  add_switch(*command, "--raw", flags->raw, "Use the prompt as it is, without the chat template");
  add_switch(*command, "--json", flags->json, "Print one JSON object instead of streaming text");
  add_switch(*command, "--prompt-token-ids", flags->prompt_token_ids, "PROMPT is a JSON list of token ids");
  add_constraint_flags(*command, flags->constraint);
  add_model_flags(*command, flags->options);
  add_lora_flag(*command, flags->options);
  add_sampling_flags(*command, flags->sampling);
  add_rank_flags(*command, flags->ranks);
  command->callback([flags, &exit_code] {
    exit_code = on_all_ranks(flags->ranks, flags->options, [&](FirstRank& ranks) { return run(*flags, ranks); });
  });
}

}  // namespace quire::cli
