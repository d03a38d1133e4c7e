// SPDX-License-Identifier: Apache-2.0
// The argument checks of embedding.
#include "ops/embedding.h"

namespace quire {

void check(const EmbeddingArgs& args) {
  QUIRE_CHECK(args.table != nullptr);
  check_shape(args.out, std::ssize(args.tokens), args.table->k());
}

void check_indices(const EmbeddingArgs& args) {
  for (const int32_t token : args.tokens) QUIRE_CHECK(token >= 0 && token < args.table->n());
}

}  // namespace quire
