// SPDX-License-Identifier: Apache-2.0
// rope in doubles: the oracle of the tests of every backend.
#pragma once

#include <span>
#include <vector>

#include "ops/rope.h"

namespace quire::cases {

// One row after the rotation; cosines and sines are the rows of its position in the tables. Reads from `args` what does
// not depend on the row.
inline std::vector<double> exact_rope(std::span<const float> row, const RopeArgs& args, const float* cosines,
                                      const float* sines) {
  std::vector<double> y(row.begin(), row.end());
  const int64_t half = args.rot_dim / 2;
  for (int64_t head = args.offset; head < std::ssize(row); head += args.head_dim) {
    for (int64_t i = 0; i < half; ++i) {
      const auto a = static_cast<size_t>(head + (args.interleaved ? 2 * i : i));
      const size_t b = a + static_cast<size_t>(args.interleaved ? 1 : half);
      y[a] = double{row[a]} * double{cosines[i]} - double{row[b]} * double{sines[i]};
      y[b] = double{row[b]} * double{cosines[i]} + double{row[a]} * double{sines[i]};
    }
  }
  return y;
}

}  // namespace quire::cases
