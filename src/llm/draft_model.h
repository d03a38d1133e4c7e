// SPDX-License-Identifier: Apache-2.0
// The model that drafts for --speculative-config: opened, and checked against the model that it drafts for.
#pragma once

#include <optional>

#include "llm/options.h"
#include "llm/speculative_config.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace quire::llm {

struct DraftModel {
  model::ModelFiles files;
  bool ahead = false;      // an MTP or EAGLE-3 layer (model::load_layer_ahead)
  int64_t max_length = 0;  // of a sequence for which it drafts
};
// Nothing if the config needs no model to draft. An Error if it cannot draft for `target`.
Result<std::optional<DraftModel>> open_draft_model(const Options& options, const SpeculativeConfig& config,
                                                   const model::ModelFiles& target);
// Refuses a draft model whose token ids mean something else. Models without a tokenizer are not compared.
Status check_draft_tokens(const Options& options, const text::Tokenizer& target);

}  // namespace quire::llm
