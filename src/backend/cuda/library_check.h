// SPDX-License-Identifier: Apache-2.0
// Checks on random data, by memcmp, that a row of a product has the same bits whichever algorithm computes it, and
// beside any number of other rows.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/library_choices.h"
#include "backend/gpu/device.h"

namespace quire::cuda {

// Random rows and a random weight of one shape on a device, and the bits of some rows of their product. The first
// product that computes a row, in F32, sets what all others must give: the same in F32, and that rounded once in the
// 16-bit type.
class ProductCheck {
 public:
  static Result<ProductCheck> make(gpu::Device& device, const ProductShape& shape, int64_t most_rows);

  // Runs `product` over rows [first, first + rows) and compares the watched ones. An Error if it could not run.
  Result<bool> agrees(const ProductFn& product, int64_t first, int64_t rows, DType out_type);
  // The mean time of `runs` runs over the first rows.
  Result<double> seconds(const ProductFn& product, int64_t rows, DType out_type, int runs);
  // `runs` runs as a graph, as in a recorded step, and the time of one launch of the graph.
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
  std::unique_ptr<gpu::Memory> watched_;  // rows of y on the host
  struct Expected {
    std::vector<float> floats;
    std::vector<uint16_t> halves;  // the same, rounded
  };
  std::map<int64_t, Expected> expected_;  // by row; watched rows alone
};

// Chooses, for each range of rows and both output types, the fastest of the library's first algorithms with that split
// of K whose bits are equal to those of all other choices, and of `reference` if there is one. They are timed first,
// and checked in the order of their times. False if some range has none: then the library must serve no product of this
// shape. An algorithm from `known` is not timed again if its bits are still equal; new choices are added there.
// REQUIRES: library_knows(shape)
Result<bool> choose_algorithms(gpu::Device& device, Library& library, const ProductShape& shape, int split,
                               const ProductFn& reference, ChoiceFile& known);

// Whether `reference` gives the bits that the library gives, for all numbers of rows that it may serve beside the
// library, in F32 and in the weight's type.
// REQUIRES: the library serves the shape.
Result<bool> check_equal(gpu::Device& device, const ProductShape& shape, const ProductFn& reference);

}  // namespace quire::cuda
