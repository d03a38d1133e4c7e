// SPDX-License-Identifier: Apache-2.0
// The dialect for the lint: clang's C++ for OpenCL has Metal's address spaces, so it rejects what Metal would reject.
//
// Nothing here is ever run. Functions are only declared, unless a template needs a body.
#pragma once

#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define DEVICE __global
#define CONSTANT __constant
#define TGROUP __local
#define THREAD __private
#define FN inline
#define CTABLE __constant constexpr
#define UNROLL
#define ROLLED

void quire_lint_barrier();
#define TG_BARRIER() quire_lint_barrier()
#define SG_BARRIER() quire_lint_barrier()
#define GRID_WAIT() (void)0

enum bfloat : ushort {};  // a scalar, so that copies need no implicit members

FN float2 make_float2(float x, float y) {
  return (float2)(x, y);
}
FN float4 make_float4(float x, float y, float z, float w) {
  return (float4)(x, y, z, w);
}
FN uint2 make_uint2(uint x, uint y) {
  return (uint2)(x, y);
}
FN uint4 make_uint4(uint x, uint y, uint z, uint w) {
  return (uint4)(x, y, z, w);
}

float abs(float x);  // OpenCL's is for integers only; as_uint, as_int and as_float are built in

FN float to_f(float x) {
  return x;
}
FN float to_f(half x) {
  return (float)x;
}
FN float to_f(bfloat x) {
  return as_float((uint)x << 16);
}
template <typename T>
T to(float x);
template <typename T>
T from_bits16(ushort x);
ushort to_bits16(half x);
ushort to_bits16(bfloat x);

float simd_sum(float v);
int simd_sum(int v);
uint simd_sum(uint v);
float simd_max(float v);
int simd_max(int v);
uint simd_max(uint v);
float simd_min(float v);
int simd_min(int v);
uint simd_min(uint v);
float simd_shuffle(float v, uint lane);
int simd_shuffle(int v, uint lane);
uint simd_shuffle(uint v, uint lane);
float simd_shuffle_xor(float v, uint mask);
int simd_shuffle_xor(int v, uint mask);
uint simd_shuffle_xor(uint v, uint mask);
bool simd_any(bool v);
bool simd_all(bool v);

#define QUIRE_PARAMETER(A, i) __global A* a##i
#define QUIRE_ARGUMENT(A, i) a##i
#define QUIRE_ENTRY(name, Body, Params, start, parameters, arguments, count) \
  __kernel void name(__constant Params* p, QUIRE_UNWRAP parameters) {        \
    __local Body::Smem sm;                                                   \
    Ctx c = {0, 0, 0, 0, 0, (uint)(Body::kThreads)};                         \
    Body::run(c, *p, sm, QUIRE_UNWRAP arguments);                            \
  }
