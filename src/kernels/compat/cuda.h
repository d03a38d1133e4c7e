// SPDX-License-Identifier: Apache-2.0
// The dialect on CUDA (sm_80 and up). Instructions that need PTX are in cuda_ptx.h, which the emulator's shim replaces.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define DEVICE
#define CONSTANT
#define TGROUP
#define THREAD
#define FN __device__ __forceinline__
#define CTABLE static __constant__ constexpr
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")  // short code instead

typedef __nv_bfloat16 bfloat;  // half is already the name in cuda_fp16.h

#include "kernels/compat/cuda_ptx.h"

#define TG_BARRIER() __syncthreads()
#define SG_BARRIER() __syncwarp()
#define GRID_WAIT() ptx_grid_wait()

FN uint as_uint(float x) {
  return __float_as_uint(x);
}
FN int as_int(float x) {
  return __float_as_int(x);
}
FN float as_float(uint x) {
  return __uint_as_float(x);
}
FN float as_float(int x) {
  return __int_as_float(x);
}

FN float to_f(float x) {
  return x;
}
FN float to_f(half x) {
  return __half2float(x);
}
FN float to_f(bfloat x) {
  return __bfloat162float(x);
}
template <typename T>
FN T to(float x);
template <>
FN float to<float>(float x) {
  return x;
}
template <>
FN half to<half>(float x) {
  return __float2half_rn(x);
}
template <>
FN bfloat to<bfloat>(float x) {
  return __float2bfloat16_rn(x);
}
template <typename T>
FN T from_bits16(ushort x);
template <>
FN half from_bits16<half>(ushort x) {
  return __ushort_as_half(x);
}
template <>
FN bfloat from_bits16<bfloat>(ushort x) {
  return __ushort_as_bfloat16(x);
}
FN ushort to_bits16(half x) {
  return __half_as_ushort(x);
}
FN ushort to_bits16(bfloat x) {
  return __bfloat16_as_ushort(x);
}

template <typename T>
FN T simd_shuffle(T v, uint lane) {
  return __shfl_sync(0xffffffffu, v, lane);
}
template <typename T>
FN T simd_shuffle_xor(T v, uint mask) {
  return __shfl_xor_sync(0xffffffffu, v, mask);
}
template <typename T>
FN T simd_sum(T v) {
  UNROLL for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}
template <typename T>
FN T simd_max(T v) {
  UNROLL for (int mask = 16; mask > 0; mask >>= 1) v = max(v, __shfl_xor_sync(0xffffffffu, v, mask));
  return v;
}
template <typename T>
FN T simd_min(T v) {
  UNROLL for (int mask = 16; mask > 0; mask >>= 1) v = min(v, __shfl_xor_sync(0xffffffffu, v, mask));
  return v;
}
// Integers have an instruction for it.
FN uint simd_max(uint v) {
  return __reduce_max_sync(0xffffffffu, v);
}
FN int simd_min(int v) {
  return __reduce_min_sync(0xffffffffu, v);
}
FN bool simd_any(bool v) {
  return __any_sync(0xffffffffu, v) != 0;
}
FN bool simd_all(bool v) {
  return __all_sync(0xffffffffu, v) != 0;
}

// From sm_90 on launches may overlap (programmatic dependent launch): the next kernel may start at once, and waits for
// the end of this one itself.
// The threadgroups that should fit a multiprocessor together: Body::kResident where a body has it. The compiler then
// uses no more registers than that leaves.
template <typename Body>
constexpr int resident_groups() {
  if constexpr (requires { Body::kResident; }) {
    return Body::kResident;
  } else {
    return 1;
  }
}
#define QUIRE_PARAMETER(A, i) A* a##i
#define QUIRE_ARGUMENT(A, i) a##i
#define QUIRE_ENTRY(name, Body, Params, start, parameters, arguments, count)                       \
  extern "C" __global__ void __launch_bounds__(Body::kThreads, resident_groups<Body>())            \
      name(const __grid_constant__ Params p, QUIRE_UNWRAP parameters) {                            \
    __shared__ __align__(128) Body::Smem sm;                                                       \
    ptx_grid_release();                                                                            \
    start;                                                                                         \
    Ctx c = {blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.x >> 5, threadIdx.x & 31}; \
    Body::run(c, p, sm, QUIRE_UNWRAP arguments);                                                   \
  }
