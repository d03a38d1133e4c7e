// SPDX-License-Identifier: Apache-2.0
// The argument checks of the norms.
#include "ops/norm.h"

namespace quire {
namespace {

void check_norm(const Tensor& x, const Tensor& out, int64_t group, const float* weight) {
  check_shape(x, out.rows, out.cols);
  check_shape(out, x.rows, x.cols);
  QUIRE_CHECK(x.dtype == out.dtype || x.dtype == DType::kF32 || out.dtype == DType::kF32);
  QUIRE_CHECK(group > 0 && x.cols % group == 0 && weight != nullptr);
}

}  // namespace

void check(const RmsNormArgs& args) {
  check_norm(args.x, args.out, args.group, args.weight);
}

void check(const LayerNormArgs& args) {
  check_norm(args.x, args.out, args.group, args.weight);
}

void check(const GatedRmsNormArgs& args) {
  check_norm(args.x, args.out, args.group, args.weight);
  check_like(args.x, args.out);
  check_like(args.gate, args.out);
  QUIRE_CHECK(args.weight_size == args.group || args.weight_size == args.x.cols);
}

void check(const AddNormArgs& args) {
  check_shape(args.residual, args.x.rows, args.x.cols);
  QUIRE_CHECK(args.residual.dtype == DType::kF32);
  QUIRE_CHECK(args.post_weight != nullptr || args.weight != nullptr);
  if (args.weight != nullptr) check_like(args.out, args.x);
}

}  // namespace quire
