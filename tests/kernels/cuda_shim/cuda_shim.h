// SPDX-License-Identifier: Apache-2.0
// As much of CUDA's language as the dialect's CUDA branch uses, on the emulator.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "base/half.h"
#include "kernels/compat/emulator_calls.h"

#define QUIRE_CUDA_SHIM 1
#define __device__
#define __forceinline__ inline
#define __constant__

struct __half {
  unsigned short bits;
};
struct __nv_bfloat16 {
  unsigned short bits;
};
typedef __half half;
inline float __half2float(__half h) {
  return quire::fp16_to_float(h.bits);
}
inline float __bfloat162float(__nv_bfloat16 h) {
  return quire::bf16_to_float(h.bits);
}
inline __half __float2half_rn(float f) {
  return {quire::float_to_fp16(f)};
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  return {quire::float_to_bf16(f)};
}
inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return {bits};
}
inline unsigned short __half_as_ushort(__half h) {
  return h.bits;
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) {
  return h.bits;
}

template <typename To, typename From>
To quire_reinterpret(From from) {
  To to;
  static_assert(sizeof(To) == sizeof(From));
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
inline unsigned __float_as_uint(float f) {
  return quire_reinterpret<unsigned>(f);
}
inline int __float_as_int(float f) {
  return quire_reinterpret<int>(f);
}
inline float __uint_as_float(unsigned u) {
  return quire_reinterpret<float>(u);
}
inline float __int_as_float(int i) {
  return quire_reinterpret<float>(i);
}

namespace cuda_branch {

using std::abs;
using std::floor;
using std::fma;
using std::rint;
using std::sqrt;
inline float max(float a, float b) {
  return std::fmax(a, b);
}
inline float min(float a, float b) {
  return std::fmin(a, b);
}
template <typename T>
requires std::is_integral_v<T> T max(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
requires std::is_integral_v<T> T min(T a, T b) {
  return b < a ? b : a;
}

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

#define QUIRE_CUDA_SITE(what) quire::emulator::Site site = quire::emulator::Site::here(what)
#define __syncthreads() quire::emulator::threadgroup_barrier(quire::emulator::Site::here("__syncthreads"))
#define __syncwarp() quire::emulator::simdgroup_barrier(quire::emulator::Site::here("__syncwarp"))

inline void check_mask(unsigned mask, quire::emulator::Site site) {
  quire::emulator::converge(mask == 0xffffffffu ? site : quire::emulator::Site{"a partial mask", site.file, -1});
}
template <typename T>
T __shfl_sync(unsigned mask, T v, int lane, QUIRE_CUDA_SITE("__shfl_sync")) {
  check_mask(mask, site);
  return quire::emulator::exchange(&v, sizeof v, site).template of<T>(static_cast<uint32_t>(lane));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T v, int with, QUIRE_CUDA_SITE("__shfl_xor_sync")) {
  check_mask(mask, site);
  const quire::emulator::Exchanged all = quire::emulator::exchange(&v, sizeof v, site);
  return all.template of<T>(all.lane ^ static_cast<uint32_t>(with));
}
inline int __any_sync(unsigned mask, int v, QUIRE_CUDA_SITE("__any_sync")) {
  check_mask(mask, site);
  return quire::emulator::reduce(v != 0 ? 1 : 0, site, [](int a, int b) { return a | b; });
}
inline int __all_sync(unsigned mask, int v, QUIRE_CUDA_SITE("__all_sync")) {
  check_mask(mask, site);
  return quire::emulator::reduce(v != 0 ? 1 : 0, site, [](int a, int b) { return a & b; });
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v, QUIRE_CUDA_SITE("__reduce_max_sync")) {
  check_mask(mask, site);
  return quire::emulator::reduce(v, site, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
inline int __reduce_min_sync(unsigned mask, int v, QUIRE_CUDA_SITE("__reduce_min_sync")) {
  check_mask(mask, site);
  return quire::emulator::reduce(v, site, [](int a, int b) { return a < b ? a : b; });
}

}  // namespace cuda_branch
