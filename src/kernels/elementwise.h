// SPDX-License-Identifier: Apache-2.0
// glu, activation, residual_add, scale, soft_cap, rope and gather_columns; the contracts are in ops/activation.h,
// ops/rope.h and ops/gather.h. Arithmetic is in floats, rounded to the output's type at the end.
//
// A thread reads its elements before it writes them and touches no others, so an output may be one of the inputs.
#pragma once

#include "kernels/activate.h"
#include "kernels/compat/dialect.h"
#include "kernels/params/elementwise.h"
#include "kernels/rotate.h"
#include "kernels/rows.h"

// The four columns of this thread.
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

template <typename T>
struct Rope {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const RopeParams& p, TGROUP Smem& sm, DEVICE T* x, DEVICE const float* cosines,
                     DEVICE const float* sines, DEVICE const int* positions) {
    const uint index = c.tgx * (uint)kElementThreads + c.tid, of_row = (uint)(p.heads * p.half_dim);
    const i64 row = (i64)(index / of_row);
    if (row >= p.rows) return;
    const int in_row = (int)(index % of_row);
    const int head = in_row / p.half_dim, pair = in_row - head * p.half_dim;
    const i64 angle = (i64)positions[row] * p.half_dim + pair;
    DEVICE T* from = x + row * p.stride + head * p.head_dim + p.offset;
    const int first = rotate_first(pair, p.interleaved), second = rotate_second(pair, p.half_dim, p.interleaved);
    const float2 y = rotate_pair(to_f(from[first]), to_f(from[second]), cosines[angle], sines[angle]);
    from[first] = to<T>(y.x);
    from[second] = to<T>(y.y);
  }
};

template <typename T>
struct GatherColumns {
  enum { kThreads = kElementThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const GatherColumnsParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* x,
                     DEVICE const int* columns) {
    const uint index = c.tgx * (uint)kElementThreads + c.tid;
    const i64 row = (i64)(index / (uint)p.cols);
    if (row >= p.rows) return;
    const int column = (int)(index % (uint)p.cols);
    out[row * p.out_stride + column] = x[row * p.x_stride + columns[column]];
  }
};

KERNEL(glu_f32, Glu<float>, RowsParams, float, const float, const float)
KERNEL(glu_f16, Glu<half>, RowsParams, half, const half, const half)
KERNEL(glu_bf16, Glu<bfloat>, RowsParams, bfloat, const bfloat, const bfloat)

KERNEL(activation_f32, Activate<float>, RowsParams, float, const float)
KERNEL(activation_f16, Activate<half>, RowsParams, half, const half)
KERNEL(activation_bf16, Activate<bfloat>, RowsParams, bfloat, const bfloat)

// x, then the residual and the output.
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

// Also the cast from one type to another, with a factor of 1.
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

KERNEL(rope_f32, Rope<float>, RopeParams, float, const float, const float, const int)
KERNEL(rope_f16, Rope<half>, RopeParams, half, const float, const float, const int)
KERNEL(rope_bf16, Rope<bfloat>, RopeParams, bfloat, const float, const float, const int)

KERNEL(gather_columns_f32, GatherColumns<float>, GatherColumnsParams, float, const float, const int)
KERNEL(gather_columns_f16, GatherColumns<half>, GatherColumnsParams, half, const half, const int)
KERNEL(gather_columns_bf16, GatherColumns<bfloat>, GatherColumnsParams, bfloat, const bfloat, const int)
