// SPDX-License-Identifier: Apache-2.0
// The dialect on Metal (MSL 3.1 and up). Kept small and simple, because no Metal compiler checks it in CI.
#pragma once

#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;
// The safe mode alone still contracts multiplications and additions within a statement.
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#define DEVICE device
#define CONSTANT constant
#define TGROUP threadgroup
#define THREAD thread
#define FN inline
#define CTABLE constant constexpr
#define UNROLL _Pragma("clang loop unroll(full)")
#define ROLLED _Pragma("clang loop unroll(disable)")

#define TG_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device)
#define SG_BARRIER() simdgroup_barrier(mem_flags::mem_threadgroup)
#define GRID_WAIT() (void)0  // launches of one encoder run one after another

FN float2 make_float2(float x, float y) {
  return float2(x, y);
}
FN float4 make_float4(float x, float y, float z, float w) {
  return float4(x, y, z, w);
}
FN uint2 make_uint2(uint x, uint y) {
  return uint2(x, y);
}
FN uint4 make_uint4(uint x, uint y, uint z, uint w) {
  return uint4(x, y, z, w);
}

FN uint as_uint(float x) {
  return as_type<uint>(x);
}
FN int as_int(float x) {
  return as_type<int>(x);
}
FN float as_float(uint x) {
  return as_type<float>(x);
}
FN float as_float(int x) {
  return as_type<float>(x);
}

template <typename T>
FN float to_f(T x) {
  return float(x);
}
template <typename T>
FN T to(float x) {
  return T(x);
}
template <typename T>
FN T from_bits16(ushort x) {
  return as_type<T>(x);
}
template <typename T>
FN ushort to_bits16(T x) {
  return as_type<ushort>(x);
}

// Metal's own simd_sum may add in any order; the dialect's is the xor butterfly. For the other operations no order
// matters.
template <typename T>
FN T quire_simd_sum(T v) {
  v += simd_shuffle_xor(v, ushort(16));
  v += simd_shuffle_xor(v, ushort(8));
  v += simd_shuffle_xor(v, ushort(4));
  v += simd_shuffle_xor(v, ushort(2));
  v += simd_shuffle_xor(v, ushort(1));
  return v;
}
#define simd_sum quire_simd_sum

#define QUIRE_PARAMETER(A, i) device A* a##i [[buffer(i)]]
#define QUIRE_ARGUMENT(A, i) a##i
#define QUIRE_ENTRY(name, Body, Params, start, parameters, arguments, count)                                \
  [[kernel, max_total_threads_per_threadgroup(Body::kThreads)]] void name(                                  \
      constant Params& p [[buffer(0)]], QUIRE_UNWRAP parameters, uint3 tg [[threadgroup_position_in_grid]], \
      uint tid [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],                 \
      uint lane [[thread_index_in_simdgroup]]) {                                                            \
    threadgroup Body::Smem sm;                                                                              \
    Ctx c = {tg.x, tg.y, tg.z, tid, sg, lane};                                                              \
    Body::run(c, p, sm, QUIRE_UNWRAP arguments);                                                            \
  }
