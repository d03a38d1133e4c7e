// SPDX-License-Identifier: Apache-2.0
// The argument checks of linear.
#include "ops/linear.h"

namespace quire {

void check(const LinearArgs& args) {
  QUIRE_CHECK(args.weight != nullptr);
  const int64_t n = args.weight->n(), k = args.weight->k();
  QUIRE_CHECK(args.gated == nullptr || n % 2 == 0, "a gate and its up have the same number of columns");
  check_shape(args.out, args.x.rows, args.gated != nullptr ? n / 2 : n);
  QUIRE_CHECK(args.columns.empty() ? args.x.cols == k : std::ssize(args.columns) == k);
  QUIRE_CHECK(args.norm == nullptr || args.x.dtype == DType::kF32);
  if (args.residual.data == nullptr) return;
  QUIRE_CHECK(args.gated == nullptr && args.out.dtype == DType::kF32);
  check_like(args.residual, args.out);
}

}  // namespace quire
