// SPDX-License-Identifier: Apache-2.0
// Tokenizers that are lists of byte strings with ranks: tiktoken's files and Mistral's tekken.json.
#pragma once

#include <memory>
#include <string_view>

#include "base/json.h"
#include "text/parts.h"

namespace quire::text {

// Whether the first line is a token in base64 and a rank.
bool looks_like_tiktoken(std::string_view bytes);

// Reads a tiktoken file. `config` is the tokenizer_config.json beside it, or null; `name` stands for the file in
// errors. A file whose split pattern is unknown is an error.
Result<std::unique_ptr<TokenizerParts>> read_tiktoken(std::string_view text, const json::Value& config,
                                                      std::string_view name);
Result<std::unique_ptr<TokenizerParts>> read_tekken(std::string_view text, std::string_view name);

// The same as whole tokenizers, without the other files of a folder.
Result<TokenizerPtr> load_tiktoken(std::string_view text, const json::Value& config, std::string_view name);
Result<TokenizerPtr> load_tekken(std::string_view json, std::string_view name);

}  // namespace quire::text
