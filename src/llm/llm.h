// SPDX-License-Identifier: Apache-2.0
// Llm: the offline C++ API. Text, chat messages or token ids in; text, tokens and logprobs out, streamed step by step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "kv/memory_plan.h"
#include "llm/generation_config.h"
#include "llm/options.h"
#include "llm/streams.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer.h"

namespace quire::llm {

// A prompt in one of three forms.
struct TextPrompt {
  std::string text;
  bool add_special_tokens = true;
  // Of a rendered conversation: which parts may not spell control tokens (see text::EncodeOptions).
  std::vector<text::OriginRange> origins = {};
  std::vector<int32_t> markers = {};
};
using TokenPrompt = std::vector<int32_t>;
using Prompt = std::variant<TextPrompt, TokenPrompt, text::ChatRequest>;

// Settings that Llm::check() took: in their normal form, with the model's ends and bad words as token ids.
class CheckedParams {
 public:
  const sampling::SamplingParams& get() const { return params_; }
  // A shorter answer needs no second check.
  void set_max_tokens(int64_t max_tokens) { params_.max_tokens = max_tokens; }

 private:
  friend class Llm;
  explicit CheckedParams(sampling::SamplingParams params) : params_(std::move(params)) {}
  sampling::SamplingParams params_;
};

struct GenerateRequest {
  Prompt prompt;
  sampling::SamplingParams params;
  int64_t priority = 0;
  std::string cache_salt;
};

// A whole answer, when streaming is not wanted.
struct Completion {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<std::vector<sampling::TokenLogprob>> logprobs;
  engine::FinishReason finish = engine::FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> stop_reason;
};
struct GenerateResult {
  std::vector<Completion> completions;  // n of them
  std::vector<std::vector<sampling::TokenLogprob>> prompt_logprobs;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
};

// One loaded model with its text side. One thread at a time. submit() any number of requests, call step() until
// has_work() is false; or generate() for all at once.
class Llm {
 public:
  using ProgressFn = std::function<void(int64_t done, int64_t total)>;
  static Result<std::unique_ptr<Llm>> load(const Options& options, ProgressFn progress = {});

  // The model's own sampling defaults, to change and put into a request.
  sampling::SamplingParams default_params() const;
  // A conversation as the prompt's text, by the model's template or by another one; special tokens are not added, as
  // the template writes them. Any thread.
  Result<TextPrompt> render_chat(text::ChatRequest chat, const text::ChatTemplate* other = nullptr) const;
  // The ids of a prompt. Any thread.
  Result<std::vector<int32_t>> tokens_of(const Prompt& prompt) const;

  // The settings of a request, checked once for all of its prompts. Any thread.
  Result<CheckedParams> check(sampling::SamplingParams params) const;
  // One prompt of a request. Any thread.
  Result<engine::Request> prepare(TokenPrompt prompt, const CheckedParams& params, int64_t priority = 0,
                                  std::string cache_salt = "") const;
  // What submit() does before it touches the engine: tokenises and checks. Any thread.
  Result<engine::Request> prepare(GenerateRequest request) const;
  Result<engine::RequestId> submit(GenerateRequest request);
  std::vector<Delta> step();
  bool has_work() const { return engine_->has_work(); }
  void abort(engine::RequestId id);
  // Runs all requests together; a failed one has its Error in its place.
  std::vector<Result<GenerateResult>> generate(std::vector<GenerateRequest> requests);

  // Null when the model has no tokenizer: then only token ids are taken and given.
  const text::TokenizerPtr& tokenizer() const { return tokenizer_; }
  const text::ChatTemplate* chat_template() const { return chat_template_ ? &*chat_template_ : nullptr; }
  engine::Engine& engine() { return *engine_; }
  const engine::Engine& engine() const { return *engine_; }
  const kv::MemoryPlan& memory_plan() const { return plan_; }
  int64_t max_model_len() const { return plan_.max_model_len; }
  const std::string& name() const { return name_; }

 private:
  Llm() = default;
  void fill_ends(sampling::SamplingParams& params) const;
  Status fill_bad_words(sampling::SamplingParams& params) const;

  std::string name_;
  text::TokenizerPtr tokenizer_;
  std::optional<text::ChatTemplate> chat_template_;
  bool allow_special_tokens_ = false;  // in the contents of messages
  std::vector<int32_t> markers_;       // tokens that the chat template writes
  GenerationConfig generation_;
  std::vector<int32_t> eos_ids_;  // the tokenizer's first
  kv::MemoryPlan plan_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Streams> streams_;
};

}  // namespace quire::llm
