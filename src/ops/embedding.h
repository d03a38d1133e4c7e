// SPDX-License-Identifier: Apache-2.0
// embedding: out[t] = row tokens[t] of the table as floats, times `scale`.
#pragma once

#include "ops/linear.h"

namespace quire {

struct EmbeddingArgs {
  const PackedMatrix* table = nullptr;  // [vocab, hidden]; may be the same object as a tied LM head
  std::span<const int32_t> tokens;      // each in [0, vocab); the engine refuses requests with other ids
  float scale = 1.0f;                   // the product with the dequantised float is rounded
  Tensor out;                           // [tokens, hidden]
};
void check(const EmbeddingArgs& args);
void check_indices(const EmbeddingArgs& args);

}  // namespace quire
