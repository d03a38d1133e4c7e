// SPDX-License-Identifier: Apache-2.0
// As much of Metal's standard library as the dialect's Metal branch uses, on the emulator: flat texts run with it.
//
// msl_to_host.py turns a flat text into a C++ file that includes this one first. Types are strict, as Metal's are:
// 16-bit floats convert only where the text says so, vectors have constructors and no arithmetic. The keywords for
// address spaces become nothing, so that nothing of the standard library may be included after this file.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/half.h"
#include "kernels/compat/emulator_calls.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

namespace metal {

using std::abs;
using std::floor;
using std::fma;
using std::rint;
using std::sqrt;

struct half {
  ushort bits;
  half() = default;
  explicit half(float f) : bits(quire::float_to_fp16(f)) {}
  explicit operator float() const { return quire::fp16_to_float(bits); }
};
struct bfloat {
  ushort bits;
  bfloat() = default;
  explicit bfloat(float f) : bits(quire::float_to_bf16(f)) {}
  explicit operator float() const { return quire::bf16_to_float(bits); }
};

template <typename T>
struct alignas(2 * sizeof(T)) Two {
  T x, y;
  Two() = default;
  Two(T x, T y) : x(x), y(y) {}
  explicit Two(T both) : x(both), y(both) {}
};
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T x, y, z, w;
  Four() = default;
  Four(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
};
typedef Two<float> float2;
typedef Four<float> float4;
typedef Two<uint> uint2;
typedef Four<uint> uint4;
typedef Two<ulong> ulong2;
struct uint3 {
  uint x, y, z;
};

template <typename To, typename From>
To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type between sizes");
  To to;
  std::memcpy(static_cast<void*>(&to), &from, sizeof(To));
  return to;
}

inline float max(float a, float b) {
  return std::fmax(a, b);
}
inline float min(float a, float b) {
  return std::fmin(a, b);
}
inline int max(int a, int b) {
  return a < b ? b : a;
}
inline int min(int a, int b) {
  return b < a ? b : a;
}
inline uint max(uint a, uint b) {
  return a < b ? b : a;
}
inline uint min(uint a, uint b) {
  return b < a ? b : a;
}
inline long max(long a, long b) {
  return a < b ? b : a;
}
inline long min(long a, long b) {
  return b < a ? b : a;
}

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<int>(a) | static_cast<int>(b));
}

#define QUIRE_MSL_SITE(what) quire::emulator::Site site = quire::emulator::Site::here(what)

inline void threadgroup_barrier(mem_flags, QUIRE_MSL_SITE("threadgroup_barrier")) {
  quire::emulator::threadgroup_barrier(site);
}
inline void simdgroup_barrier(mem_flags, QUIRE_MSL_SITE("simdgroup_barrier")) {
  quire::emulator::simdgroup_barrier(site);
}

template <typename T>
T simd_shuffle(T v, ushort lane, QUIRE_MSL_SITE("simd_shuffle")) {
  return quire::emulator::exchange(&v, sizeof v, site).template of<T>(lane);
}
template <typename T>
T simd_shuffle_xor(T v, ushort mask, QUIRE_MSL_SITE("simd_shuffle_xor")) {
  const quire::emulator::Exchanged all = quire::emulator::exchange(&v, sizeof v, site);
  return all.template of<T>(all.lane ^ mask);
}
// simd_sum is left out: the dialect has its own, with an order.
template <typename T>
T simd_max(T v, QUIRE_MSL_SITE("simd_max")) {
  return quire::emulator::reduce(v, site, [](T a, T b) { return max(a, b); });
}
template <typename T>
T simd_min(T v, QUIRE_MSL_SITE("simd_min")) {
  return quire::emulator::reduce(v, site, [](T a, T b) { return min(a, b); });
}
inline bool simd_any(bool v, QUIRE_MSL_SITE("simd_any")) {
  return quire::emulator::reduce(v ? 1 : 0, site, [](int a, int b) { return a | b; }) != 0;
}
inline bool simd_all(bool v, QUIRE_MSL_SITE("simd_all")) {
  return quire::emulator::reduce(v ? 1 : 0, site, [](int a, int b) { return a & b; }) != 0;
}

// An 8x8 matrix over the 32 lanes. Each has two neighbours of a row: lane bits 1, 2 and 4 are the row, 0 and 3 the
// pair.
inline int matrix_row(uint lane) {
  return static_cast<int>((lane >> 1 & 3) | (lane >> 2 & 4));
}
inline int matrix_column(uint lane) {
  return static_cast<int>((lane & 1) * 2 + (lane >> 3 & 1) * 4);
}
template <typename T>
struct Pair {
  T elements[2];
  T& operator[](int i) { return elements[i]; }
  const T& operator[](int i) const { return elements[i]; }
};
template <typename T, int rows, int columns>
struct simdgroup_matrix {
  static_assert(rows == 8 && columns == 8, "Metal has 8x8 matrices alone");
  Pair<T> held;
  Pair<T>& thread_elements() { return held; }
  const Pair<T>& thread_elements() const { return held; }
};
template <typename T, int rows, int columns>
simdgroup_matrix<T, rows, columns> make_filled_simdgroup_matrix(T value) {
  return {{{value, value}}};
}
template <typename T>
void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* p, ulong per_row = 8, ulong2 origin = ulong2(0),
                    bool transpose = false, QUIRE_MSL_SITE("simdgroup_load")) {
  quire::emulator::converge(site);
  const uint lane = quire::emulator::position().lane;
  const T* corner = p + origin.y * per_row + origin.x;
  for (int i = 0; i < 2; i++) {
    const ulong row = static_cast<ulong>(matrix_row(lane)), column = static_cast<ulong>(matrix_column(lane) + i);
    m.held[i] = transpose ? corner[column * per_row + row] : corner[row * per_row + column];
  }
}
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c,
                                   QUIRE_MSL_SITE("simdgroup_multiply_accumulate")) {
  struct Operands {
    float a[2], b[2], c[2];
  };
  Operands mine;
  for (int i = 0; i < 2; i++) {
    mine.a[i] = static_cast<float>(a.held[i]);
    mine.b[i] = static_cast<float>(b.held[i]);
    mine.c[i] = static_cast<float>(c.held[i]);
  }
  const quire::emulator::Exchanged all = quire::emulator::exchange(&mine, sizeof mine, site);
  float* sums = reinterpret_cast<float*>(all.result);  // [8][8]
  if (all.first) {
    float left[8][8], right[8][8];
    for (uint lane = 0; lane < 32; lane++) {
      const Operands theirs = all.of<Operands>(lane);
      for (int i = 0; i < 2; i++) {
        left[matrix_row(lane)][matrix_column(lane) + i] = theirs.a[i];
        right[matrix_row(lane)][matrix_column(lane) + i] = theirs.b[i];
        sums[matrix_row(lane) * 8 + matrix_column(lane) + i] = theirs.c[i];
      }
    }
    for (int row = 0; row < 8; row++) {
      for (int k = 0; k < 8; k++) {
        for (int column = 0; column < 8; column++) sums[row * 8 + column] += left[row][k] * right[k][column];
      }
    }
  }
  for (int i = 0; i < 2; i++) d.held[i] = D(sums[matrix_row(all.lane) * 8 + matrix_column(all.lane) + i]);
}

}  // namespace metal

// Metal's keywords. Last: they are words of the standard library too.
#define device
#define constant
#define thread
#define threadgroup
