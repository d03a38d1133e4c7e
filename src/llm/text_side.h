// SPDX-License-Identifier: Apache-2.0
// The text side of a model's files: its tokenizer and chat template, from a folder or from inside a GGUF.
#pragma once

#include <optional>

#include "base/result.h"
#include "llm/options.h"
#include "model/model.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer.h"

namespace quire::llm {

struct TextSide {
  text::TokenizerPtr tokenizer;                     // null: the model has none
  std::optional<text::ChatTemplate> chat_template;  // nothing: the model has none
};

// The files of a model without its config: enough for its text side (a GGUF with a vocabulary alone is fine).
Result<model::ModelFiles> open_text_files(const Options& options);
Result<TextSide> load_text_side(const model::ModelFiles& files, const Options& options);

}  // namespace quire::llm
