// SPDX-License-Identifier: Apache-2.0
// Ops that only a model on several ranks needs: the halves of moe_experts (ops/moe_choices.h), and own_ids.
#pragma once

#include <span>

#include "ops/moe_choices.h"

#define QUIRE_RANK_OPS(X)        \
  X(moe_choices, MoeChoicesArgs) \
  X(moe_sum, MoeSumArgs)         \
  X(own_ids, OwnIdsArgs)

namespace quire {

// Which of some ids (tokens, experts) belong to this rank, whose range begins at rank * width: they count from there;
// the others become `other`.
struct OwnIdsArgs {
  std::span<const int32_t> ids;  // none negative
  int64_t width = 0;
  int64_t rank = 0;
  int32_t other = -1;
  int32_t* out = nullptr;  // as many as ids
};
void check(const OwnIdsArgs& args);

}  // namespace quire
