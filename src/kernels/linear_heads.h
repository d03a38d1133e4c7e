// SPDX-License-Identifier: Apache-2.0
// linear_heads: linear's bodies with a weight for each head, which is the third dimension of the grid. The first
// weights are loaded before GRID_WAIT(), while the preceding launch still runs.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/linear_f32.h"
#include "kernels/linear_mma.h"
#include "kernels/params/linear.h"

// Grid: as for linear's bodies, then heads. There is no bias, norm or residual; the bodies get the weight in their
// place and do not read it.
template <typename Body>
struct LinearHeads {
  enum { kThreads = Body::kThreads };
  typedef typename Body::Smem Smem;
  static FN void run(Ctx c, CONSTANT const LinearHeadsParams& p, TGROUP Smem& sm, DEVICE uchar* out,
                     DEVICE const uchar* x, DEVICE const uchar* w) {
    const i64 head = c.tgz;
    DEVICE const float* none = (DEVICE const float*)w;
    Body::run(c, p.linear, sm, out + head * p.out_head, x + head * p.x_head, w + head * p.linear.weight.expert_stride,
              none, none, none, false, (DEVICE const int*)w);
  }
};

// The body for many rows takes no norm.
template <typename Body>
struct LinearHeadsMany {
  enum { kThreads = Body::kThreads };
  typedef typename Body::Smem Smem;
  static FN void run(Ctx c, CONSTANT const LinearHeadsParams& p, TGROUP Smem& sm, DEVICE uchar* out,
                     DEVICE const uchar* x, DEVICE const uchar* w) {
    const i64 head = c.tgz;
    DEVICE const float* none = (DEVICE const float*)w;
    Body::run(c, p.linear, sm, out + head * p.out_head, x + head * p.x_head, w + head * p.linear.weight.expert_stride,
              none, none, false, (DEVICE const int*)w);
  }
};

// "deep": one tile in a threadgroup, with most of its weight in flight at once; for products with few tiles, whose
// threadgroups all run at the same time and wait for memory.
typedef LinearFewBody<half, LinearPlain<half> > LinearHeadsFewBody_f16;
typedef LinearFewBody<bfloat, LinearPlain<bfloat> > LinearHeadsFewBody_bf16;
typedef LinearFewBody<half, LinearPlain<half>, 1, kLinearDeepStages> LinearHeadsDeepBody_f16;
typedef LinearFewBody<bfloat, LinearPlain<bfloat>, 1, kLinearDeepStages> LinearHeadsDeepBody_bf16;
typedef LinearManyBody<half, LinearPlain<half> > LinearHeadsManyBody_f16;
typedef LinearManyBody<bfloat, LinearPlain<bfloat> > LinearHeadsManyBody_bf16;
typedef LinearManyBody<half, LinearAny<half> > LinearHeadsAnyManyBody_f16;
typedef LinearManyBody<bfloat, LinearAny<bfloat> > LinearHeadsAnyManyBody_bf16;
#define LINEAR_HEADS_KERNEL(name, Kernel) KERNEL_EARLY(name, Kernel, LinearHeadsParams, uchar, const uchar, const uchar)
LINEAR_HEADS_KERNEL(linear_heads_f16_few, LinearHeads<LinearHeadsFewBody_f16>)
LINEAR_HEADS_KERNEL(linear_heads_bf16_few, LinearHeads<LinearHeadsFewBody_bf16>)
LINEAR_HEADS_KERNEL(linear_heads_f16_deep, LinearHeads<LinearHeadsDeepBody_f16>)
LINEAR_HEADS_KERNEL(linear_heads_bf16_deep, LinearHeads<LinearHeadsDeepBody_bf16>)
LINEAR_HEADS_KERNEL(linear_heads_f16_any_few, LinearHeads<LinearAnyFewBody<half> >)
LINEAR_HEADS_KERNEL(linear_heads_bf16_any_few, LinearHeads<LinearAnyFewBody<bfloat> >)
LINEAR_HEADS_KERNEL(linear_heads_f16_many, LinearHeadsMany<LinearHeadsManyBody_f16>)
LINEAR_HEADS_KERNEL(linear_heads_bf16_many, LinearHeadsMany<LinearHeadsManyBody_bf16>)
LINEAR_HEADS_KERNEL(linear_heads_f16_any_many, LinearHeadsMany<LinearHeadsAnyManyBody_f16>)
LINEAR_HEADS_KERNEL(linear_heads_bf16_any_many, LinearHeadsMany<LinearHeadsAnyManyBody_bf16>)
LINEAR_HEADS_KERNEL(linear_heads_f32_any, LinearHeads<LinearFloatBody>)
