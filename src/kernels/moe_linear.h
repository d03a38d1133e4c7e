// SPDX-License-Identifier: Apache-2.0
// The experts' products: linear's bodies over rows that moe.h has sorted by expert; each tile of rows has one expert's
// weight.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/linear_f32.h"
#include "kernels/linear_mma.h"
#include "kernels/params/linear.h"

FN DEVICE const float* moe_bias(CONSTANT const LinearParams& p, DEVICE const float* bias, int expert) {
  return p.last.biased != 0 ? bias + (i64)expert * p.weight.n : bias;
}

// Grid: as for linear's bodies; the second dimension counts tiles of the order, the last of which may be unused.
template <typename T, typename W>
struct MoeLinearFew {
  enum { kThreads = kLinearThreads };
  typedef typename LinearFewBody<T, W>::Smem Smem;
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const int* order,
                     DEVICE const int* experts) {
    const int expert = experts[c.tgy];
    if (expert < 0) return;
    LinearFewBody<T, W>::run(c, p, sm, out, x, w + expert * p.weight.expert_stride, moe_bias(p, bias, expert), bias,
                             bias, true, order);
  }
};

template <typename T>
struct MoeLinearAnyFew {
  enum { kThreads = kLinearAnyThreads };
  typedef typename LinearAnyFewBody<T>::Smem Smem;
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const int* order,
                     DEVICE const int* experts) {
    const int expert = experts[c.tgy];
    if (expert < 0) return;
    LinearAnyFewBody<T>::run(c, p, sm, out, x, w + expert * p.weight.expert_stride, moe_bias(p, bias, expert), bias,
                             bias, true, order);
  }
};

template <typename T, typename W>
struct MoeLinearMany {
  enum { kThreads = kLinearThreads };
  typedef typename LinearManyBody<T, W>::Smem Smem;
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const int* order,
                     DEVICE const int* experts) {
    const int expert = experts[c.tgy];
    if (expert < 0) return;
    LinearManyBody<T, W>::run(c, p, sm, out, x, w + expert * p.weight.expert_stride, moe_bias(p, bias, expert), bias,
                              true, order);
  }
};

struct MoeLinearFloat {
  enum { kThreads = kLinearThreads };
  typedef LinearFloatBody::Smem Smem;
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const int* order,
                     DEVICE const int* experts) {
    const int expert = experts[c.tgy];
    if (expert < 0) return;
    LinearFloatBody::run(c, p, sm, out, x, w + expert * p.weight.expert_stride, moe_bias(p, bias, expert), bias, bias,
                         true, order);
  }
};

typedef MoeLinearFew<half, LinearPlain<half> > MoeLinearFew_f16;
typedef MoeLinearFew<bfloat, LinearPlain<bfloat> > MoeLinearFew_bf16;
typedef MoeLinearAnyFew<half> MoeLinearFew_f16_any;
typedef MoeLinearAnyFew<bfloat> MoeLinearFew_bf16_any;
typedef MoeLinearMany<half, LinearPlain<half> > MoeLinearMany_f16;
typedef MoeLinearMany<bfloat, LinearPlain<bfloat> > MoeLinearMany_bf16;
typedef MoeLinearMany<half, LinearAny<half> > MoeLinearMany_f16_any;
typedef MoeLinearMany<bfloat, LinearAny<bfloat> > MoeLinearMany_bf16_any;
#define MOE_LINEAR_KERNEL(name, Body) \
  KERNEL(name, Body, LinearParams, uchar, const uchar, const uchar, const float, const int, const int)
MOE_LINEAR_KERNEL(moe_linear_f16_few, MoeLinearFew_f16)
MOE_LINEAR_KERNEL(moe_linear_bf16_few, MoeLinearFew_bf16)
MOE_LINEAR_KERNEL(moe_linear_f16_any_few, MoeLinearFew_f16_any)
MOE_LINEAR_KERNEL(moe_linear_bf16_any_few, MoeLinearFew_bf16_any)
MOE_LINEAR_KERNEL(moe_linear_f16_many, MoeLinearMany_f16)
MOE_LINEAR_KERNEL(moe_linear_bf16_many, MoeLinearMany_bf16)
MOE_LINEAR_KERNEL(moe_linear_f16_any_many, MoeLinearMany_f16_any)
MOE_LINEAR_KERNEL(moe_linear_bf16_any_many, MoeLinearMany_bf16_any)
MOE_LINEAR_KERNEL(moe_linear_f32_any, MoeLinearFloat)
