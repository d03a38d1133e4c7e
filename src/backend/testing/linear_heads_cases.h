// SPDX-License-Identifier: Apache-2.0
// Cases of linear_heads: the weights of heads in file format, for the tests of every backend.
#pragma once

#include <vector>

#include "backend/testing/linear_cases.h"

namespace quire::cases {

struct HeadsShape {
  int64_t heads, n, k;
};
// One head, heads that end inside a panel, and a K that ends inside a block; one with more chunks than a kernel has in
// flight.
inline constexpr HeadsShape kHeadsShapes[] = {{1, 16, 512}, {3, 40, 72}, {5, 33, 96}, {2, 128, 64}};
inline constexpr int64_t kHeadsRows[] = {1, 3, 16, 17, 64, 200};

// The weights of all heads, each padded to whole panels with rows that must not matter.
struct HeadWeights {
  HeadWeights(DType type, const HeadsShape& shape) {
    const int64_t k = rounded_k(type, shape.k);
    for (int64_t h = 0; h < shape.heads; ++h) {
      const auto seed = static_cast<uint64_t>(2 * h + 1);
      heads.push_back(random_weight_of(type, shape.n, k, seed));
      if (head_rows(shape.n) == shape.n) continue;
      padding.push_back(random_weight_of(type, head_rows(shape.n) - shape.n, k, seed + 1));
    }
  }
  // What pack() takes for all heads together.
  std::vector<RawMatrix> parts() const {
    std::vector<RawMatrix> out;
    for (size_t h = 0; h < heads.size(); ++h) {
      out.push_back(heads[h].raw());
      if (!padding.empty()) out.push_back(padding[h].raw());
    }
    return out;
  }
  std::vector<Weight> heads, padding;
};

}  // namespace quire::cases
