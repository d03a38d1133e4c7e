// SPDX-License-Identifier: Apache-2.0
// The normalizers of tokenizer.json, which change a text before it is split.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/pattern.h"

namespace quire::text {

// A text during normalization. `at_start`: its first byte comes from the first byte of the whole input (needed by
// Metaspace with the scheme "first").
struct NormalText {
  std::string text;
  bool at_start = true;
};

// One step. Immutable; any thread may apply it. Input and output are valid UTF-8.
class Normalizer {
 public:
  Normalizer() = default;
  virtual ~Normalizer() = default;
  Normalizer(const Normalizer&) = delete;
  Normalizer& operator=(const Normalizer&) = delete;
  virtual void apply(NormalText& text) const = 0;
};
using NormalizerPtr = std::unique_ptr<const Normalizer>;

// Null for a null or missing section. Errors name the field below `normalizer`.
Result<NormalizerPtr> make_normalizer(const json::Value* section);

// The normalizers that the readers of other formats create directly.
NormalizerPtr make_sequence(std::vector<NormalizerPtr> steps);
NormalizerPtr make_replace(Pattern pattern, std::string with);
NormalizerPtr make_prepend(std::string prefix);
NormalizerPtr make_nfc();
NormalizerPtr make_bert_normalizer(bool clean_text, bool chinese, bool strip_accents, bool lowercase);
NormalizerPtr make_strip(bool left, bool right);
// SentencePiece's compiled replacement rules: a double-array trie and a pool of results.
Result<NormalizerPtr> make_precompiled(std::string charsmap);

}  // namespace quire::text
