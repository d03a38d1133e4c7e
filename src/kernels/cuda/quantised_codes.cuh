// SPDX-License-Identifier: Apache-2.0
// What the products of quantised weights share (linear_quantised.cuh, linear_quantised_few.cuh, sm_90a): how codes
// become values of T, how parts of a panel are requested, and how x is loaded or normalised. No kernels here.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/linear_weight.h"
#include "kernels/norm_sum.h"
#include "kernels/params/hopper_quantised.h"

// ---- from sixteen codes to T ----

// Selects four of the eight bytes of a and b by nibbles; a nibble of 8 or more gives the sign of that byte, eight
// times.
HOPPER_FN uint hopper_bytes(uint a, uint b, uint nibbles) {
  uint r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(nibbles));
  return r;
}

// Spreads the four 2-bit fields in the low byte of x to the low bits of four bytes.
HOPPER_FN uint hopper_spread_pairs(uint x) {
  const uint t = (x | x << 12) & 0x000f000fu;
  return (t | t << 6) & 0x03030303u;
}

// Looks up four entries of a table of 16 bytes, by the four nibbles in the low half of `codes`.
HOPPER_FN uint hopper_look_up(const uint* values, uint codes) {
  const uint upper = codes & 0x8888u, index = codes & 0x7777u;
  // Nibble 9 gives the sign of byte 1, nibble 0 gives byte 0.
  const uint mask = hopper_bytes(0x00008000u, 0, upper | upper >> 3);
  return (hopper_bytes(values[0], values[1], index) & ~mask) | (hopper_bytes(values[2], values[3], index) & mask);
}

// Unpacks a step: code 4 j + i goes to byte i of c[j]. The entries of a table are signed bytes; here they are offset by
// 128.
template <int Low, int High, bool Table>
HOPPER_FN void hopper_codes(const uint* values, const WeightRaw& raw, uint (&c)[4]) {
  if (Table) {
    UNROLL for (int j = 0; j < 2; j++) {
      const uint even = hopper_look_up(values, raw.low[j]), odd = hopper_look_up(values, raw.low[j] >> 16);
      c[j] = __byte_perm(even, odd, 0x6420) ^ 0x80808080u;
      c[j + 2] = __byte_perm(even, odd, 0x7531) ^ 0x80808080u;
    }
  }
  UNROLL for (int j = 0; j < 4 && !Table; j++) {
    if (Low == 8) c[j] = raw.low[j];
    if (Low == 4) c[j] = (raw.low[j & 1] >> (j & 2) * 2) & 0x0f0f0f0fu;
    if (Low == 2) c[j] = hopper_spread_pairs((raw.low[0] >> 8 * j) & 255u);
    // The multiplication moves the four bits seven places apart.
    if (High == 1) c[j] |= (((raw.high >> 4 * j) & 15u) * (0x00204081u << Low)) & (0x01010101u << Low);
    if (High == 2) c[j] |= hopper_spread_pairs((raw.high >> 8 * j) & 255u) << Low;
  }
}

// A value that is the same in all lanes, and that the compiler will not recompute where it is used, which would delay a
// chain.
HOPPER_FN uint hopper_kept(uint x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

HOPPER_FN bool hopper_barrier_ready(uint barrier, uint parity) {
  uint ready;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(ready)
               : "r"(barrier), "r"(parity)
               : "memory");
  return ready != 0;
}
// The parts of one chunk in shared memory, as an unpacking warp reads them.
struct HopperRawChunk {
  const uchar *low, *high, *heads, *subs;
};

template <int Low, int High>
HOPPER_FN void hopper_fetch(const HopperRawChunk& chunk, int at, WeightRaw& raw) {
  if (Low == 8) *(uint4*)raw.low = ((const uint4*)chunk.low)[at];
  if (Low == 4) *(uint2*)raw.low = ((const uint2*)chunk.low)[at];
  if (Low == 2) raw.low[0] = ((const uint*)chunk.low)[at];
  if (High == 1) raw.high = ((const ushort*)chunk.high)[at];
  if (High == 2) raw.high = ((const uint*)chunk.high)[at];
}

// Scale and minimum of step 2 * pair, or (`second`) of the one after it. `head`: the number of the group in the chunk.
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

// Sixteen values as T from bytes of codes; `base` is 2^23 plus the offset of a code.
template <typename T>
HOPPER_FN void hopper_unpack16(const uint (&c)[4], const WeightScale& scale, float base, uchar* to) {
  uint u[8];
  UNROLL for (int i = 0; i < 8; i++) {
    float v[2];
    UNROLL for (int j = 0; j < 2; j++) {
      const uint k = 2 * i + j;
      // Exact: the code is in the low bits of 2^23 + code.
      const float q = as_float(__byte_perm(c[k >> 2], 0x4b000000u, 0x7440 | (k & 3))) - base;
      v[j] = fma(scale.scale, q, scale.minimum);
    }
    u[i] = hopper_pack<T>(v[0], v[1]);
  }
  ((uint4*)to)[0] = make_uint4(u[0], u[1], u[2], u[3]);
  ((uint4*)to)[1] = make_uint4(u[4], u[5], u[6], u[7]);
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
// Sixteen fp8 numbers times their scale as T. Values are rounded to bf16 first, whatever T is.
template <typename T>
HOPPER_FN void hopper_unpack16_e4m3(const uint (&c)[4], float scale, uchar* to) {
  uint u[8];
  UNROLL for (int i = 0; i < 8; i++) {
    const float2 q = hopper_e4m3(c[i >> 1] >> 16 * (i & 1));
    u[i] = hopper_from_bf16<T>(hopper_pack<bfloat>(q.x * scale, q.y * scale));
  }
  ((uint4*)to)[0] = make_uint4(u[0], u[1], u[2], u[3]);
  ((uint4*)to)[1] = make_uint4(u[4], u[5], u[6], u[7]);
}

// The same for MXFP4 and bfloat, where nothing is rounded: a code is the index of a bfloat, which is multiplied with
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
HOPPER_FN void hopper_unpack16_fp4(const WeightRaw& raw, uint exponent, uchar* to) {
  const uint scale = hopper_fp4_scale(exponent);
  uint u[8];
  // Nibbles of the low half: codes i, i + 8, i + 1, i + 9.
  UNROLL for (int j = 0; j < 4; j++) hopper_fp4_pairs(raw.low[j >> 1] >> (j & 1) * 16, scale, u[j], u[j + 4]);
  ((uint4*)to)[0] = make_uint4(u[0], u[1], u[2], u[3]);
  ((uint4*)to)[1] = make_uint4(u[4], u[5], u[6], u[7]);
}

template <typename A, typename B>
struct HopperSame {
  static constexpr bool value = false;
};
template <typename A>
struct HopperSame<A, A> {
  static constexpr bool value = true;
};

// Each of HOPPER_QUANTISED_KINDS becomes HOPPER_KIND(low bits, high bits, table, scheme).
#define HOPPER_CASE(name, low, high, table, scheme)         \
  case (low) | (high) << 4 | (table) << 8 | (scheme) << 12: \
    HOPPER_KIND(low, high, table, scheme);
#define HOPPER_KINDS(kind)              \
  switch (kind) {                       \
    HOPPER_QUANTISED_KINDS(HOPPER_CASE) \
    default:                            \
      __trap();                         \
  }

// ---- requesting codes ----

// The number of a step in units of 2^Shift steps, or (-1) in groups.
template <int Shift>
HOPPER_FN int hopper_in_units(const HopperQuantisedParams& p, uint step) {
  return (int)(Shift < 0 ? __umulhi(step, p.group_inverse) : step >> (Shift & 31));
}

// Requests the data of steps `first` to `last` in one part, 16 bytes per lane.
template <int Times, int Shift>
HOPPER_FN void hopper_request_part(const HopperQuantisedParams& p, int i, const uchar* panel, uint to, uint first,
                                   uint last, int lane) {
  const HopperRawPart& part = p.parts[i];
  const int from = hopper_in_units<Shift>(p, first),
            bytes = (hopper_in_units<Shift>(p, last) + 1 - from) * part.unit_bytes;
  const uchar* source = panel + (part.at + from * part.unit_bytes + lane * 16);
  UNROLL for (int j = 0; j < Times; j++) {
    if (lane * 16 + j * 512 < bytes) hopper_copy16(to + part.slot_at + lane * 16 + j * 512, source + j * 512);
  }
}

// ---- x ----

// Loads all of x, with the bulk copy engine.
template <typename T>
HOPPER_FN void hopper_copy_x(const HopperQuantisedParams& p, uint rows, const T* x, uint full, int lane) {
  if (lane == 0) hopper_barrier_expect(full, p.linear.m * p.linear.k * 2);
  __syncwarp();
  asm volatile("fence.proxy.async;" ::: "memory");
  for (int row = lane; row < p.linear.m; row += 32) {
    hopper_copy_bulk(rows + row * p.x_row, x + (i64)row * p.linear.x_stride, p.linear.k * 2, full);
  }
}

HOPPER_FN void hopper_norm_barrier() {
  asm volatile("bar.sync 1, 64;" ::: "memory");
}

// Normalises the rows one after another, with two warps, as norm_sum.h requires: a thread has four lanes of one
// chain. `held` has room for one row of floats, `chains` for 256; `tid` is a thread's number among these 64.
template <typename T>
HOPPER_FN void hopper_norm_x(const HopperQuantisedParams& p, uchar* rows, const float* x, const float* norm,
                             float* held, float* chains, int tid) {
  const int k = p.linear.k;
  for (int m = 0; m < p.linear.m; m++) {
    const float* from = x + (i64)m * p.linear.x_stride;
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int base = 4 * tid; base < k; base += 8 * 256) {
      float4 v[8];
      UNROLL for (int i = 0; i < 8; i++) {
        v[i] = base + i * 256 < k ? __ldcg((const float4*)(from + base + i * 256)) : make_float4(0, 0, 0, 0);
      }
      UNROLL for (int i = 0; i < 8; i++) {
        c[0] = fma(v[i].x, v[i].x, c[0]);
        c[1] = fma(v[i].y, v[i].y, c[1]);
        c[2] = fma(v[i].z, v[i].z, c[2]);
        c[3] = fma(v[i].w, v[i].w, c[3]);
        if (base + i * 256 < k) *(float4*)(held + base + i * 256) = v[i];
      }
    }
    *(float4*)(chains + 4 * tid) = make_float4(c[0], c[1], c[2], c[3]);
    hopper_norm_barrier();
    const float* l = chains + (tid & 31);
    const float inverse =
        norm_inverse(simd_sum(norm_fold(l[0], l[32], l[64], l[96], l[128], l[160], l[192], l[224])), k, p.linear.eps);
#pragma unroll 4
    for (int at = 4 * tid; at < k; at += 256) {
      const float4 v = *(const float4*)(held + at);
      const float* w = norm + at;
      *(uint2*)(rows + m * p.x_row + at * 2) =
          make_uint2(hopper_pack<T>((v.x * inverse) * __ldg(w), (v.y * inverse) * __ldg(w + 1)),
                     hopper_pack<T>((v.z * inverse) * __ldg(w + 2), (v.w * inverse) * __ldg(w + 3)));
    }
    hopper_norm_barrier();
  }
}
