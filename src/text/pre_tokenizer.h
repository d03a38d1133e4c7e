// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers of tokenizer.json, which split a normalized text into the pieces that a model tokenizes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/pattern.h"

namespace quire::text {

struct Piece {
  size_t begin = 0;
  size_t end = 0;
  bool at_start = false;  // begins at the first byte of the input
};

// A text and its pieces so far; pieces are in order and not empty, but need not cover the text.
struct PreTokenized {
  std::string text;
  std::vector<Piece> pieces;

  std::string_view view(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

// One step: splits pieces further or rewrites them. Immutable; any thread may apply it.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  virtual ~PreTokenizer() = default;
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;
  virtual void apply(PreTokenized& input) const = 0;
};
using PreTokenizerPtr = std::unique_ptr<const PreTokenizer>;

// A whole pre-tokenizer: its steps in order. If the last step converts bytes to the byte-level alphabet, it is left out
// and `byte_level` is set: a BPE model then takes raw bytes, which saves a copy of the text.
struct PreTokenizerSteps {
  std::vector<PreTokenizerPtr> steps;
  bool byte_level = false;
};

// Empty for a null or missing section. `raw_bytes` allows byte_level.
Result<PreTokenizerSteps> make_pre_tokenizer(const json::Value* section, bool raw_bytes);

// The pre-tokenizers that the readers of other formats create directly.
Result<PreTokenizerPtr> make_split(std::string_view regex, SplitBehavior behavior, bool invert = false);
PreTokenizerPtr make_digits(bool individual);
PreTokenizerPtr make_punctuation(SplitBehavior behavior);
PreTokenizerPtr make_bert_pre_tokenizer();
PreTokenizerPtr make_whitespace_split();
enum class PrependScheme { kAlways, kFirst, kNever };
PreTokenizerPtr make_metaspace(std::string replacement, PrependScheme scheme, bool split);

// The split pattern of the ByteLevel pre-tokenizer (GPT-2's).
extern const char* const kGpt2Pattern;

}  // namespace quire::text
