// SPDX-License-Identifier: Apache-2.0
// How codes of quantised weights become values of T (sm_90a). No kernels here.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/linear_weight.h"
#include "kernels/params/hopper_quantised.h"

// Selects four of the eight bytes of a and b by nibbles; a nibble of 8 or more gives the sign of that byte, eight
// times.
HOPPER_FN uint hopper_bytes(uint a, uint b, uint nibbles) {
  uint r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(nibbles));
  return r;
}

// Looks up four entries of a table of 16 bytes, by the four nibbles in the low half of `codes`.
HOPPER_FN uint hopper_look_up(const uint* values, uint codes) {
  const uint upper = codes & 0x8888u, index = codes & 0x7777u;
  // Nibble 9 gives the sign of byte 1, nibble 0 gives byte 0.
  const uint mask = hopper_bytes(0x00008000u, 0, upper | upper >> 3);
  return (hopper_bytes(values[0], values[1], index) & ~mask) | (hopper_bytes(values[2], values[3], index) & mask);
}

// A value that is the same in all lanes, and that the compiler will not recompute where it is used, which would delay a
// chain.
HOPPER_FN uint hopper_kept(uint x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

// The parts of a piece in shared memory.
struct HopperRawChunk {
  const uchar *low, *high, *heads, *subs;
};

// Scale and minimum of step 2 * pair, or (`second`) of the one after it. `head`: the number of the group in the piece.
template <int Scheme, int SubShift>
HOPPER_FN WeightScale hopper_scale(const HopperRawChunk& chunk, int pair, int second, int head, int r) {
  WeightParams w = {};
  w.scheme = Scheme;
  WeightRaw raw;
  raw.head = raw.second = raw.sub = 0;
  if (Scheme == kSchemeScale) raw.head = ((const ushort*)chunk.heads)[pair * 16 + r];
  if (Scheme == kSchemeScaleMin) raw.head = ((const uint*)chunk.heads)[pair * 16 + r];
  if (Scheme == kSchemeExponent) raw.head = chunk.heads[pair * 16 + r];
  if (Scheme == kSchemeGroup) {
    const uint2 v = ((const uint2*)chunk.heads)[head * 16 + r];
    raw.head = v.x;
    raw.second = v.y;
  }
  if (Scheme == kSchemeE4M3) raw.head = ((const uint*)chunk.heads)[head * 16 + r];
  if (Scheme == kSchemeSubScale) raw.head = ((const ushort*)chunk.heads)[r];
  if (Scheme == kSchemeSuperMin || Scheme == kSchemeSubScaleMin) raw.head = ((const uint*)chunk.heads)[r];
  if (Scheme == kSchemeSuperMin) raw.sub = ((const ushort*)chunk.subs)[pair * 16 + r];
  if (Scheme == kSchemeSubScaleMin) raw.sub = chunk.subs[(pair * 2 + second) * 16 + r];
  if (Scheme == kSchemeSubScale) raw.sub = chunk.subs[((pair * 2 + second) >> SubShift) * 16 + r];
  WeightScale scale = weight_scale(w, raw);
  // Adding -0 changes nothing, so every value is one fma.
  if (!scale.has_minimum) scale.minimum = -0.0f;
  return scale;
}

// Whether s * (code - offset) may be one fma of a code that stands in higher bits of 2^23, because everything in it is
// exact: (2^7 + offset) * s, or (2^15 + offset) * s for codes of eight bits.
template <int Low, int High, bool Table, int Scheme>
struct HopperOffsetExact {
  static constexpr bool value = Scheme == kSchemeScale || (Scheme == kSchemeSubScale && !Table && Low + High < 8);
};
// Two neighbouring fp8 numbers, in the low half of `codes`, as floats: every one of them is exact in fp16.
HOPPER_FN float2 hopper_e4m3(uint codes) {
  uint halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((ushort)codes));
  return __half22float2(*(const __half2*)&halves);
}
// Two bf16 as T.
template <typename T>
HOPPER_FN uint hopper_from_bf16(uint x) {
  return hopper_pack<T>(as_float(x << 16), as_float(x & 0xffff0000u));
}
template <>
__device__ __forceinline__ uint hopper_from_bf16<bfloat>(uint x) {
  return x;
}
// MXFP4 as bfloat, where nothing is rounded: a code is the index of a bfloat, which is multiplied with
// the block's power of two, here twice. `exponent`: the byte of the file, whose scale is 2^(exponent - 128), or 0 for 0
// and 1.
HOPPER_FN uint hopper_fp4_scale(uint exponent) {
  return (exponent == 0 ? 0u : exponent - 1) * (0x0080u | 0x00800000u);
}
// The nibbles of the low half of `codes`: 0 and 2 become one pair, 1 and 3 the other.
HOPPER_FN void hopper_fp4_pairs(uint codes, uint scale, uint& even, uint& odd) {
  const uint upper = codes & 0x8888u, index = codes & 0x7777u;
  // High and low bytes of 0, 1, 2, 3, 4, 6, 8 and 12 as bfloat; nibble 9 gives the sign of byte 1, eight times.
  const uint high =
      hopper_bytes(0x40403f00u, 0x41414040u, index) | (hopper_bytes(0x00008000u, 0, upper | upper >> 3) & 0x80808080u);
  const uint low = hopper_bytes(0x40008000u, 0x4000c080u, index);
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(even) : "r"(hopper_bytes(low, high, 0x6240)), "r"(scale));
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(odd) : "r"(hopper_bytes(low, high, 0x7351)), "r"(scale));
}
template <typename A, typename B>
struct HopperSame {
  static constexpr bool value = false;
};
template <typename A>
struct HopperSame<A, A> {
  static constexpr bool value = true;
};
