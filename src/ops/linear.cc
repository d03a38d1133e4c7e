// SPDX-License-Identifier: Apache-2.0
// The argument checks of linear and linear_heads.
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

void check(const LinearHeadsArgs& args) {
  QUIRE_CHECK(args.weight != nullptr && args.heads > 0 && args.n > 0);
  QUIRE_CHECK(args.weight->n() == args.heads * head_rows(args.n));
  check_shape(args.x, args.out.rows, args.x.cols);
  check_shape(args.out, args.x.rows, args.out.cols);
  QUIRE_CHECK(args.x.dtype == args.out.dtype);
  QUIRE_CHECK(args.x.cols % args.heads == 0 && args.x.cols / args.heads >= args.weight->k());
  QUIRE_CHECK(args.out.cols % args.heads == 0 && args.out.cols / args.heads >= args.n);
}

}  // namespace quire
