// SPDX-License-Identifier: Apache-2.0
// TextSide: a model's tokenizer and chat template, from its folder or from a GGUF file.
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
  std::optional<text::ChatTemplate> chat_template;  // none: the model has no template
};

// Opens a model's files without reading its config, which is enough for the text side. A GGUF file may consist of a
// vocabulary alone.
Result<model::ModelFiles> open_text_files(const Options& options);
Result<TextSide> load_text_side(const model::ModelFiles& files, const Options& options);

}  // namespace quire::llm
