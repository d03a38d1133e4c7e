// SPDX-License-Identifier: Apache-2.0
// The parts that a loader passes to a Tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/token_model.h"
#include "text/tokenizer.h"

namespace quire::text {

// A part of two texts as one sequence: special tokens, or one of the texts.
struct PairPart {
  int text = 0;  // 1: the first text, 2: the second one, 0: `special`
  std::vector<int32_t> special = {};
  int32_t type = 0;  // token type
};

// The special tokens around a text, and around two texts (empty: there is no rule for two).
struct PostProcessor {
  std::vector<int32_t> before, after;
  std::vector<PairPart> pair = {};
  bool keeps_text = true;  // a template may omit the text
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

// Loading has two steps, so that tokenizer_config.json can change the parts between them.
Result<std::unique_ptr<TokenizerParts>> read_tokenizer_json(std::string_view text, std::string_view name);
Result<std::unique_ptr<TokenizerParts>> read_sentencepiece(std::string_view bytes, std::string_view name);

// How SentencePiece writes a space, and its types of pieces, which a GGUF file has as well.
inline constexpr const char* kSpacePiece = "\xe2\x96\x81";
enum PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// The merges of a SentencePiece-style BPE, ranked by the score of the merged piece (equal scores share a rank). Pieces
// that are only whole tokens (control, user defined, byte) are not in `mergeable`. Every cut of a piece is tried, so
// pieces of more than 1,024 bytes, which no real file has, are refused.
Result<MergeMap> merges_from_scores(const PieceMap& vocab, const std::vector<float>& scores,
                                    const std::vector<bool>& mergeable);

}  // namespace quire::text
