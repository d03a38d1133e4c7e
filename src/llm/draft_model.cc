// SPDX-License-Identifier: Apache-2.0
// Opens a draft model and compares vocabularies.
#include "llm/draft_model.h"

#include <algorithm>

#include "kv/cache_groups.h"
#include "llm/load.h"
#include "llm/text_side.h"

namespace quire::llm {
namespace {

// Siblings may name a few reserved tokens differently.
constexpr int64_t kMostDifferences = 100;  // of so many tokens, one may differ

Options options_of_draft(const Options& options, const SpeculativeConfig& config) {
  Options out = options;
  out.model = options.draft_model.empty() ? std::filesystem::path(config.model) : options.draft_model;
  out.tokenizer.clear();
  if (out.load_format != "dummy") out.load_format = "auto";
  return out;
}

Failure about_draft(const Error& error) {
  return Error{error.code, "--speculative-config: the draft model: " + error.message};
}

// An EAGLE-3 layer sees the hidden states of its target, so the two must fit.
Result<std::optional<DraftModel>> open_eagle(const Options& options, const SpeculativeConfig& config,
                                             const model::ModelFiles& target) {
  auto files = open_files(options_of_draft(options, config));
  if (!files.ok()) return about_draft(files.error());
  model::AheadConfig& layer = files->config.ahead;
  const std::string name = "--speculative-config: '" + config.model + "' ";
  if (!layer.eagle)
    return invalid_argument({name, "is no EAGLE-3 layer; for a whole model use the method \"draft_model\""});
  const model::DecoderConfig& own = files->config;
  if (own.hidden != target.config.hidden || own.vocab_size != target.config.vocab_size) {
    return invalid_argument({name, "was made for another model: its hidden size is ", own.hidden, " with ",
                             own.vocab_size, " tokens, and that of the model is ", target.config.hidden, " with ",
                             target.config.vocab_size});
  }
  const int64_t layers = target.config.layers;
  if (layer.taps.empty()) layer.taps = {2, layers / 2, layers - 3};
  std::ranges::sort(layer.taps);
  if (layer.taps.front() < 0 || layer.taps.back() >= layers) {
    return invalid_argument(
        {name, "needs hidden states of layers that the model, which has ", layers, ", does not have"});
  }
  return std::optional<DraftModel>({std::move(*files), true, target.config.max_position});
}

}  // namespace

Result<std::optional<DraftModel>> open_draft_model(const Options& options, const SpeculativeConfig& config,
                                                   const model::ModelFiles& target) {
  if (!config.options.with_model()) return std::optional<DraftModel>();
  if (config.options.method == engine::SpeculationOptions::Method::kMtp) {
    auto layer = model::layer_ahead(target);
    if (!layer.ok()) return Error{layer.error().code, "--speculative-config: " + layer.error().message};
    DraftModel out{std::move(*layer), true, target.config.max_position};
    return std::optional<DraftModel>(std::move(out));
  }
  if (config.options.method == engine::SpeculationOptions::Method::kEagle3) return open_eagle(options, config, target);
  auto files = open_files(options_of_draft(options, config));
  if (!files.ok()) return about_draft(files.error());
  const model::DecoderConfig& draft = files->config;
  if (draft.ahead.eagle) {
    return invalid_argument(
        {"--speculative-config: '", config.model, "' is an EAGLE-3 layer: the method is \"eagle3\""});
  }
  if (draft.vocab_size != target.config.vocab_size) {
    return invalid_argument({"--speculative-config: the draft model '", config.model, "' has ", draft.vocab_size,
                             " tokens and the model has ", target.config.vocab_size,
                             "; a draft model must have the vocabulary of the model that it drafts for"});
  }
  for (const kv::LayerCache& layer : model::cache_layers(draft)) {
    if (layer.kind != kv::CacheKind::kState) continue;
    return unsupported(
        {"--speculative-config: the draft model '", config.model,
         "' has recurrent states, which cannot take back rejected tokens; use one with attention alone"});
  }
  DraftModel out{std::move(*files), false, 0};
  out.max_length = out.files.config.max_position;
  if (config.max_model_len > 0) out.max_length = std::min(out.max_length, config.max_model_len);
  return std::optional<DraftModel>(std::move(out));
}

Status check_draft_tokens(const Options& options, const text::Tokenizer& target) {
  QUIRE_ASSIGN(const SpeculativeConfig config, parse_speculative_config(options.speculative_config));
  if (config.model.empty() || options.load_format == "dummy") return {};
  const Options draft = options_of_draft(options, config);
  auto files = open_text_files(draft);
  if (!files.ok()) return about_draft(files.error());
  const auto text_side = load_text_side(*files, draft);
  if (!text_side.ok()) return about_draft(text_side.error());
  if (text_side->tokenizer == nullptr) return {};
  const text::Tokenizer& other = *text_side->tokenizer;
  const int32_t size = std::min(target.vocab_size(), other.vocab_size());
  int64_t differences = std::max(target.vocab_size(), other.vocab_size()) - size;
  for (int32_t id = 0; id < size; ++id) differences += target.piece(id) != other.piece(id) ? 1 : 0;
  if (differences * kMostDifferences <= size) return {};
  return invalid_argument({"--speculative-config: ", differences, " tokens of the draft model '", config.model,
                           "' differ from those of the model; a draft model must have the same tokenizer"});
}

}  // namespace quire::llm
