// SPDX-License-Identifier: Apache-2.0
// Checks on random data, by memcmp, that products give a row the same bits whoever computes it and beside how many.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/library_choices.h"
#include "backend/gpu/device.h"

namespace quire::cuda {

// Random rows and a random weight of one shape on a device, and the bits of some rows of their product. The first to
// compute a row, in F32, sets what all the others must give: the same in F32, and that rounded once in the 16-bit type.
class ProductCheck {
 public:
  static Result<ProductCheck> make(gpu::Device& device, const ProductShape& shape, int64_t most_rows);

  // Runs `product` over rows [first, first + rows) and compares those that are watched. An Error where it did not run.
  Result<bool> agrees(const ProductFn& product, int64_t first, int64_t rows, DType out_type);
  // The time of one run over the first rows, as the mean of `runs`.
  Result<double> seconds(const ProductFn& product, int64_t rows, DType out_type, int runs);
  // `runs` of it as a graph, which is what it is part of in a step, and the time of all of that.
  Result<std::unique_ptr<gpu::Graph>> record(const ProductFn& product, int64_t rows, DType out_type, int runs);
  Result<double> seconds(const gpu::Graph& graph);
  int64_t most_rows() const { return most_rows_; }

 private:
  ProductCheck(gpu::Device& device, const ProductShape& shape, int64_t most_rows)
      : device_(&device), shape_(shape), most_rows_(most_rows) {}
  Status fill(void* to, int64_t rows, uint64_t seed, int sign);
  Status run(const ProductFn& product, int64_t rows, DType out_type, int runs);
  gpu::LibraryProduct of_rows(int64_t first, int64_t rows, DType out_type) const;

  gpu::Device* device_;
  ProductShape shape_;
  int64_t most_rows_;
  int64_t copies_ = 1;  // of the weight, for seconds()
  std::unique_ptr<gpu::Memory> x_, w_, y_;
  std::unique_ptr<gpu::Memory> watched_;            // rows of y on the host
  std::map<int64_t, std::vector<float>> expected_;  // by row; watched rows alone
};

// Chooses, for each step of rows and both output types, the quickest of the library's first algorithms with that split
// of K whose bits are those of all the others, and of `own` where there is one. The library must know the shape. False
// where there is none for some step: then the library must serve no product of it. What `known` holds is not timed
// again, if its bits are still those of all; what is chosen anew goes there.
Result<bool> choose_algorithms(gpu::Device& device, Library& library, const ProductShape& shape, int split,
                               const ProductFn& own, ChoiceFile& known);

// Whether `own` gives the bits that the library gives, for as few and as many rows as it may serve beside it, in F32
// and in the weight's type. The library must serve the shape.
Result<bool> check_equal(gpu::Device& device, const ProductShape& shape, const ProductFn& own);

}  // namespace quire::cuda
