// SPDX-License-Identifier: Apache-2.0
// gather: out[i] = x[rows[i]], a copy of the wanted rows.
#pragma once

#include <span>

#include "ops/tensor.h"

namespace quire {

struct GatherArgs {
  Tensor x;                       // [n, cols]
  std::span<const int32_t> rows;  // each in [0, n)
  Tensor out;                     // [rows, cols]
};

}  // namespace quire
