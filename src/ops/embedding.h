// SPDX-License-Identifier: Apache-2.0
// embedding: out[t] = row tokens[t] of the table, as float, times `scale`.
#pragma once

#include "ops/linear.h"

namespace quire {

struct EmbeddingArgs {
  const PackedMatrix* table = nullptr;  // [vocab, hidden]; may be the same object as a tied LM head
  std::span<const int32_t> tokens;      // each in [0, vocab): the engine refuses others before
  float scale = 1.0f;                   // rounded product with the dequantised float; 1 changes nothing
  Tensor out;                           // [tokens, hidden]
};

}  // namespace quire
