// SPDX-License-Identifier: Apache-2.0
// Reads the tokenizer in a GGUF file from its metadata.
#pragma once

#include "base/result.h"
#include "text/tokenizer.h"
#include "weights/gguf_metadata.h"

namespace quire::text {

// The tokenizer.ggml.* fields; errors name the file and the field.
Result<GgufVocab> read_gguf_vocab(const weights::GgufMetadata& metadata);
Result<TokenizerPtr> load_gguf_tokenizer(const weights::GgufMetadata& metadata);

}  // namespace quire::text
