// SPDX-License-Identifier: Apache-2.0
// Exchange: how the ranks of a group move rows between the memories of their backends.
#pragma once

#include <cstdint>
#include <span>

#include "distributed/group.h"
#include "ops/tensor.h"

namespace quire {

// One rank's end of an exchange (Backend::join()). Every rank makes the same calls in the same order. A call is an op
// of the backend: on a GPU it is queued behind the ops before it, and becomes part of a step that is recorded. All
// addresses are in the backend's memory.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // The columns of all ranks side by side: rank r's `mine` becomes the columns from r * mine.cols on of `all`, as far
  // as it has them, on every rank or on `root` alone. REQUIRES: as many rows on every rank. `mine` may be its own place
  // in `all`.
  virtual void gather_columns(const Tensor& mine, const Tensor& all, int root = distributed::Group::kEvery) = 0;
  // Row i of `x` becomes that of rank ids[i] / width. REQUIRES: the same ids on every rank; contiguous rows.
  virtual void gather_rows(const Tensor& x, std::span<const int32_t> ids, int64_t width) = 0;
  // Whether it is worth while to divide such rows among the ranks by columns (scatter_rows) instead of gathering them,
  // although another call must follow. The same on every rank.
  virtual bool scatters(const Tensor& /*x*/) const { return false; }
  // `mine` becomes this rank's columns, those from rank * mine.cols on, of the rows that gather_rows() would give. `x`
  // stays as it is. REQUIRES: scatters(x); contiguous rows, and mine.cols * ranks == x.cols.
  virtual void scatter_rows(const Tensor& /*x*/, std::span<const int32_t> /*ids*/, int64_t /*width*/,
                            const Tensor& /*mine*/) {}
  // The bytes of rank `root` on every rank.
  virtual void broadcast(void* data, size_t bytes, int root) = 0;
  // Rows from one rank to another. REQUIRES: contiguous rows.
  virtual void send(const Tensor& x, int to) = 0;
  virtual void receive(const Tensor& x, int from) = 0;
};

}  // namespace quire
