// SPDX-License-Identifier: Apache-2.0
// The models that convert one pre-tokenized piece to ids: BPE, Unigram, WordPiece, WordLevel.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/piece_map.h"

namespace quire::text {

// A vocabulary and the algorithm that converts a piece to ids. Immutable; any thread may call it.
class Model {
 public:
  explicit Model(PieceMap vocab) : vocab_(std::move(vocab)) {}
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  virtual std::string_view type() const = 0;
  // Appends the ids of one piece. REQUIRES: the piece is valid UTF-8 and not empty.
  virtual void tokenize(std::string_view piece, std::vector<int32_t>& out) const = 0;
  virtual std::optional<int32_t> unk_id() const { return std::nullopt; }
  const PieceMap& vocab() const { return vocab_; }

 protected:
  PieceMap vocab_;
};

struct BpeOptions {
  std::optional<std::string> unk_token, continuing_subword_prefix, end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  // Pieces are raw bytes and are converted to the byte-level alphabet here (only on a cache miss).
  bool byte_level_input = false;
};

// Merges are pairs of ids of the vocabulary with the rank that orders them (of equal ranks, the leftmost goes first).
std::unique_ptr<Model> make_bpe(PieceMap vocab, MergeMap merges, BpeOptions options);
// Scores by id; `unk` may be missing.
std::unique_ptr<Model> make_unigram(PieceMap vocab, std::vector<double> scores, std::optional<int32_t> unk,
                                    bool byte_fallback);
std::unique_ptr<Model> make_word_piece(PieceMap vocab, std::string unk_token, std::string continuing_prefix,
                                       size_t max_chars);
std::unique_ptr<Model> make_word_level(PieceMap vocab, std::string unk_token);

// The ids of <0x00> ... <0xFF>; -1 for those that the vocabulary does not have.
std::array<int32_t, 256> byte_fallback_ids(const PieceMap& vocab);

}  // namespace quire::text
