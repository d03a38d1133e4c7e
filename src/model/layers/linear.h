// SPDX-License-Identifier: Apache-2.0
// Linear: a weight as layers use it: one or more packed matrices with the same input, and their biases.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/layers/lora.h"

namespace quire::model {

// y = x W^T + b, where W may be several matrices (q, k, v of different types) whose outputs are adjacent columns of y.
// Immutable after load.
class Linear {
 public:
  struct Piece {
    std::shared_ptr<const PackedMatrix> weight;
    Floats bias;                     // [n] or empty
    Constant<int32_t> columns = {};  // the order in which the weight reads the columns of x; empty: as they are
  };
  // The tensors of a checkpoint whose rows are columns of the output, for adapters; empty if there are none.
  struct Source {
    std::string name;  // without ".weight", as in the file
    int64_t column = 0, rows = 0;
    std::vector<int32_t> map = {};  // as in Slice
    int64_t file_rows = 0;          // of the tensor
  };
  void add_source(Source source) { sources_.push_back(std::move(source)); }
  const std::vector<Source>& sources() const { return sources_; }
  int64_t in_dim() const { return pieces_.front().weight->k(); }
  // From set_lora() on, adapters add to the output what they have for this site (LoraSites).
  void set_site(int64_t site) { site_ = site; }
  void set_lora(const LoraState* lora) {
    if (site_ >= 0) lora_ = lora;
  }

  void add(Piece piece) {
    out_dim_ += piece.weight->n();
    pieces_.push_back(std::move(piece));
  }
  // What a backend may compute together with the product (LinearArgs).
  struct Joined {
    const FusedNorm* norm = nullptr;
    Tensor residual = {};
    float residual_scale = 1.0f;
  };
  void run(Backend& backend, const Tensor& x, const Tensor& out) const { run(backend, x, out, {}); }
  // Whether a row of the step has an adapter for this linear.
  bool adapted() const { return lora_ != nullptr && lora_->has(site_); }
  // Whether the backend computes the step's adapters together with the product and what is joined to it.
  bool joins_adapters(Backend& backend, const Tensor& x, const Tensor& out, const Joined& joined) const {
    LoraArgs adapters;
    return single() && backend.joins_lora(args_of(pieces_.front(), x, out, joined, adapters));
  }
  void run(Backend& backend, const Tensor& x, const Tensor& out, const Joined& joined) const {
    if (adapted() && joins_adapters(backend, x, out, joined)) {
      LoraArgs adapters;
      backend.linear(args_of(pieces_.front(), x, out, joined, adapters));
      return;
    }
    const bool split = lora_ != nullptr && backend.splits_lora();
    if (split) lora_->add(backend, site_, x, out, LoraProducts::kFirst);
    int64_t column = 0;
    for (const Piece& piece : pieces_) {
      LinearArgs args = args_of(piece, x, out.columns(column, piece.weight->n()), joined);
      if (joined.residual.data != nullptr) args.residual = joined.residual.columns(column, piece.weight->n());
      backend.linear(args);
      column += piece.weight->n();
    }
    if (lora_ != nullptr) lora_->add(backend, site_, x, out, split ? LoraProducts::kSecond : LoraProducts::kBoth);
  }
  // act(gate) * up, where the outputs of this linear are gate and up. `both` has room for the two, and `out` may be its
  // first half. The results have the same bits whether the backend joins the ops or not.
  void run_gated(Backend& backend, const Tensor& x, Activation activation, const Tensor& both, const Tensor& out,
                 const Joined& joined) const {
    if (single()) {
      const FusedGlu form{activation};
      LoraArgs adapters;
      LinearArgs args = args_of(pieces_.front(), x, out, joined);
      args.gated = &form;
      if (adapted()) adapt(args, adapters);
      if (args.lora == nullptr || backend.joins_lora(args)) return backend.linear(args);
    }
    run(backend, x, both, joined);
    const int64_t half = out_dim_ / 2;
    backend.glu({both.columns(0, half), both.columns(half, half), activation, out});
  }
  Status place(Backend& backend) {
    for (Piece& piece : pieces_) {
      QUIRE_TRY(piece.bias.place(backend));
      QUIRE_TRY(piece.columns.place(backend));
    }
    return {};
  }
  // Raises the maxima in `sizes` to the sizes of this product.
  void measure(WorkspaceLimits& sizes) const {
    for (const Piece& piece : pieces_) {
      const PackedMatrix& w = *piece.weight;
      sizes.out_columns = std::max(sizes.out_columns, w.n());
      if (w.dtype() != sizes.activation) sizes.quantised_columns = std::max(sizes.quantised_columns, w.k());
      const auto columns = static_cast<int64_t>(piece.columns.size());
      if (columns > 0) sizes.reordered_columns = std::max({sizes.reordered_columns, columns, w.k()});
    }
  }
  bool empty() const { return pieces_.empty(); }
  bool single() const { return pieces_.size() == 1; }
  int64_t out_dim() const { return out_dim_; }
  size_t bytes() const {
    size_t total = 0;
    for (const Piece& piece : pieces_) total += piece.weight->bytes() + piece.bias.size() * sizeof(float);
    return total;
  }
  const PackedMatrix& first() const { return *pieces_.front().weight; }

 private:
  void adapt(LinearArgs& args, LoraArgs& adapters) const {
    adapters = *lora_->args_of(site_, args.x, args.out);
    args.lora = &adapters;
  }
  LinearArgs args_of(const Piece& piece, const Tensor& x, const Tensor& out, const Joined& joined,
                     LoraArgs& adapters) const {
    LinearArgs args = args_of(piece, x, out, joined);
    adapt(args, adapters);
    return args;
  }
  static LinearArgs args_of(const Piece& piece, const Tensor& x, const Tensor& out, const Joined& joined) {
    LinearArgs args{x, piece.weight.get(), piece.bias.data(), out};
    args.columns = piece.columns.span();
    args.norm = joined.norm;
    args.residual = joined.residual;
    args.residual_scale = joined.residual_scale;
    return args;
  }
  std::vector<Piece> pieces_;
  int64_t out_dim_ = 0;
  std::vector<Source> sources_;
  int64_t site_ = -1;
  const LoraState* lora_ = nullptr;  // null: no adapters
};

}  // namespace quire::model
