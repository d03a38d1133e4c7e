// SPDX-License-Identifier: Apache-2.0
// gather: out[i] = x[rows[i]], a copy of the wanted rows; gather_columns: the same over columns.
#pragma once

#include <span>

#include "ops/tensor.h"

namespace quire {

struct GatherArgs {
  Tensor x;                       // [n, cols]
  std::span<const int32_t> rows;  // each in [0, n)
  Tensor out;                     // [rows, cols]
};
void check(const GatherArgs& args);
void check_indices(const GatherArgs& args);

struct GatherColumnsArgs {
  Tensor x;                          // [rows, n]
  std::span<const int32_t> columns;  // each in [0, n)
  Tensor out;                        // [rows, columns]; must not overlap x
};
void check(const GatherColumnsArgs& args);
void check_indices(const GatherColumnsArgs& args);

}  // namespace quire
