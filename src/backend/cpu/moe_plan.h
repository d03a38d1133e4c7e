// SPDX-License-Identifier: Apache-2.0
// MoePlan: the tokens of a step sorted by their chosen experts, divided into pieces of work for threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/packed.h"

namespace quire::cpu {

// A (token, rank) pair is a choice; sorted by expert, then by token and rank, choices are the input rows of experts.
// Owned by the backend and rebuilt for each call; its vectors only grow. Experts without a choice are not in it.
class MoePlan {
 public:
  struct Expert {
    int32_t id;
    int64_t begin;  // its first row in the sorted order
    int64_t rows;
    PreparedRows prepared;  // the prepared rows for the current product, if threads share them
  };
  struct Piece {
    const Expert* expert;
    int64_t row_begin;
    int64_t row_end;
    int64_t panel_begin;
    int64_t panel_end;
  };

  // ids are [tokens, k], each below num_experts, or -1 for a choice that is left out.
  void sort(const int32_t* ids, int64_t tokens, int64_t k, int64_t num_experts);
  // Adds a product's pieces of an expert after clear_pieces(): blocks of rows times `grain` panels, an even number.
  void clear_pieces() { pieces_.clear(); }
  void add_pieces(const Expert& expert, int64_t row_block, int64_t panels, int64_t grain);

  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }
  std::span<Expert> experts() { return experts_; }
  std::span<const Piece> pieces() const { return pieces_; }
  std::span<const int32_t> tokens() const { return tokens_; }  // [rows]: the row of x
  // The rows of a token's choices, in rank order; -1: left out.
  const int32_t* rows_of(int64_t token, int64_t k) const { return rows_.data() + token * k; }

 private:
  std::vector<int64_t> next_;  // [num_experts]
  std::vector<Expert> experts_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> rows_;  // [tokens, k]
  std::vector<Piece> pieces_;
};

}  // namespace quire::cpu
