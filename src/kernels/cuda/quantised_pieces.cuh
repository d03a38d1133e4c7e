// SPDX-License-Identifier: Apache-2.0
// Pieces of quantised weights, 16 rows of W by 256 k, whose codes a warp unpacks into registers, as operands of the
// tensor cores (sm_90a). linear_quantised_few.cuh and linear_quantised_wide.cuh share them. No kernels here.
#pragma once

#include "kernels/cuda/quantised_codes.cuh"

// ---- shared memory, in the order that the code has ----

HOPPER_FN uint hopper_shared16(uint at) {
  ushort v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return v;
}
HOPPER_FN uint hopper_shared32(uint at) {
  uint v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
HOPPER_FN uint2 hopper_shared64(uint at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
HOPPER_FN uint4 hopper_shared128(uint at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
HOPPER_FN void hopper_store_shared128(uint at, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
HOPPER_FN void hopper_load_sums(float* sums, uint at) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
               : "r"(at)
               : "memory");
}
HOPPER_FN void hopper_store_sums(uint at, const float* sums) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(sums[0]), "f"(sums[1]), "f"(sums[2]),
               "f"(sums[3])
               : "memory");
}
// Named barriers of two warps.
HOPPER_FN void hopper_pair_wait(int barrier) {
  asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory");
}
HOPPER_FN void hopper_pair_arrive(int barrier) {
  asm volatile("bar.arrive %0, 64;" ::"r"(barrier) : "memory");
}

// ---- two codes at a time ----

HOPPER_FN uint hopper_fma_bf16(uint a, uint b, uint c) {
  uint r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
HOPPER_FN uint hopper_mul_bf16(uint a, uint b) {
  uint r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
HOPPER_FN uint hopper_fma_f16(uint a, uint b, uint c) {
  uint r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
HOPPER_FN uint hopper_mul_f16(uint a, uint b) {
  uint r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// d * (code - z), rounded once, for codes of four bits, a scale d that is an fp16 number, and a whole z from 0 to 31.
// zeros(z) are the numbers that subtract it, for low() and high().
template <typename T>
struct HopperPiecePairs;

// As bits of a bfloat, an integer below 256 is that many times 2^-133, a multiple of the smallest subnormal number. So
// one fma gives (code - z) / 64, exactly, wherever in the low byte the code stands. The scale has eleven bits: 64 d is
// a bfloat of eight plus one of three. The product of the latter and a code is exact, so that the last fma rounds the
// whole product, once.
template <>
struct HopperPiecePairs<bfloat> {
  HOPPER_FN void scale(float d, uint* parts) {
    const uint bits = as_uint(d * 64.0f);
    // Infinity has no rest that is a number; any will do.
    const float rest = fminf(as_float(bits) - as_float(bits & 0xffff0000u), 1.0e30f);
    parts[0] = __byte_perm(bits, 0, 0x3232);
    parts[1] = __byte_perm(as_uint(rest), 0, 0x3232);
  }
  HOPPER_FN uint2 zeros(float z) {
    const uint two = __byte_perm(as_uint(z * -0.015625f), 0, 0x3232);
    return make_uint2(two, two);
  }
  HOPPER_FN uint rounded(uint q, uint2 scale) { return hopper_fma_bf16(q, scale.x, hopper_mul_bf16(q, scale.y)); }
  // Codes in bits 0 to 3 and 16 to 19 of x.
  HOPPER_FN uint low(uint x, uint2 scale, uint2 zeros) {
    return rounded(hopper_fma_bf16(x & 0x000f000fu, 0x7f007f00u, zeros.x), scale);  // * 2^127
  }
  // In bits 4 to 7 and 20 to 23.
  HOPPER_FN uint high(uint x, uint2 scale, uint2 zeros) {
    return rounded(hopper_fma_bf16(x & 0x00f000f0u, 0x7d007d00u, zeros.y), scale);  // * 2^123
  }
};
// The low bits of 1024 as fp16 are ones.
template <>
struct HopperPiecePairs<half> {
  HOPPER_FN void scale(float d, uint* parts) { parts[0] = parts[1] = hopper_pack<half>(d, d); }
  HOPPER_FN uint2 zeros(float z) {
    return make_uint2(hopper_pack<half>(-1024.0f - z, -1024.0f - z), hopper_pack<half>(-64.0f - z, -64.0f - z));
  }
  HOPPER_FN uint low(uint x, uint2 scale, uint2 zeros) {
    return hopper_mul_f16(hopper_fma_f16((x & 0x000f000fu) | 0x64006400u, 0x3c003c00u, zeros.x), scale.x);
  }
  HOPPER_FN uint high(uint x, uint2 scale, uint2 zeros) {  // / 16
    return hopper_mul_f16(hopper_fma_f16((x & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, zeros.y), scale.x);
  }
};

// How one kind of weights becomes operands of T. A lane's four codes of a step and row are those of k 2 t, 2 t + 1,
// 2 t + 8 and 2 t + 9.
template <typename T, int Low, int High, bool Table, int Scheme>
struct HopperPieceKind {
  enum {
    kByTwo = Scheme == kSchemeScale || Scheme == kSchemeScaleMin || Scheme == kSchemeExponent,
    kZeroPoint = Scheme == kHopperSchemeZeroPoint,
    kGroup = Scheme == kSchemeGroup || kZeroPoint,
    kGrouped = kGroup || Scheme == kSchemeE4M3,
    kLow = 512 * Low,  // bytes of a piece
    kHigh = 512 * High,
    kSubs = kByTwo || kGrouped ? 0
            : Table            ? 128
                               : 256,
    kHead = 16 * (kGroup                                                ? 8
                  : Scheme == kSchemeExponent                           ? 1
                  : Scheme == kSchemeScale || Scheme == kSchemeSubScale ? 2
                                                                        : 4),  // bytes of a head for 16 rows
    kUnit = HopperPieceScales<Table, Scheme>::steps,                           // steps that share a scale
    kEntry = HopperPieceScales<Table, Scheme>::entry,
    kUnitBytes = HopperPieceScales<Table, Scheme>::unit,
    kEnds = kByTwo || kGrouped,  // K may end inside a piece
    kFp4 = Scheme == kSchemeExponent && HopperSame<T, bfloat>::value,
    kPairs = Low == 4 && High == 0 && !Table && Scheme == kSchemeScale,  // the offset of these is 8
    kOffsetExact = HopperOffsetExact<Low, High, Table, Scheme>::value,
    kEight = Low + High >= 8 || Table,
    kNibbles = Low == 4 && High == 0 && !Table && !kOffsetExact
  };

  // The number of a step's group.
  HOPPER_FN int group_of(const HopperQuantisedParams& p, uint step) { return (int)__umulhi(step, p.group_inverse); }

  // Requests a part of which not all lanes have something. The policy must not be part of a copy that only some lanes
  // execute: that was an illegal instruction.
  template <int Times>
  HOPPER_FN void request_part(uint to, const uchar* from, int bytes, int lane) {
    const int at = lane * 16;
    UNROLL for (int j = 0; j < Times; j++) {
      if (at + j * 512 < bytes) hopper_copy16(to + at + j * 512, from + at + j * 512);
    }
  }
  // Requests `steps` steps of a panel: 16, or fewer at the end of K.
  template <bool Whole>
  HOPPER_FN void request(const HopperQuantisedParams& p, const uchar* panel, int piece, int steps, uint to,
                         unsigned long long policy, int lane) {
    const int at = lane * 16;
    if (Whole || steps == 16) {
      const uchar* low = panel + (piece * kLow + at);
      UNROLL for (int j = 0; j < kLow; j += 512) hopper_copy16(to + at + j, low + j, policy);
      const uchar* high = panel + (p.weight.high_at + piece * kHigh + at);
      UNROLL for (int j = 0; j < kHigh; j += 512) hopper_copy16(to + kLow + at + j, high + j, policy);
    } else {
      request_part<Low>(to, panel + piece * kLow, steps * (32 * Low), lane);
      request_part<High>(to + kLow, panel + (p.weight.high_at + piece * kHigh), steps * (32 * High), lane);
    }
    if (kSubs > 0) request_part<1>(to + kLow + kHigh, panel + (p.weight.sub_at + piece * kSubs), kSubs, lane);
    int first = piece, heads = 1;
    if (kByTwo) first = piece * 8, heads = steps / 2;
    if (kGrouped) {
      first = group_of(p, piece * 16);
      heads = group_of(p, piece * 16 + steps - 1) + 1 - first;
    }
    request_part<kGroup ? 2 : 1>(to + (kLow + kHigh + kSubs), panel + (p.weight.head_at + first * kHead), heads * kHead,
                                 lane);
  }

  // For the scale d of a group and its minimum m, which is -z d: the numbers of HopperPiecePairs.
  HOPPER_FN uint4 zero_point(float d, float m) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(d));
    uint parts[2];
    HopperPiecePairs<T>::scale(d, parts);
    const uint2 zeros = HopperPiecePairs<T>::zeros(d == 0.0f ? 0.0f : rintf(-m * inverse));
    return make_uint4(parts[0], parts[1], zeros.x, zeros.y);
  }

  // An entry for each row and `kUnit` steps of a piece, at `to`: [unit][row]. A lane has four neighbouring rows. An
  // entry is two numbers, or (kZeroPoint) four.
  HOPPER_FN void scales(const HopperQuantisedParams& p, const uchar* slot, int piece, uint to, int lane) {
    const HopperRawChunk chunk = {slot, slot + kLow, slot + (kLow + kHigh + kSubs), slot + (kLow + kHigh)};
    const float offset = Table ? 128.0f : (float)p.weight.offset;
    UNROLL for (int i = 0; i < 2 / kUnit; i++) {
      const int unit = lane / 4 + 8 * i;
      const uint first = (uint)piece * 16;
      const int head = kGrouped ? group_of(p, first + kUnit * unit) - group_of(p, first) : 0;
      uint v[4][2];
      UNROLL for (int j = 0; j < 4; j++) {
        const int r = (lane & 3) * 4 + j;
        if constexpr (kZeroPoint) {
          const int row = (lane & 3) + 4 * j;  // with the padding: no two lanes of a quarter use the same banks
          const uint2 raw = ((const uint2*)chunk.heads)[head * 16 + row];
          hopper_store_shared128(to + unit * kUnitBytes + row * kEntry, zero_point(as_float(raw.x), as_float(raw.y)));
        } else if constexpr (kFp4) {
          v[j][0] = v[j][1] = hopper_fp4_scale(chunk.heads[unit * 16 + r]);
        } else {
          const WeightScale s = hopper_scale < Scheme,
                            Table ? 1 : 0 > (chunk, kUnit == 1 ? unit >> 1 : unit, kUnit == 1 ? unit & 1 : 0, head, r);
          if (kPairs) {
            HopperPiecePairs<T>::scale(s.scale, v[j]);
          } else if (kOffsetExact) {
            v[j][0] = as_uint(s.scale * (kEight ? 1.0f / 256 : 1.0f / 65536));
            v[j][1] = as_uint(-((kEight ? 32768.0f : 128.0f) + offset) * s.scale);
          } else {
            v[j][0] = as_uint(s.scale);
            v[j][1] = as_uint(s.minimum);
          }
        }
      }
      UNROLL for (int j = 0; j < 4 && !kZeroPoint; j += 2) {
        hopper_store_shared128(to + (unit * 16 + (lane & 3) * 4 + j) * 8,
                               make_uint4(v[j][0], v[j][1], v[j + 1][0], v[j + 1][1]));
      }
    }
  }

  // The lane's four codes as bytes; of a table the middle two in the other order, because they come from its look-up.
  HOPPER_FN uint codes(const HopperQuantisedParams& p, uint slot, int at, int t) {
    uint c = 0;
    if (Low == 4) {
      const uint x = hopper_shared16(slot + at * 8 + t * 2);
      if (Table) return hopper_look_up(p.weight.values, x) ^ 0x80808080u;
      c = (x | x << 12) & 0x0f0f0f0fu;
    }
    if (Low == 8) {
      c = hopper_shared16(slot + at * 16 + t * 2) | hopper_shared16(slot + at * 16 + t * 2 + 8) << 16;
    }
    if (Low == 2) c = spread_twos(hopper_shared32(slot + at * 4) >> 4 * t);
    if (High == 1) {
      const uint x = hopper_shared16(slot + kLow + at * 2) >> 2 * t, y = (x | x << 8) & 0x00030003u;
      c |= ((y | y << 7) & 0x01010101u) << Low;
    }
    if (High == 2) c |= spread_twos(hopper_shared32(slot + kLow + at * 4) >> 4 * t) << Low;
    return c;
  }
  // Fields of two bits at bits 0, 2, 16 and 18.
  HOPPER_FN uint spread_twos(uint x) { return (x & 0x00030003u) | (x & 0x000c000cu) << 6; }

  // 2^23, 2^19, 2^15 and 2^11, in registers: an instruction has room for one constant, the mask of a code.
  struct Powers {
    uint of[4];
  };
  HOPPER_FN Powers powers() {
    Powers out;
    UNROLL for (int i = 0; i < 4; i++) out.of[i] = hopper_kept((uint)(127 + 23 - 4 * i) << 23);
    return out;
  }

  // The operand of step s, which is in `slot`.
  HOPPER_FN void operand(const HopperQuantisedParams& p, const Powers& powers, uint slot, uint scales, int s, int g,
                         int t, uint (&a)[4]) {
    UNROLL for (int h = 0; h < 2; h++) {
      const int at = s * 16 + g + 8 * h;
      uint2 scale, zeros;
      if constexpr (kZeroPoint) {
        const uint4 entry = hopper_shared128(scales + (s / kUnit) * kUnitBytes + (g + 8 * h) * kEntry);
        scale = make_uint2(entry.x, entry.y);
        zeros = make_uint2(entry.z, entry.w);
      } else {
        scale = hopper_shared64(scales + ((s / kUnit) * 16 + g + 8 * h) * kEntry);
        zeros = HopperPiecePairs<T>::zeros(8.0f);
      }
      uint *first = &a[h], *second = &a[2 + h];
      if constexpr (kPairs || kZeroPoint) {
        const uint x = hopper_shared16(slot + at * 8 + t * 2), spread = __byte_perm(x, 0, 0x4140);
        *first = HopperPiecePairs<T>::low(spread, scale, zeros);
        *second = HopperPiecePairs<T>::high(spread, scale, zeros);
      } else if constexpr (kFp4) {
        hopper_fp4_pairs(hopper_shared16(slot + at * 8 + t * 2), scale.x, *first, *second);
      } else if constexpr (Scheme == kSchemeE4M3) {
        const uint c = codes(p, slot, at, t);
        const float2 x = hopper_e4m3(c), y = hopper_e4m3(c >> 16);
        const float d = as_float(scale.x);
        *first = hopper_from_bf16<T>(hopper_pack<bfloat>(x.x * d, x.y * d));
        *second = hopper_from_bf16<T>(hopper_pack<bfloat>(y.x * d, y.y * d));
      } else {
        float v[4];
        if constexpr (kNibbles) {
          // Exact: a code becomes the low bits of a power of two, where it stands.
          const uint x = hopper_shared16(slot + at * 8 + t * 2);
          UNROLL for (int i = 0; i < 4; i++) {
            const int nibble = (i >> 1) | (i & 1) << 1, power = 23 - 4 * nibble;
            const float q =
                as_float((x & 15u << 4 * nibble) | powers.of[nibble]) - ((float)(1 << power) + (float)p.weight.offset);
            v[i] = fma(as_float(scale.x), q, as_float(scale.y));
          }
        } else {
          const uint c = codes(p, slot, at, t);
          const float base = 8388608.0f + (Table ? 128.0f : (float)p.weight.offset);
          UNROLL for (int i = 0; i < 4; i++) {
            const int k = Table && (i == 1 || i == 2) ? 3 - i : i;  // the byte
            if (kOffsetExact) {
              const uint q = __byte_perm(c, 0x4b000000u, kEight ? 0x7404 | k << 4 : 0x7044 | k << 8);
              v[i] = fma(as_float(q), as_float(scale.x), as_float(scale.y));
            } else {
              const float q = as_float(__byte_perm(c, 0x4b000000u, 0x7440 | k)) - base;
              v[i] = fma(as_float(scale.x), q, as_float(scale.y));
            }
          }
        }
        *first = hopper_pack<T>(v[0], v[1]);
        *second = hopper_pack<T>(v[2], v[3]);
      }
    }
  }
};

// Waits until at most so many of the thread's newer groups of copies are under way; the number is part of the
// instruction.
HOPPER_FN void hopper_wait_pieces(int newer) {
  if (newer == 0) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  } else if (newer == 1) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  }
}
