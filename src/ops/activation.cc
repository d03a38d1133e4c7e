// SPDX-License-Identifier: Apache-2.0
// The argument checks of activations, residual additions, scaling and soft caps.
#include "ops/activation.h"

namespace quire {

void check(const GluArgs& args) {
  check_like(args.gate, args.out);
  check_like(args.up, args.out);
}

void check(const ActivationArgs& args) {
  check_like(args.x, args.out);
}

void check(const ResidualAddArgs& args) {
  check_shape(args.x, args.out.rows, args.out.cols);
  check_like(args.residual, args.out);
}

void check(const SoftCapArgs& args) {
  check_like(args.x, args.out);
  QUIRE_CHECK(args.cap > 0);
}

void check(const ScaleArgs& args) {
  check_shape(args.x, args.out.rows, args.out.cols);
  check_shape(args.out, args.x.rows, args.x.cols);
  QUIRE_CHECK(args.rows.empty() || std::ssize(args.rows) == args.x.rows);
}

}  // namespace quire
