// SPDX-License-Identifier: Apache-2.0
// Loads a model, and takes requests from text to tokens and back.
#include "llm/llm.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/trace.h"
#include "llm/draft_model.h"
#include "llm/load.h"
#include "llm/text_side.h"
#include "weights/weights_digest.h"

namespace quire::llm {
namespace {

std::string model_name(const model::ModelFiles& files) {
  const std::filesystem::path& path = files.gguf != nullptr ? files.files.file : files.files.folder;
  const std::filesystem::path last = path.filename().empty() ? path.parent_path().filename() : path.filename();
  return last.extension() == ".gguf" ? last.stem().string() : last.string();
}

std::vector<int32_t> markers_of(const text::Tokenizer& tokenizer, const text::ChatTemplate& chat) {
  std::string sources;
  for (const std::string& name : chat.names()) sources += chat.source(name) + "\n";
  return tokenizer.control_markers(sources);
}

std::string piece_of(const text::Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? std::string(tokenizer.piece(*id).value_or("")) : std::string();
}

// The ids of the tokens that stand for classes (Qwen3-Reranker's "no" and "yes").
Status find_class_tokens(const text::Tokenizer* tokenizer, model::ModelFiles& files) {
  for (const std::string& token : files.pooler.tokens) {
    const auto id = tokenizer == nullptr ? std::nullopt : tokenizer->id_of(token);
    if (!id || *id >= files.config.vocab_size) {
      return invalid_argument({"classifier_from_token names '", token, "', which is no token of this model"});
    }
    files.pooler.token_ids.push_back(*id);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Llm>> Llm::load(const Options& given, ProgressFn progress, const std::atomic<bool>* cancelled) {
  QUIRE_ASSIGN(const Options options, with_own_adapters(given));
  if (!options.profile.empty()) QUIRE_TRY(trace::start(options.profile));
  QUIRE_ASSIGN(std::unique_ptr<Backend> backend, make_backend(options));
  QUIRE_ASSIGN(model::ModelFiles files, open_files(options));
  std::unique_ptr<Llm> llm(new Llm());
  llm->name_ = model_name(files);
  QUIRE_ASSIGN(const RunnerChoice runner, choose_runner(options, files));
  llm->generates_ = runner.generates;
  QUIRE_ASSIGN(TextSide text_side, load_text_side(files, options));
  llm->tokenizer_ = std::move(text_side.tokenizer);
  if (llm->tokenizer_ != nullptr) QUIRE_TRY(check_draft_tokens(options, *llm->tokenizer_));
  QUIRE_TRY(find_class_tokens(llm->tokenizer_.get(), files));
  llm->chat_template_ = std::move(text_side.chat_template);
  llm->allow_special_tokens_ = options.allow_special_tokens_in_content;
  if (llm->chat_template_ && llm->tokenizer_ != nullptr) {
    llm->markers_ = markers_of(*llm->tokenizer_, *llm->chat_template_);
    if (!llm->chat_template_->shows_plain_text()) {
      log_warn(
          "the chat template takes no plain strings as content, only lists of parts; "
          "run with --chat-template-content-format openai if clients send strings");
    }
  }
  llm->streams_ = std::make_unique<Streams>(llm->tokenizer_);
  QUIRE_ASSIGN(llm->generation_, load_generation_config(files.files.folder, options));

  const auto add_eos = [&](int64_t id) {
    const bool known = std::find(llm->eos_ids_.begin(), llm->eos_ids_.end(), id) != llm->eos_ids_.end();
    if (!known && id >= 0 && id < files.config.vocab_size) llm->eos_ids_.push_back(static_cast<int32_t>(id));
  };
  if (llm->tokenizer_ != nullptr) {
    const text::SpecialIds& special = llm->tokenizer_->special_ids();
    if (special.eos) add_eos(*special.eos);
    if (special.eot) add_eos(*special.eot);
  }
  for (const int32_t id : llm->generation_.eos_token_ids) add_eos(id);
  for (const int64_t id : files.config.eos_token_ids) add_eos(id);

  const std::string ranks = options.ranks() > 1 ? std::to_string(options.ranks()) + " ranks, each on " : "";
  log_info("{}: {} ({}, {} layers), on {}{}", llm->name_, files.config.architecture, files.source->describe(),
           files.config.layers, ranks, backend->describe());
  QUIRE_ASSIGN(LoadedEngine loaded, load_engine(options, files, std::move(backend), std::move(progress), cancelled));
  llm->engines_.push_back(std::move(loaded.engine));
  std::ranges::move(loaded.twins, std::back_inserter(llm->engines_));
  if (llm->tokenizer_ != nullptr) {
    llm->grammars_ = std::make_unique<Grammars>(llm->tokenizer_, files.config.vocab_size);
  }
  llm->adapters_ = std::make_unique<AdapterCache>(
      llm->engine().model(), static_cast<size_t>(options.max_cpu_loras.value_or(options.max_loras)));
  for (const std::filesystem::path& path : options.lora) {
    QUIRE_ASSIGN(model::AdapterPtr adapter, llm->adapters_->read(path));
    llm->own_adapters_.push_back(std::move(adapter));
  }
  llm->plan_ = std::move(loaded.plan);
  const std::string device = llm->engine().backend().describe();
  llm->origin_.backend = device.substr(0, device.find(' '));
  llm->origin_.isa = llm->engine().backend().isa();
  llm->origin_.dtype = options.dtype;
  llm->origin_.kv_cache_dtype = kv::name(llm->plan_.dtype);
  llm->origin_.max_model_len = llm->max_model_len();
  if (files.source->is_dummy()) {
    llm->origin_.weights = "dummy, seed " + std::to_string(options.seed.value_or(0));
    if (!options.quantization.empty()) llm->origin_.weights += ", " + options.quantization;
  } else {
    llm->source_ = files.source;
  }
  return llm;
}

Result<TextPrompt> Llm::render_chat(text::ChatRequest chat, const text::ChatTemplate* other) const {
  if (tokenizer_ == nullptr) {
    return unsupported("this model has no tokenizer, so it takes token ids only; give one with --tokenizer");
  }
  if (other == nullptr && !chat_template_) {
    return unsupported("this model has no chat template; give one with --chat-template, or send a plain prompt");
  }
  const text::SpecialIds& special = tokenizer_->special_ids();
  if (chat.bos_token.empty()) chat.bos_token = piece_of(*tokenizer_, special.bos);
  if (chat.eos_token.empty()) chat.eos_token = piece_of(*tokenizer_, special.eos);
  QUIRE_ASSIGN(text::ChatPrompt rendered, (other != nullptr ? *other : *chat_template_).render(chat));
  TextPrompt prompt{std::move(rendered.text), false};
  if (!allow_special_tokens_) {
    prompt.origins = std::move(rendered.origins);
    prompt.markers = other != nullptr ? markers_of(*tokenizer_, *other) : markers_;
  }
  return prompt;
}

Result<std::vector<int32_t>> Llm::tokens_of(const Prompt& prompt) const {
  if (const auto* ids = std::get_if<TokenPrompt>(&prompt)) return *ids;
  if (tokenizer_ == nullptr) {
    return unsupported("this model has no tokenizer, so it takes token ids only; give one with --tokenizer");
  }
  if (const auto* plain = std::get_if<TextPrompt>(&prompt)) {
    return tokenizer_->encode(
        plain->text,
        {.add_special_tokens = plain->add_special_tokens, .origins = plain->origins, .markers = plain->markers});
  }
  QUIRE_ASSIGN(TextPrompt rendered, render_chat(std::get<text::ChatRequest>(prompt)));
  return tokens_of(std::move(rendered));
}

void Llm::fill_eos(sampling::SamplingParams& params) const {
  params.eos_token_ids = eos_ids_;
  if (!params.max_tokens) params.max_tokens = generation_.defaults.max_tokens;
}

Status Llm::fill_bad_words(sampling::SamplingParams& params) const {
  if (params.bad_words.empty()) return {};
  if (tokenizer_ == nullptr) {
    return unsupported("bad_words need a tokenizer, which this model does not have", "bad_words");
  }
  std::vector<std::vector<int32_t>> all;
  for (const std::string& word : params.bad_words) {
    // As at the beginning of a text, and as after a space.
    for (const std::string& form : {word, " " + word}) {
      std::vector<int32_t> ids = tokenizer_->encode(form, {.add_special_tokens = false, .parse_special = false});
      if (!ids.empty()) all.push_back(std::move(ids));
    }
  }
  params.bad_word_ids = std::move(all);
  return {};
}

Result<CheckedParams> Llm::check(sampling::SamplingParams params) const {
  if (!params.stop.empty() && tokenizer_ == nullptr) {
    return unsupported("stop strings need a tokenizer, which this model does not have; use stop_token_ids", "stop");
  }
  fill_eos(params);
  QUIRE_TRY(engine().check(params));  // bounds the lists before anything is tokenised
  QUIRE_TRY(fill_bad_words(params));
  if (!params.bad_words.empty()) QUIRE_TRY(engine().check(params));
  return CheckedParams(std::move(params));
}

Result<engine::ConstraintPtr> Llm::constrain(const ConstraintSpec& spec, const CheckedParams& params) const {
  const ReasoningRules& reasoning = spec.reasoning;
  const bool budget = reasoning.starts_inside && reasoning.token_budget;
  if (!spec.grammar && !budget) return engine::ConstraintPtr();
  if (grammars_ == nullptr) {
    return unsupported("this model has no tokenizer, which constraints need; give one with --tokenizer", spec.field);
  }
  TextConstraintMaker grammar;
  if (spec.grammar) {
    QUIRE_ASSIGN(grammar, grammars_->make(*spec.grammar, params.get(), spec.field));
  }
  if (!reasoning.starts_inside) return make_constraint(std::move(grammar));
  return make_reasoning_gate(reasoning, reasoning_tokens(reasoning), std::move(grammar));
}

ReasoningTokens Llm::reasoning_tokens(const ReasoningRules& rules) const {
  std::string end = rules.forced_end;
  if (end.empty() && !rules.ends.empty()) end = rules.ends.front();
  return {tokenizer_, tokenizer_->encode(end, {.add_special_tokens = false})};
}

Result<engine::Request> Llm::prepare(TokenPrompt prompt, const CheckedParams& params, int64_t priority,
                                     std::string cache_salt, engine::ConstraintPtr constraint,
                                     model::AdapterPtr adapter) const {
  engine::Request inner{std::move(prompt),     params.get(),          priority,
                        std::move(cache_salt), std::move(constraint), std::move(adapter)};
  QUIRE_TRY(engine().check(std::as_const(inner)));
  return inner;
}

Result<engine::Request> Llm::prepare(GenerateRequest request) const {
  QUIRE_ASSIGN(const CheckedParams params, check(std::move(request.params)));
  QUIRE_ASSIGN(TokenPrompt prompt, tokens_of(request.prompt));
  QUIRE_ASSIGN(engine::ConstraintPtr constraint, constrain(request.constraint, params));
  return prepare(std::move(prompt), params, request.priority, std::move(request.cache_salt), std::move(constraint),
                 std::move(request.adapter));
}

const Origin& Llm::origin() const {
  std::call_once(origin_made_, [this] {
    if (source_ != nullptr) origin_.weights = weights::weights_digest(*source_);
  });
  return origin_;
}

Result<engine::RequestId> Llm::submit(GenerateRequest request) {
  QUIRE_ASSIGN(engine::Request inner, prepare(std::move(request)));
  return submit(std::move(inner));
}

engine::RequestId Llm::submit(engine::Request request, SharedList<int32_t> kept_special) {
  const engine::RequestId id = engine().reserve_id();
  const auto shared = std::make_shared<const engine::Request>(std::move(request));
  streams_->open(id, shared, std::move(kept_special));
  engine().add(id, shared);
  return id;
}

void Llm::abort(engine::RequestId id) {
  engine().abort(id);
  streams_->close(id);
}

std::vector<Delta> Llm::step() {
  std::vector<Delta> deltas;
  for (engine::Output& output : engine().step()) {
    bool stopped_above = false;
    std::optional<Delta> delta = streams_->translate(std::move(output), stopped_above);
    if (!delta) continue;
    if (stopped_above) engine().abort(delta->id, delta->child);
    deltas.push_back(std::move(*delta));
  }
  return deltas;
}

std::vector<Result<GenerateResult>> Llm::generate(std::vector<GenerateRequest> requests) {
  std::vector<Result<GenerateResult>> results;
  std::map<engine::RequestId, size_t> places;
  for (GenerateRequest& request : requests) {
    const size_t n = static_cast<size_t>(std::max<int64_t>(request.params.n, 1));
    auto id = submit(std::move(request));
    if (!id.ok()) {
      results.emplace_back(id.error());
      continue;
    }
    places[*id] = results.size();
    GenerateResult empty;
    empty.completions.resize(n);
    results.emplace_back(std::move(empty));
  }
  while (has_work()) {
    for (Delta& delta : step()) {
      Result<GenerateResult>& slot = results[places.at(delta.id)];
      if (delta.error) {
        const Error error = *delta.error;
        abort(delta.id);
        slot = error;
      }
      if (!slot.ok()) continue;
      GenerateResult& result = *slot;
      result.prompt_tokens = delta.prompt_tokens;
      result.cached_tokens = std::max(result.cached_tokens, delta.cached_tokens);
      if (delta.child == 0) {
        for (auto& row : delta.prompt_logprobs) result.prompt_logprobs.push_back(std::move(row));
      }
      Completion& completion = result.completions[static_cast<size_t>(delta.child)];
      completion.text += delta.text;
      completion.tokens.insert(completion.tokens.end(), delta.tokens.begin(), delta.tokens.end());
      for (auto& row : delta.logprobs) completion.logprobs.push_back(std::move(row));
      completion.finish = delta.finish;
      completion.stop_reason = delta.stop_reason;
    }
  }
  return results;
}

}  // namespace quire::llm
