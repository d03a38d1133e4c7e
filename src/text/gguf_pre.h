// SPDX-License-Identifier: Apache-2.0
// The names that GGUF files give to pre-tokenizers, and what each stands for.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/pre_tokenizer.h"

namespace quire::text {

struct GgufPre {
  std::vector<PreTokenizerPtr> steps;  // pieces are then spelled in the byte-level alphabet
  bool ignore_merges = false;
  bool add_bos = false;
  bool add_sep = false;
  bool nfc = false;  // the model's own tokenizer normalizes first
};

// An unknown name is an error that says so.
Result<GgufPre> make_gguf_pre(std::string_view name);
// All names, for tests.
std::vector<std::string_view> gguf_pre_names();

}  // namespace quire::text
