// SPDX-License-Identifier: Apache-2.0
// Llm: the offline C++ API. Takes text, chat messages or token ids; streams text, tokens and logprobs step by step.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "kv/memory_plan.h"
#include "llm/adapters.h"
#include "llm/constraint.h"
#include "llm/generation_config.h"
#include "llm/grammars.h"
#include "llm/options.h"
#include "llm/pooling.h"
#include "llm/receipt.h"
#include "llm/streams.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer.h"

namespace quire::llm {

// A prompt: text, token ids or a conversation.
struct TextPrompt {
  std::string text;
  bool add_special_tokens = true;
  // For a rendered conversation: the parts in which control tokens are not recognised (see text::EncodeOptions).
  std::vector<text::OriginRange> origins = {};
  std::vector<int32_t> markers = {};
};
using TokenPrompt = std::vector<int32_t>;
using Prompt = std::variant<TextPrompt, TokenPrompt, text::ChatRequest>;

// Settings that passed Llm::check(): normalised, with the model's EOS tokens and the bad words as token ids.
class CheckedParams {
 public:
  const sampling::SamplingParams& get() const { return params_; }
  // A smaller max_tokens needs no second check.
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
  ConstraintSpec constraint;
  model::AdapterPtr adapter;  // from Llm::adapters(); null: none
};

// A whole answer, for callers that do not stream.
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

// One loaded model with its tokenizer and chat template, and the engines that run it: one, or Options::engines of them
// for a ParallelLlm. Used by one thread at a time, except for the methods marked "any thread"; several engines may be
// used by one thread each. What takes no number of an engine uses the first. Either submit() any number of requests and
// call step() until has_work() is false, or generate().
class Llm {
 public:
  using ProgressFn = std::function<void(int64_t done, int64_t total)>;
  // Once `cancelled` is true, the load ends with an Error.
  static Result<std::unique_ptr<Llm>> load(const Options& options, ProgressFn progress = {},
                                           const std::atomic<bool>* cancelled = nullptr);

  // The model's sampling defaults, to be copied, changed and put into a request.
  const sampling::SamplingParams& default_params() const { return generation_.defaults; }
  // Renders a conversation with `other`, or else with the model's template. No special tokens will be added: templates
  // write them. Any thread.
  Result<TextPrompt> render_chat(text::ChatRequest chat, const text::ChatTemplate* other = nullptr) const;
  // The token ids of a prompt. Any thread.
  Result<std::vector<int32_t>> tokens_of(const Prompt& prompt) const;

  // Checks the settings of a request, once for all of its prompts. Any thread.
  Result<CheckedParams> check(sampling::SamplingParams params) const;
  // Compiles a constraint, once for all prompts of a request; null if the spec constrains nothing. It may take a while,
  // so it is not for a thread that others wait for. The errors of a wrong constraint name spec.field. Any thread.
  Result<engine::ConstraintPtr> constrain(const ConstraintSpec& spec, const CheckedParams& params) const;
  // Checks one prompt of a request. Any thread.
  Result<engine::Request> prepare(TokenPrompt prompt, const CheckedParams& params, int64_t priority = 0,
                                  std::string cache_salt = "", engine::ConstraintPtr constraint = nullptr,
                                  model::AdapterPtr adapter = nullptr) const;
  // Pooling. Whether the model is loaded for it, and for text (Options::runner). Any thread.
  bool pools() const { return engine().options().pools; }
  bool generates() const { return generates_; }
  const model::Pooler& pooler() const { return engine().model().pooler(); }
  // What it can make of a prompt, the usual one first; an Error with this list if `task` is not among them.
  std::vector<PoolTask> tasks() const;
  Status check_task(PoolTask task) const;
  // How it scores pairs; an Error if it does not.
  Result<ScoreKind> score_kind() const;
  // The tokens of a text, which is cut before its special tokens are added.
  Result<std::vector<int32_t>> text_tokens(std::string_view text, bool special, const Truncation& truncation) const;
  // The tokens of two texts as the model takes them together. `instruction`: for models that judge by one.
  Result<PoolPrompt> pair_tokens(const std::string& first, const std::string& second, const PairLimits& limits,
                                 const std::string& instruction) const;
  // Checks one prompt of a request that pools. Its output goes through finish_pooling().
  Result<engine::Request> prepare_pooling(PoolPrompt prompt, PoolTask task, int64_t priority = 0,
                                          std::string cache_salt = "", model::AdapterPtr adapter = nullptr) const;
  // What becomes of Delta::pooled: one vector, or one per token if pools_to_rows().
  std::vector<std::vector<float>> finish_pooling(PoolTask task, std::span<const float> pooled,
                                                 std::span<const int32_t> tokens, const PoolSettings& settings) const;
  bool pools_to_rows(PoolTask task) const;
  // Runs all prompts together. The results are in the same order; one that fails has an Error.
  std::vector<Result<std::vector<std::vector<float>>>> pool(std::vector<PoolPrompt> prompts, PoolTask task,
                                                            const PoolSettings& settings);

  // Tokenises and checks a request, as submit() does before it queues it. Any thread.
  Result<engine::Request> prepare(GenerateRequest request) const;
  Result<engine::RequestId> submit(GenerateRequest request);
  // Queues a request that prepare() made. `kept_special`: see text::Detokenizer.
  engine::RequestId submit(engine::Request request, SharedList<int32_t> kept_special = {});
  std::vector<Delta> step();
  bool has_work() const { return engine().has_work(); }
  void abort(engine::RequestId id);
  // Runs all requests together. The results are in the same order; a request that fails has an Error.
  std::vector<Result<GenerateResult>> generate(std::vector<GenerateRequest> requests);

  // Null if the model has no tokenizer; prompts and answers are then token ids only.
  const text::TokenizerPtr& tokenizer() const { return tokenizer_; }
  const text::ChatTemplate* chat_template() const { return chat_template_ ? &*chat_template_ : nullptr; }
  size_t num_engines() const { return engines_.size(); }
  engine::Engine& engine(size_t number = 0) { return *engines_[number]; }
  const engine::Engine& engine(size_t number = 0) const { return *engines_[number]; }
  const kv::MemoryPlan& memory_plan() const { return plan_; }
  int64_t max_model_len() const { return plan_.max_model_len; }
  const std::string& name() const { return name_; }
  // The tokens that end an answer, the tokenizer's EOS first.
  const std::vector<int32_t>& eos_token_ids() const { return eos_ids_; }
  // Reads adapters and keeps the last ones. Any thread.
  AdapterCache& adapters() const { return *adapters_; }
  // Those of Options::lora, in their order.
  const std::vector<model::AdapterPtr>& own_adapters() const { return own_adapters_; }
  // What receipts say of this model; whoever writes one fills in its name and the program's version. The first call
  // reads all weights for their digest. Any thread.
  const Origin& origin() const;

 private:
  Llm() = default;
  std::vector<std::vector<float>> finish_token_heads(PoolTask task, std::span<const float> pooled,
                                                     std::span<const int32_t> tokens,
                                                     const PoolSettings& settings) const;
  void fill_eos(sampling::SamplingParams& params) const;
  ReasoningTokens reasoning_tokens(const ReasoningRules& rules) const;
  Status fill_bad_words(sampling::SamplingParams& params) const;

  std::string name_;
  text::TokenizerPtr tokenizer_;
  std::optional<text::ChatTemplate> chat_template_;
  bool generates_ = true;
  bool allow_special_tokens_ = false;  // in the contents of messages
  std::vector<int32_t> markers_;       // control tokens that the chat template writes
  GenerationConfig generation_;
  std::vector<int32_t> eos_ids_;  // the tokenizer's EOS first
  kv::MemoryPlan plan_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  std::unique_ptr<AdapterCache> adapters_;
  std::vector<model::AdapterPtr> own_adapters_;
  std::unique_ptr<Streams> streams_;
  std::unique_ptr<Grammars> grammars_;                   // null if the model has no tokenizer
  std::shared_ptr<const weights::WeightSource> source_;  // null for dummy weights
  mutable std::once_flag origin_made_;
  mutable Origin origin_;  // all but the weights' digest is there from the start
};

}  // namespace quire::llm
