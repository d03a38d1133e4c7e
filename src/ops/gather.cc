// SPDX-License-Identifier: Apache-2.0
// The argument checks of gather and gather_columns.
#include "ops/gather.h"

namespace quire {

void check(const GatherArgs& args) {
  check_shape(args.out, std::ssize(args.rows), args.x.cols);
  QUIRE_CHECK(args.x.dtype == args.out.dtype);
}

void check(const GatherColumnsArgs& args) {
  check_shape(args.out, args.x.rows, std::ssize(args.columns));
  QUIRE_CHECK(args.x.dtype == args.out.dtype);
}

void check_indices(const GatherArgs& args) {
  for (const int32_t row : args.rows) QUIRE_CHECK(row >= 0 && row < args.x.rows);
}

void check_indices(const GatherColumnsArgs& args) {
  for (const int32_t column : args.columns) QUIRE_CHECK(column >= 0 && column < args.x.cols);
}

}  // namespace quire
