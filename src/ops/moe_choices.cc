// SPDX-License-Identifier: Apache-2.0
// The argument checks of moe_choices and moe_sum.
#include "ops/moe_choices.h"

namespace quire {

void check(const MoeChoicesArgs& args) {
  check(args.experts);
  check_shape(args.out, args.experts.x.rows * args.experts.k, args.experts.out.cols);
}

void check(const MoeSumArgs& args) {
  if (args.out.rows == 0) return;
  check_shape(args.choices, args.out.rows * args.k, args.out.cols);
  QUIRE_CHECK(args.choices.dtype == args.out.dtype && args.weights != nullptr && args.k > 0);
}

}  // namespace quire
