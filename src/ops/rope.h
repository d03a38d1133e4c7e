// SPDX-License-Identifier: Apache-2.0
// rope: rotates rot_dim elements of each head, from `offset` on, by the position of the token, in place or into another
// tensor.
//
// Contract. The pair (a, b) of index i becomes (fma(a, c, -(b*s)), fma(b, c, a*s)) with c and s from the table's row
// for the position. Pairs are (i, i+rot/2), or (2i, 2i+1) if interleaved. The other elements stay as they are. The
// tables include any attention scaling (YaRN, LongRoPE).
#pragma once

#include <span>

#include "ops/tensor.h"

namespace quire {

struct RopeArgs {
  Tensor x;  // [tokens, heads*head_dim]
  int64_t head_dim = 0;
  int64_t rot_dim = 0;  // even; offset + rot_dim is at most head_dim
  bool interleaved = false;
  const float* cos_table = nullptr;    // [positions, rot_dim/2]
  const float* sin_table = nullptr;    // [positions, rot_dim/2]
  std::span<const int32_t> positions;  // [tokens]: rows of the tables
  int64_t offset = 0;                  // MLA rotates the end of a head
  // Optional: the rotated elements go to the end of the same head here, and x stays as it is.
  Tensor into = {};  // [tokens, heads*into_head_dim]; must not overlap x
  int64_t into_head_dim = 0;
};
void check(const RopeArgs& args);

}  // namespace quire
