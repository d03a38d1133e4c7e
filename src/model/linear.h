// SPDX-License-Identifier: Apache-2.0
// Linear: a weight as the families use it: one or more packed matrices side by side over the same input, with their
// biases.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"

namespace quire::model {

// y = x W^T + b, where W may be several matrices (q, k, v of different types) whose outputs stand next to each other.
// Immutable after load. Here is where shards and adapters attach; families never call a bare matrix product.
class Linear {
 public:
  struct Piece {
    std::shared_ptr<const PackedMatrix> weight;
    std::vector<float> bias;            // [n] or empty
    std::vector<int32_t> columns = {};  // the order in which the weight takes x's columns; empty: as they are
  };
  void add(Piece piece) {
    out_dim_ += piece.weight->n();
    pieces_.push_back(std::move(piece));
  }
  void run(Backend& backend, const Tensor& x, const Tensor& out) const {
    int64_t column = 0;
    for (const Piece& piece : pieces_) {
      const float* bias = piece.bias.empty() ? nullptr : piece.bias.data();
      LinearArgs args{x, piece.weight.get(), bias, out.columns(column, piece.weight->n())};
      args.columns = piece.columns;
      backend.linear(args);
      column += piece.weight->n();
    }
  }
  // act(gate) * up, where this linear's outputs are a gate and its up; `both` is room for the two, and `out` may be its
  // first half. The same bits whether the backend joins them or not.
  void run_gated(Backend& backend, const Tensor& x, Activation activation, const Tensor& both,
                 const Tensor& out) const {
    if (pieces_.size() == 1) {
      const Piece& piece = pieces_.front();
      const GatedForm form{activation};
      LinearArgs args{x, piece.weight.get(), piece.bias.empty() ? nullptr : piece.bias.data(), out};
      args.columns = piece.columns;
      args.gated = &form;
      backend.linear(args);
      return;
    }
    run(backend, x, both);
    const int64_t half = out_dim_ / 2;
    backend.glu({both.columns(0, half), both.columns(half, half), activation, out});
  }
  int64_t out_dim() const { return out_dim_; }
  size_t bytes() const {
    size_t total = 0;
    for (const Piece& piece : pieces_) total += piece.weight->bytes() + piece.bias.size() * sizeof(float);
    return total;
  }
  const PackedMatrix& first() const { return *pieces_.front().weight; }

 private:
  std::vector<Piece> pieces_;
  int64_t out_dim_ = 0;
};

}  // namespace quire::model
