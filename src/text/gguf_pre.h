// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers that GGUF files name, and their steps.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/pre_tokenizer.h"

namespace quire::text {

struct GgufPre {
  std::vector<PreTokenizerPtr> steps;  // the pieces are then converted to the byte-level alphabet
  bool ignore_merges = false;
  bool add_bos = false;
  bool add_sep = false;
  bool nfc = false;  // the text is first normalized to NFC
};

// An unknown name is an error.
Result<GgufPre> make_gguf_pre(std::string_view name);
// All names, for tests.
std::vector<std::string_view> gguf_pre_names();

}  // namespace quire::text
