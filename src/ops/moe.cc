// SPDX-License-Identifier: Apache-2.0
// The argument checks of moe_route and moe_experts. A call without tokens needs no arrays.
#include "ops/moe.h"

namespace quire {

void check(const MoeRouteArgs& args) {
  if (args.logits.rows == 0) return;
  const int64_t experts = args.logits.cols;
  QUIRE_CHECK(args.logits.dtype == DType::kF32 && args.logits.data != nullptr);
  QUIRE_CHECK(args.ids != nullptr && args.weights != nullptr && args.k > 0);
  QUIRE_CHECK(args.groups > 0 && experts % args.groups == 0);
  QUIRE_CHECK(args.groups_kept > 0 && args.groups_kept <= args.groups);
  QUIRE_CHECK(args.k <= experts / args.groups * args.groups_kept);
  if (args.groups_kept < args.groups && args.group_score == MoeGroupScore::kTopTwoSum) {
    QUIRE_CHECK(experts / args.groups >= 2);
  }
  if (args.score == MoeScore::kSparseMixer) {
    QUIRE_CHECK(args.k == 2 && args.groups_kept == args.groups && args.choice_bias == nullptr && !args.normalise);
  }
}

void check(const MoeExpertsArgs& args) {
  if (args.x.rows == 0) return;
  check_shape(args.x, args.out.rows, args.x.cols);
  check_shape(args.out, args.x.rows, args.out.cols);
  QUIRE_CHECK(args.x.dtype == args.out.dtype && args.ids != nullptr && args.weights != nullptr && args.k > 0);
  QUIRE_CHECK(!args.gate_up.empty() && args.down.size() == args.gate_up.size());
  QUIRE_CHECK(args.gate_up_bias.empty() || args.gate_up_bias.size() == args.gate_up.size());
  QUIRE_CHECK(args.down_bias.empty() || args.down_bias.size() == args.down.size());
}

}  // namespace quire
