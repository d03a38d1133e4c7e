// SPDX-License-Identifier: Apache-2.0
// The argument checks of rope.
#include "ops/rope.h"

namespace quire {

void check(const RopeArgs& args) {
  check_shape(args.x, std::ssize(args.positions), args.x.cols);
  QUIRE_CHECK(args.head_dim > 0 && args.x.cols % args.head_dim == 0);
  QUIRE_CHECK(args.rot_dim >= 0 && args.rot_dim % 2 == 0 && args.offset >= 0);
  QUIRE_CHECK(args.offset + args.rot_dim <= args.head_dim);
  if (args.into.data == nullptr) return;
  QUIRE_CHECK(args.into.dtype == args.x.dtype && args.into_head_dim >= args.rot_dim);
  check_shape(args.into, args.x.rows, args.x.cols / args.head_dim * args.into_head_dim);
}

}  // namespace quire
