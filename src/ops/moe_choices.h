// SPDX-License-Identifier: Apache-2.0
// The two halves of moe_experts (ops/moe.h), for experts that several ranks share. Backends with
// Backend::splits_experts() have them.
//
// Contract. moe_choices followed by moe_sum has the bits of moe_experts: the outputs of each choice are those of its
// expert, and the sum is that of moe_experts.
#pragma once

#include "ops/moe.h"

namespace quire {

// The output of choice r of token t goes to row t * k + r. An id of -1 is an expert of another rank, whose row is left
// as it is.
struct MoeChoicesArgs {
  MoeExpertsArgs experts;  // its `out` is not written
  Tensor out;              // [tokens * k, hidden]
};
void check(const MoeChoicesArgs& args);

struct MoeSumArgs {
  Tensor choices;                  // [tokens * k, hidden]
  const float* weights = nullptr;  // [tokens, k]
  int64_t k = 0;
  Tensor out;  // [tokens, hidden]
};
void check(const MoeSumArgs& args);

}  // namespace quire
