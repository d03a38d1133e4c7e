// SPDX-License-Identifier: Apache-2.0
// glu, activation, residual_add, scale and soft_cap; the contracts are in ops/activation.h. Arithmetic is in floats,
// rounded to the output's type at the end.
//
// A thread reads its elements before it writes them and touches no others, so an output may be one of the inputs.
#pragma once

#include "kernels/activation_functions.h"
#include "kernels/compat/dialect.h"
#include "kernels/load4.h"
#include "kernels/params/activation.h"

// The four columns that this thread computes.
struct RowPlace {
  i64 row;
  int column;
};
FN bool row_place(Ctx c, CONSTANT const RowsParams& p, THREAD RowPlace& at) {
  const uint index = c.tgx * (uint)kElementThreads + c.tid, row = index / (uint)p.fours;
  if (row >= (uint)p.rows) return false;
  at.row = (i64)row;
  at.column = (int)(index - row * (uint)p.fours) * 4;
  return true;
}

template <typename T>
struct Glu {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const RowsParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* gate,
                     DEVICE const T* up) {
    RowPlace at;
    if (!row_place(c, p, at)) return;
    const float4 g = row_load4(gate + at.row * p.a_stride, at.column, p.cols, p.aligned);
    const float4 u = row_load4(up + at.row * p.b_stride, at.column, p.cols, p.aligned);
    const float4 y =
        make_float4(activate_glu(p.activation, p.factor, g.x, u.x), activate_glu(p.activation, p.factor, g.y, u.y),
                    activate_glu(p.activation, p.factor, g.z, u.z), activate_glu(p.activation, p.factor, g.w, u.w));
    row_store4(out + at.row * p.out_stride, at.column, p.cols, p.aligned, y);
  }
};

template <typename T>
struct Activate {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const RowsParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* x) {
    RowPlace at;
    if (!row_place(c, p, at)) return;
    const float4 v = row_load4(x + at.row * p.a_stride, at.column, p.cols, p.aligned);
    const float4 y = make_float4(activate(p.activation, v.x), activate(p.activation, v.y), activate(p.activation, v.z),
                                 activate(p.activation, v.w));
    row_store4(out + at.row * p.out_stride, at.column, p.cols, p.aligned, y);
  }
};

template <typename X, typename R>
struct ResidualAdd {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const RowsParams& p, TGROUP Smem& sm, DEVICE R* out, DEVICE const X* x,
                     DEVICE const R* residual) {
    RowPlace at;
    if (!row_place(c, p, at)) return;
    const float4 v = row_load4(x + at.row * p.a_stride, at.column, p.cols, p.aligned);
    const float4 r = row_load4(residual + at.row * p.b_stride, at.column, p.cols, p.aligned);
    const float4 y =
        make_float4(fma(v.x, p.factor, r.x), fma(v.y, p.factor, r.y), fma(v.z, p.factor, r.z), fma(v.w, p.factor, r.w));
    row_store4(out + at.row * p.out_stride, at.column, p.cols, p.aligned, y);
  }
};

template <typename X, typename T>
struct Scale {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const RowsParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const X* x,
                     DEVICE const float* rows) {
    RowPlace at;
    if (!row_place(c, p, at)) return;
    const float factor = p.by_row != 0 ? p.factor * rows[at.row] : p.factor;
    const float4 v = row_load4(x + at.row * p.a_stride, at.column, p.cols, p.aligned);
    row_store4(out + at.row * p.out_stride, at.column, p.cols, p.aligned,
               make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor));
  }
};

template <typename T>
struct SoftCap {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const RowsParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* x) {
    RowPlace at;
    if (!row_place(c, p, at)) return;
    const float cap = p.factor;
    const float4 v = row_load4(x + at.row * p.a_stride, at.column, p.cols, p.aligned);
    row_store4(out + at.row * p.out_stride, at.column, p.cols, p.aligned,
               make_float4(cap * q_tanh(v.x / cap), cap * q_tanh(v.y / cap), cap * q_tanh(v.z / cap),
                           cap * q_tanh(v.w / cap)));
  }
};

KERNEL(glu_f32, Glu<float>, RowsParams, float, const float, const float)
KERNEL(glu_f16, Glu<half>, RowsParams, half, const half, const half)
KERNEL(glu_bf16, Glu<bfloat>, RowsParams, bfloat, const bfloat, const bfloat)

KERNEL(activation_f32, Activate<float>, RowsParams, float, const float)
KERNEL(activation_f16, Activate<half>, RowsParams, half, const half)
KERNEL(activation_bf16, Activate<bfloat>, RowsParams, bfloat, const bfloat)

// Types: first x, then the residual and the output.
typedef ResidualAdd<float, float> ResidualAdd_f32_f32;
typedef ResidualAdd<half, float> ResidualAdd_f16_f32;
typedef ResidualAdd<bfloat, float> ResidualAdd_bf16_f32;
typedef ResidualAdd<half, half> ResidualAdd_f16_f16;
typedef ResidualAdd<bfloat, bfloat> ResidualAdd_bf16_bf16;
KERNEL(residual_add_f32_f32, ResidualAdd_f32_f32, RowsParams, float, const float, const float)
KERNEL(residual_add_f16_f32, ResidualAdd_f16_f32, RowsParams, float, const half, const float)
KERNEL(residual_add_bf16_f32, ResidualAdd_bf16_f32, RowsParams, float, const bfloat, const float)
KERNEL(residual_add_f16_f16, ResidualAdd_f16_f16, RowsParams, half, const half, const half)
KERNEL(residual_add_bf16_bf16, ResidualAdd_bf16_bf16, RowsParams, bfloat, const bfloat, const bfloat)

// With a factor of 1 these also convert from one type to another.
typedef Scale<float, float> Scale_f32_f32;
typedef Scale<float, half> Scale_f32_f16;
typedef Scale<float, bfloat> Scale_f32_bf16;
typedef Scale<half, half> Scale_f16_f16;
typedef Scale<half, float> Scale_f16_f32;
typedef Scale<bfloat, bfloat> Scale_bf16_bf16;
typedef Scale<bfloat, float> Scale_bf16_f32;
KERNEL(scale_f32_f32, Scale_f32_f32, RowsParams, float, const float, const float)
KERNEL(scale_f32_f16, Scale_f32_f16, RowsParams, half, const float, const float)
KERNEL(scale_f32_bf16, Scale_f32_bf16, RowsParams, bfloat, const float, const float)
KERNEL(scale_f16_f16, Scale_f16_f16, RowsParams, half, const half, const float)
KERNEL(scale_f16_f32, Scale_f16_f32, RowsParams, float, const half, const float)
KERNEL(scale_bf16_bf16, Scale_bf16_bf16, RowsParams, bfloat, const bfloat, const float)
KERNEL(scale_bf16_f32, Scale_bf16_f32, RowsParams, float, const bfloat, const float)

KERNEL(soft_cap_f32, SoftCap<float>, RowsParams, float, const float)
KERNEL(soft_cap_f16, SoftCap<half>, RowsParams, half, const half)
KERNEL(soft_cap_bf16, SoftCap<bfloat>, RowsParams, bfloat, const bfloat)
