// SPDX-License-Identifier: Apache-2.0
// What a loader hands to a Tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace quire::text {

// What surrounds a text when special tokens are asked for.
struct PostProcessor {
  std::vector<int32_t> before, after;
  bool keeps_text = true;  // a template may leave the text out
};

Result<PostProcessor> make_post_processor(const json::Value* section);

struct TokenizerParts {
  AddedTokens added;
  NormalizerPtr normalizer;
  PreTokenizerSteps pre_tokenizer;
  std::unique_ptr<const Model> model;
  PostProcessor post;
  std::optional<DecodeChain> decoder;
  SpecialIds special;
  std::vector<bool> is_special;  // by id; filled by the Tokenizer
};

// Loading in two steps, so that tokenizer_config.json can have its say between them.
Result<std::unique_ptr<TokenizerParts>> read_tokenizer_json(std::string_view text, std::string_view name);
Result<std::unique_ptr<TokenizerParts>> read_sentencepiece(std::string_view bytes, std::string_view name);

// The pieces that a SentencePiece-style BPE merges into one another, ranked by the score of what they become (equal
// scores share a rank). Pieces that are whole tokens only (control, user defined, byte) are not in `mergeable`.
MergeMap merges_from_scores(const PieceMap& vocab, const std::vector<float>& scores,
                            const std::vector<bool>& mergeable);

}  // namespace quire::text
