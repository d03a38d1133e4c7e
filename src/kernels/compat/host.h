// SPDX-License-Identifier: Apache-2.0
// The dialect on the host: plain C++ with the emulator's barriers and simd operations.
//
// The 16-bit types have no arithmetic and no implicit conversions, so that only to_f and to<T> compile.
#pragma once

#include <bit>
#include <cmath>
#include <cstdlib>
#include <type_traits>

#include "base/half.h"
#include "kernels/compat/emulator_calls.h"

#define DEVICE
#define CONSTANT
#define TGROUP
#define THREAD
#define FN inline
#define CTABLE static constexpr
#define UNROLL
#define ROLLED

#define TG_BARRIER() ::quire::emulator::threadgroup_barrier(::quire::emulator::Site::here("TG_BARRIER"))
#define SG_BARRIER() ::quire::emulator::simdgroup_barrier(::quire::emulator::Site::here("SG_BARRIER"))
#define GRID_WAIT() (void)0
#define QUIRE_SITE(what) ::quire::emulator::Site site = ::quire::emulator::Site::here(what)

using std::abs;
using std::floor;
using std::fma;
using std::rint;
using std::sqrt;

struct half {
  ushort bits;
};
struct bfloat {
  ushort bits;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint x, y;
};
struct alignas(16) uint4 {
  uint x, y, z, w;
};
FN float2 make_float2(float x, float y) {
  return {x, y};
}
FN float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
FN uint2 make_uint2(uint x, uint y) {
  return {x, y};
}
FN uint4 make_uint4(uint x, uint y, uint z, uint w) {
  return {x, y, z, w};
}

FN uint as_uint(float x) {
  return std::bit_cast<uint>(x);
}
FN int as_int(float x) {
  return std::bit_cast<int>(x);
}
FN float as_float(uint x) {
  return std::bit_cast<float>(x);
}
FN float as_float(int x) {
  return std::bit_cast<float>(x);
}

// Like fmaxf: of a NaN and a number, the number wins. Mixed types do not compile, as on Metal.
FN float max(float a, float b) {
  return a < b || a != a ? b : a;
}
FN float min(float a, float b) {
  return b < a || a != a ? b : a;
}
FN int max(int a, int b) {
  return a < b ? b : a;
}
FN int min(int a, int b) {
  return b < a ? b : a;
}
FN uint max(uint a, uint b) {
  return a < b ? b : a;
}
FN uint min(uint a, uint b) {
  return b < a ? b : a;
}
FN i64 max(i64 a, i64 b) {
  return a < b ? b : a;
}
FN i64 min(i64 a, i64 b) {
  return b < a ? b : a;
}

FN float to_f(float x) {
  return x;
}
FN float to_f(half x) {
  // base/half.h's function without branches, for the loops of the matrix tile: multiplying by 2^112 corrects the
  // exponent's bias.
  const uint magnitude = x.bits & 0x7fffu;
  const float finite = as_float(magnitude << 13) * 0x1p112f;
  const uint bits = magnitude >= 0x7c00u ? 0x7f800000u | magnitude << 13 : as_uint(finite);
  return as_float(bits | (x.bits & 0x8000u) << 16);
}
FN float to_f(bfloat x) {
  return as_float((uint)x.bits << 16);
}
template <typename T>
T to(float x);
template <>
inline float to<float>(float x) {
  return x;
}
template <>
inline half to<half>(float x) {
  return {quire::float_to_fp16(x)};
}
template <>
inline bfloat to<bfloat>(float x) {
  return {quire::float_to_bf16(x)};
}
template <typename T>
T from_bits16(ushort x) {
  return T{x};
}
template <typename T>
ushort to_bits16(T x) {
  return x.bits;
}

template <typename T>
T simd_shuffle(T v, uint lane, QUIRE_SITE("simd_shuffle")) {
  quire::emulator::check_simd_type<T>();
  return quire::emulator::exchange(&v, sizeof v, site).template of<T>(lane);
}
template <typename T>
T simd_shuffle_xor(T v, uint mask, QUIRE_SITE("simd_shuffle_xor")) {
  quire::emulator::check_simd_type<T>();
  const quire::emulator::Exchanged all = quire::emulator::exchange(&v, sizeof v, site);
  return all.template of<T>(all.lane ^ mask);
}
template <typename T>
T simd_sum(T v, QUIRE_SITE("simd_sum")) {
  return quire::emulator::reduce(v, site, [](T a, T b) { return a + b; });
}
template <typename T>
T simd_max(T v, QUIRE_SITE("simd_max")) {
  return quire::emulator::reduce(v, site, [](T a, T b) { return max(a, b); });
}
template <typename T>
T simd_min(T v, QUIRE_SITE("simd_min")) {
  return quire::emulator::reduce(v, site, [](T a, T b) { return min(a, b); });
}
FN bool simd_any(bool v, QUIRE_SITE("simd_any")) {
  return quire::emulator::reduce(v ? 1 : 0, site, [](int a, int b) { return a | b; }) != 0;
}
FN bool simd_all(bool v, QUIRE_SITE("simd_all")) {
  return quire::emulator::reduce(v ? 1 : 0, site, [](int a, int b) { return a & b; }) != 0;
}

// The kernels of this file; each KERNEL adds itself to the front. EMULATOR_KERNELS(file), after the kernels of
// src/kernels/<file>.h, defines the function that backend/emulator/kernel_table.cc calls.
namespace {
[[maybe_unused]] const ::quire::emulator::KernelRecord* quire_kernels_of_this_file = nullptr;
}
#define EMULATOR_KERNELS(file)              \
  namespace quire::emulator {               \
  const KernelRecord* kernels_of_##file();  \
  const KernelRecord* kernels_of_##file() { \
    return ::quire_kernels_of_this_file;    \
  }                                         \
  }

#define QUIRE_PARAMETER(A, i) A* a##i
#define QUIRE_ARGUMENT(A, i) static_cast<A*>(buffers[i - 1])
#define QUIRE_ENTRY(name, Body, Params, start, parameters, arguments, count)                                         \
  static_assert(sizeof(Body::Smem) <= 32768, "Metal has 32 KB of threadgroup memory");                               \
  static_assert(std::is_trivial_v<Body::Smem>, "threadgroup memory is plain data");                                  \
  static_assert(sizeof(Params) <= 4096 && std::is_trivially_copyable_v<Params>, "parameters are plain data");        \
  static_assert(Body::kThreads % 32 == 0 && Body::kThreads > 0 && Body::kThreads <= 1024, "whole simdgroups");       \
  static void name##_entry(const void* params, void* const* buffers, void* memory) {                                 \
    const ::quire::emulator::Position at = ::quire::emulator::position();                                            \
    Body::run(Ctx{at.tgx, at.tgy, at.tgz, at.tid, at.sg, at.lane}, *static_cast<const Params*>(params),              \
              *static_cast<Body::Smem*>(memory), QUIRE_UNWRAP arguments);                                            \
  }                                                                                                                  \
  static ::quire::emulator::KernelRecord name##_record = {#name, name##_entry,   sizeof(Params), sizeof(Body::Smem), \
                                                          count, Body::kThreads, nullptr};                           \
  [[maybe_unused]] static const bool name##_listed = [] {                                                            \
    name##_record.next = quire_kernels_of_this_file;                                                                 \
    quire_kernels_of_this_file = &name##_record;                                                                     \
    return true;                                                                                                     \
  }();
