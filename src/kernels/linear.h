// SPDX-License-Identifier: Apache-2.0
// linear: y = x W^T for every weight type and activation type; the bodies are in linear_mma.h and linear_f32.h. The
// first weights are loaded before GRID_WAIT(), while the preceding launch still runs.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/linear_f32.h"
#include "kernels/linear_mma.h"
#include "kernels/load4.h"
#include "kernels/params/linear.h"

template <typename T, typename W>
struct LinearFew {
  enum { kThreads = kLinearThreads };
  typedef typename LinearFewBody<T, W>::Smem Smem;
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const float* norm,
                     DEVICE const float* residual) {
    LinearFewBody<T, W>::run(c, p, sm, out, x, w, bias, norm, residual, false, (DEVICE const int*)bias);
  }
};

template <typename T>
struct LinearAnyFew {
  enum { kThreads = kLinearAnyThreads };
  typedef typename LinearAnyFewBody<T>::Smem Smem;
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const float* norm,
                     DEVICE const float* residual) {
    LinearAnyFewBody<T>::run(c, p, sm, out, x, w, bias, norm, residual, false, (DEVICE const int*)bias);
  }
};

template <typename T, typename W>
struct LinearMany {
  enum { kThreads = kLinearThreads };
  typedef typename LinearManyBody<T, W>::Smem Smem;
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const float* norm,
                     DEVICE const float* residual) {
    LinearManyBody<T, W>::run(c, p, sm, out, x, w, bias, residual, false, (DEVICE const int*)bias);
  }
};

struct LinearFloat {
  enum { kThreads = kLinearThreads };
  typedef LinearFloatBody::Smem Smem;
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const float* norm,
                     DEVICE const float* residual) {
    LinearFloatBody::run(c, p, sm, out, x, w, bias, norm, residual, false, (DEVICE const int*)bias);
  }
};

// Applies the epilogue (bias, gate or residual) to sums that another kernel computed, four neighbouring columns per
// thread, or eight with plain_silu. Grid: (rows, columns / 512), or (rows, columns / 1024).
template <typename T>
struct LinearFinish {
  enum { kThreads = kLinearThreads };
  typedef NoSmem Smem;
  static FN uint2 gated(uint2 gates, uint2 others) {
    const float4 gate = floats_of<T>(gates), with = floats_of<T>(others);
    return bits_of<T>(make_float4(q_silu(gate.x) * with.x, q_silu(gate.y) * with.y, q_silu(gate.z) * with.z,
                                  q_silu(gate.w) * with.w));
  }
  static FN void run(Ctx c, CONSTANT const LinearFinishParams& p, TGROUP Smem& sm, DEVICE uchar* out,
                     DEVICE const uchar* y, DEVICE const float* bias, DEVICE const float* residual) {
    const int columns = p.last.columns;
    const i64 row = c.tgx;
    DEVICE const T* sums = (DEVICE const T*)y + row * p.y_stride;
    if (p.plain_silu != 0) {  // the most usual case, in short code
      const int at = (int)(c.tgy * kThreads + c.tid) * 8;
      if (at >= columns) return;
      const uint4 gate = *(DEVICE const uint4*)(sums + at), with = *(DEVICE const uint4*)(sums + columns + at);
      const uint2 low = gated(make_uint2(gate.x, gate.y), make_uint2(with.x, with.y));
      const uint2 high = gated(make_uint2(gate.z, gate.w), make_uint2(with.z, with.w));
      *(DEVICE uint4*)((DEVICE T*)out + row * p.last.out_stride + at) = make_uint4(low.x, low.y, high.x, high.y);
      return;
    }
    const int first = (int)(c.tgy * kThreads + c.tid) * 4;
    if (first >= columns) return;
    float4 v, up = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (p.last.epilogue == kLinearStoreF32) {
      v = row_load4((DEVICE const float*)y + row * p.y_stride, first, columns, p.aligned);
    } else {
      v = row_load4(sums, first, columns, p.aligned);
      if (p.last.epilogue == kLinearGated) up = row_load4(sums + columns, first, columns, p.aligned);
    }
    const float acc[4] = {v.x, v.y, v.z, v.w}, others[4] = {up.x, up.y, up.z, up.w};
    UNROLL for (int i = 0; i < 4; i++) {
      const int n = first + i;
      if (n < columns && p.last.epilogue == kLinearGated) {
        linear_store_gated<T>(p.last, out, row, n, acc[i], others[i], bias);
      } else if (n < columns) {
        linear_store<T>(p.last, out, row, n, acc[i], bias, residual);
      }
    }
  }
};

// The weight has the type of the activations, or ("any") any other type.
typedef LinearFew<half, LinearPlain<half> > LinearFew_f16;
typedef LinearFew<bfloat, LinearPlain<bfloat> > LinearFew_bf16;
typedef LinearAnyFew<half> LinearFew_f16_any;
typedef LinearAnyFew<bfloat> LinearFew_bf16_any;
typedef LinearMany<half, LinearPlain<half> > LinearMany_f16;
typedef LinearMany<bfloat, LinearPlain<bfloat> > LinearMany_bf16;
typedef LinearMany<half, LinearAny<half> > LinearMany_f16_any;
typedef LinearMany<bfloat, LinearAny<bfloat> > LinearMany_bf16_any;
#define LINEAR_KERNEL(name, Body) \
  KERNEL_EARLY(name, Body, LinearParams, uchar, const uchar, const uchar, const float, const float, const float)
LINEAR_KERNEL(linear_f16_few, LinearFew_f16)
LINEAR_KERNEL(linear_bf16_few, LinearFew_bf16)
LINEAR_KERNEL(linear_f16_any_few, LinearFew_f16_any)
LINEAR_KERNEL(linear_bf16_any_few, LinearFew_bf16_any)
LINEAR_KERNEL(linear_f16_many, LinearMany_f16)
LINEAR_KERNEL(linear_bf16_many, LinearMany_bf16)
LINEAR_KERNEL(linear_f16_any_many, LinearMany_f16_any)
LINEAR_KERNEL(linear_bf16_any_many, LinearMany_bf16_any)
LINEAR_KERNEL(linear_f32_any, LinearFloat)
KERNEL(linear_finish_f16, LinearFinish<half>, LinearFinishParams, uchar, const uchar, const float, const float)
KERNEL(linear_finish_bf16, LinearFinish<bfloat>, LinearFinishParams, uchar, const uchar, const float, const float)
