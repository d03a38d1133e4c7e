// SPDX-License-Identifier: Apache-2.0
// linear for quantised weights and 1 to 8 rows: some warps unpack codes into shared memory, the others multiply them
// with x, which stays in shared memory as a whole (sm_90a).
//
// Equal by memcmp to linear_quantised.cuh, which also serves more rows. What limits a product of few rows is the chain:
// one k16 step after the other, in a fixed order. So every pair of tiles of 16 rows of W has a warp that does nothing
// but load fragments and multiply, and a threadgroup has as many pairs at once as the chip needs to have all of them at
// once (`pairs`), so that chains run beside each other and not after each other. A panel of codes belongs to `turns`
// warps; each takes every so-many-th chunk of 64 k:
//   - It has requested the codes of its next chunks ahead, into slots of its own.
//   - It writes 16 rows of T to the ring of chunks, where the chain of that pair reads them.
//
// The first weights are loaded and unpacked while the preceding launch still runs; x is read after it.
//
// Grid, threads and dynamic memory: hopper_quantised_few_plan(). REQUIRES: k is a multiple of 64; x and out are on
// 16-byte boundaries, x_stride is a multiple of 8 (F32: 4); gated: each half has whole panels.
#pragma once

#include "kernels/cuda/linear_chain.cuh"
#include "kernels/cuda/quantised_codes.cuh"

template <typename T>
struct HopperQuantisedFew {
  enum {
    kChunk = kHopperFewChunk,
    kRow = kChunk * 2 + 16,  // bytes of a row in a chunk; padded so that eight rows use all banks
    kTile = 16 * kRow,
    kPair = 2 * kTile
  };
  static_assert(kPair == kHopperFewPairBytes, "as planned");

  struct Smem {
    unsigned long long full[kHopperFewDepth * kHopperFewPairs], empty[kHopperFewDepth * kHopperFewPairs];
    unsigned long long x_full;
    __align__(16) float chains[256];
  };
  // The pairs of tiles of this threadgroup.
  struct Range {
    int first, last;
  };

  // ---- the warps that unpack ----

  // Where the codes of one kind stand, in a panel and in a slot.
  template <int Low, int High, bool Table, int Scheme>
  struct Parts {
    enum {
      kByTwo = Scheme == kSchemeScale || Scheme == kSchemeScaleMin || Scheme == kSchemeExponent,
      kGrouped = Scheme == kSchemeGroup || Scheme == kSchemeE4M3,
      kLow = 128 * Low,  // bytes of a chunk
      kHigh = 128 * High,
      kSubs = kByTwo || kGrouped ? 0
              : Table            ? 32
                                 : 64,
      kHead = 16 * (Scheme == kSchemeGroup                                ? 8
                    : Scheme == kSchemeExponent                           ? 1
                    : Scheme == kSchemeScale || Scheme == kSchemeSubScale ? 2
                                                                          : 4),  // bytes of a head for 16 rows
    };
  };

  // Requests a chunk of a panel.
  template <int Low, int High, bool Table, int Scheme>
  HOPPER_FN void request(const HopperQuantisedParams& p, const uchar* panel, int chunk, uint to,
                         unsigned long long policy, int lane) {
    typedef Parts<Low, High, Table, Scheme> Part;
    const uint at = lane * 16;
    const uchar* from = panel + at;
    // The policy must not be part of a copy that only some lanes execute: that was an illegal instruction.
    UNROLL for (int j = 0; j < Part::kLow / 512; j++) {
      hopper_copy16(to + at + j * 512, from + (chunk * Part::kLow + j * 512), policy);
    }
    if (Part::kLow < 512 && at < Part::kLow) hopper_copy16(to + at, from + chunk * Part::kLow);
    if (High > 0 && at < Part::kHigh) {
      hopper_copy16(to + Part::kLow + at, from + (p.weight.high_at + chunk * Part::kHigh));
    }
    if (Part::kSubs > 0 && at < Part::kSubs) {
      hopper_copy16(to + p.parts[3].slot_at + at, from + (p.weight.sub_at + chunk * Part::kSubs));
    }
    int first = chunk * 2, heads = 2;
    if (!Part::kByTwo) first = chunk >> 2, heads = 1;
    if (Part::kGrouped) {
      first = hopper_in_units<-1>(p, chunk * 4);
      heads = hopper_in_units<-1>(p, chunk * 4 + 3) + 1 - first;
    }
    if (at < heads * Part::kHead) {
      hopper_copy16(to + Part::kLow + Part::kHigh + at, from + (p.weight.head_at + first * Part::kHead));
    }
  }

  // The work of unpacking warp `number`. A lane has two steps of one row, which share a head.
  template <int Low, int High, bool Table, int Scheme>
  HOPPER_FN void unpack_all(const HopperQuantisedParams& p, const Range& range, uchar* ring, const uchar* slots,
                            const uchar* w, Smem& sm, int number, int lane) {
    typedef Parts<Low, High, Table, Scheme> Part;
    constexpr bool kTwo = Scheme == kSchemeSubScale || Scheme == kSchemeSubScaleMin;
    const int turn = number / (2 * p.pairs), mine = number - turn * 2 * p.pairs, which = mine & 1, pair = mine >> 1;
    const int r = lane & 15, half = lane >> 4, chunks = p.linear.k / kChunk, turns = p.turns, depth = p.depth;
    const bool gated = p.linear.epilogue == kHopperGated;
    const uint full = ptx_shared_address(sm.full) + pair * 8, empty = ptx_shared_address(sm.empty) + pair * 8;
    const uint raw_at = ptx_shared_address(slots), slot_bytes = p.slot_bytes, subs_at = p.parts[3].slot_at;
    const unsigned long long policy = hopper_read_once();
    const float offset = Table ? 128.0f : (float)p.weight.offset, base = 8388608.0f + offset;
    // Gated tiles have eight rows of gate, then eight of up.
    uchar* row = ring + pair * kPair + half * 64 +
                 (gated ? (r >> 3) * kTile + ((r & 7) + 8 * which) * kRow : which * kTile + r * kRow);
    const auto panel_of = [&](int unit) {
      return w + (i64)(gated ? unit + which * p.gate_panels : min(2 * unit + which, p.panels - 1)) * p.weight.stride;
    };
    int unit = range.first + pair, chunk = turn;
    while (chunk >= chunks) chunk -= chunks, unit += p.pairs;  // there may be fewer chunks than turns
    int next_unit = unit, next = chunk;
    const uchar* panel = panel_of(unit);
    const auto request_next = [&](int raw_slot) {
      if (next_unit < range.last) {
        request<Low, High, Table, Scheme>(p, panel, next, raw_at + raw_slot * slot_bytes, policy, lane);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
      next += turns;
      if (next >= chunks) {
        do next -= chunks, next_unit += p.pairs;
        while (next >= chunks);
        panel = panel_of(next_unit);
      }
    };
#pragma unroll 1
    for (int i = 0; i < kHopperFewAhead; i++) request_next(i);
    int slot = turn, parity = 1, raw_slot = 0;
#pragma unroll 1
    while (unit < range.last) {
      const uchar* from = slots + raw_slot * slot_bytes;
      const HopperRawChunk codes = {from, from + Part::kLow, from + Part::kLow + Part::kHigh, from + subs_at};
      asm volatile("cp.async.wait_group %0;" ::"n"(kHopperFewAhead - 1) : "memory");
      __syncwarp();
      WeightRaw raw[2];
      UNROLL for (int j = 0; j < 2; j++) hopper_fetch<Low, High>(codes, (2 * half + j) * 16 + r, raw[j]);
      const uint first = (uint)chunk * (kChunk / 16);
      const int head = Part::kGrouped ? hopper_in_units<-1>(p, first + 2 * half) - hopper_in_units<-1>(p, first) : 0;
      WeightScale scale[2];
      uint exponent = 0;
      if constexpr (Scheme == kSchemeExponent && HopperSame<T, bfloat>::value) {
        exponent = codes.heads[half * 16 + r];
      } else {
        scale[0] = hopper_scale < Scheme, Table ? 1 : 0 > (codes, half, 0, head, r);
        scale[1] = kTwo ? hopper_scale < Scheme, Table ? 1 : 0 > (codes, half, 1, head, r) : scale[0];
      }
      __syncwarp();  // all lanes have read the codes, and request the next ones together
      request_next(raw_slot);
      raw_slot = raw_slot + 1 == kHopperFewAhead ? 0 : raw_slot + 1;

      const int at = slot * p.pairs;
      hopper_barrier_wait(empty + at * 8, parity);
      uchar* to = row + at * kPair;
      UNROLL for (int j = 0; j < 2; j++) {
        if constexpr (Scheme == kSchemeExponent && HopperSame<T, bfloat>::value) {
          hopper_unpack16_fp4(raw[j], exponent, to + j * 32);
        } else {
          uint q[4];
          hopper_codes<Low, High, Table>(p.weight.values, raw[j], q);
          if (Scheme == kSchemeE4M3) {
            hopper_unpack16_e4m3<T>(q, scale[j].scale, to + j * 32);
          } else if (HopperOffsetExact<Low, High, Table, Scheme>::value) {
            hopper_unpack16_offset<T, (Low + High >= 8 || Table)>(q, scale[j].scale, offset, to + j * 32);
          } else {
            hopper_unpack16<T>(q, scale[j], base, to + j * 32);
          }
        }
      }
      __syncwarp();
      if (lane == 0) hopper_barrier_arrive(full + at * 8);
      slot += turns;
      if (slot >= depth) {
        slot -= depth;
        parity ^= 1;
      }
      chunk += turns;
      while (chunk >= chunks) chunk -= chunks, unit += p.pairs;
    }
    // A thread must not exit while its own copies are in flight.
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

  HOPPER_FN void unpacker(const HopperQuantisedParams& p, const Range& range, uchar* ring, uchar* slots, const uchar* w,
                          Smem& sm, int number, int lane) {
    slots += number * kHopperFewAhead * p.slot_bytes;
#define HOPPER_KIND(low, high, table, scheme) \
  return unpack_all<low, high, table != 0, scheme>(p, range, ring, slots, w, sm, number, lane)
    HOPPER_KINDS(p.kind)
#undef HOPPER_KIND
  }

  // ---- the warps that multiply ----

  // hopper_linear_finish() for the sums of a tile, [row of x][row of W], with a lane for each of them in turn. It runs
  // once, so what it costs is mostly the way of its instructions from memory: they are few here.
  HOPPER_FN void finish(const HopperLinearParams& l, const float* sums, int tile, void* out, const float* bias,
                        const float* residual, int lane) {
    const bool gated = l.epilogue == kHopperGated;
    const int r = lane & 15, n = gated ? tile * 8 + r : tile * 16 + r;
    if (gated ? r >= 8 : n >= l.n) return;
#pragma unroll 1
    for (int m = lane >> 4; m < l.m; m += 2) {
      const float sum = sums[m * 16 + r];
      const i64 at = (i64)m * l.out_stride + n;
      if (l.epilogue == kHopperStoreF32) {
        ((float*)out)[at] = l.biased ? sum + bias[n] : sum;
        continue;
      }
      float y = hopper_rounded<T>(sum, l, bias, n);
      if (l.epilogue == kHopperResidual) {
        ((float*)out)[at] = fma(y, l.scale, __ldcg(residual + (i64)m * l.residual_stride + n));
        continue;
      }
      if (gated) {
        y = activate_glu(l.activation, l.limit, y, hopper_rounded<T>(sums[m * 16 + r + 8], l, bias, l.n / 2 + n));
      } else if (l.epilogue == kHopperActivated) {
        y = activate(l.activation, y);
      }
      ((T*)out)[at] = to<T>(y);
    }
  }

  // Fragments of two steps of both tiles are in registers; as soon as one has been multiplied, that of two steps later
  // takes its place.
  HOPPER_FN void chain(const HopperQuantisedParams& p, const Range& range, uint ring, uint rows, float* sums, Smem& sm,
                       void* out, const float* bias, const float* residual, int pair, int lane) {
    const HopperLinearParams& l = p.linear;
    const int g = lane >> 2, m = (lane & 3) * 2, chunks = l.k / kChunk;
    const uint full = ptx_shared_address(sm.full) + pair * 8, empty = ptx_shared_address(sm.empty) + pair * 8;
    const uint lane_w = ring + pair * kPair + (lane & 15) * kRow + (lane >> 4) * 16;
    const uint barrier_bytes = p.pairs * 8, slot_bytes = p.pairs * kPair, depth = p.depth;
    const uint lane_x = rows + min(lane & 7, l.m - 1) * p.x_row + (lane >> 3) * 16;  // absent rows repeat the last one
    uint slot = 0, parity = 0;
    uint w[2][2][4], x[2][4];  // [tile][step], [pair of steps]
    float acc[2][4];
    const auto load_w = [&](int step, uint from) {
      UNROLL for (int t = 0; t < 2; t++) hopper_ldmatrix(w[t][step & 1], from + t * kTile + step * 32);
    };
    const auto load_x = [&](int steps, uint from) { hopper_ldmatrix(x[steps], from + steps * 64); };
    const auto multiply = [&](int step) {
      const uint* b = x[step >> 1] + 2 * (step & 1);
      UNROLL for (int t = 0; t < 2; t++) hopper_chain_mma(acc[t], w[t][step & 1], b[0], b[1], T());
    };
    const auto second_half_loaded = [&](uint at, uint from) {
      load_x(1, from);
      multiply(0);
      load_w(2, at);
      multiply(1);
      load_w(3, at);
      __syncwarp();
      if (lane == 0) hopper_barrier_arrive(empty + slot * barrier_bytes);  // it may be written again
    };
#pragma unroll 1
    for (int unit = range.first + pair; unit < range.last; unit += p.pairs) {
      UNROLL for (int i = 0; i < 4; i++) acc[0][i] = acc[1][i] = 0.0f;
      uint from = lane_x, at = lane_w + slot * slot_bytes;
      hopper_barrier_wait(full + slot * barrier_bytes, parity);
      load_x(0, from);
      load_w(0, at);
      load_w(1, at);
#pragma unroll 1
      for (int chunk = 1; chunk < chunks; chunk++) {
        const uint next = slot + 1 == depth ? 0 : slot + 1, next_parity = parity ^ (next == 0 ? 1 : 0);
        const uint next_full = full + next * barrier_bytes;
        // Asked early, so that the answer arrives during the latency of the products.
        const bool ready = hopper_barrier_ready(next_full, next_parity);
        second_half_loaded(at, from);
        slot = next;
        parity = next_parity;
        at = lane_w + slot * slot_bytes;
        from += kChunk * 2;
        if (!ready) hopper_barrier_wait(next_full, parity);
        load_x(0, from);
        multiply(2);
        load_w(0, at);
        multiply(3);
        load_w(1, at);
      }
      second_half_loaded(at, from);
      multiply(2);
      multiply(3);
      slot = slot + 1 == depth ? 0 : slot + 1;
      parity ^= slot == 0 ? 1 : 0;
      UNROLL for (int t = 0; t < 2; t++) {
        UNROLL for (int i = 0; i < 4; i++) sums[(t * 8 + m + (i & 1)) * 16 + g + 8 * (i >> 1)] = acc[t][i];
      }
      __syncwarp();
#pragma unroll 1
      for (int t = 0; t < 2; t++) finish(l, sums + t * (8 * 16), 2 * unit + t, out, bias, residual, lane);
      __syncwarp();
    }
  }
  // Not inline: with its instructions in between, those of the chain would be further apart.
  static __device__ __noinline__ void norm_rows(const HopperQuantisedParams& p, uchar* rows, const float* x,
                                                const float* norm, float* chains) {
    hopper_norm_x<T>(p, rows, x, norm, (float*)(rows + p.linear.m * p.x_row + 256), chains);
  }

  HOPPER_FN void run(const HopperQuantisedParams& p, void* out, const void* x, const uchar* w, const float* bias,
                     const float* norm, const float* residual) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Smem sm;
    ptx_grid_release();
    const int tid = (int)threadIdx.x, warp = tid >> 5, lane = tid & 31;
    const Range range = {(int)(blockIdx.x * (uint)p.units / gridDim.x),
                         (int)((blockIdx.x + 1) * (uint)p.units / gridDim.x)};
    const uint x_full = ptx_shared_address(&sm.x_full);
    uchar* ring = shared;
    uchar* slots = ring + p.depth * p.pairs * kPair;
    float* sums = (float*)(slots + 2 * p.pairs * p.turns * kHopperFewAhead * p.slot_bytes);
    uchar* rows = (uchar*)(sums + 2 * p.pairs * (8 * 16));
    if (tid < p.depth * p.pairs) {
      hopper_barrier_init(ptx_shared_address(&sm.full[tid]), 2);
      hopper_barrier_init(ptx_shared_address(&sm.empty[tid]), 1);
    }
    const bool normed = p.linear.normed != 0;
    if (tid == 0) hopper_barrier_init(x_full, normed ? 2 : 1);
    hopper_barrier_init_done();
    __syncthreads();
    if (warp >= p.chains) return unpacker(p, range, ring, slots, w, sm, warp - p.chains, lane);
    if (normed && warp < 2) {
      for (int k = tid * 32; k < p.linear.k; k += 64 * 32) {
        asm volatile("prefetch.global.L1 [%0];" ::"l"(norm + k));
      }
    }
    ptx_grid_wait();
    if (normed && warp < 2) {
      norm_rows(p, rows, (const float*)x, norm, sm.chains);
      if (lane == 0) hopper_barrier_arrive(x_full);
    } else if (!normed && warp == 0) {
      hopper_copy_x(p, ptx_shared_address(rows), (const T*)x, x_full, lane);
    }
    if (warp >= p.pairs) return;  // it only helped with the norm
    hopper_barrier_wait(x_full, 0);
    chain(p, range, ptx_shared_address(ring), ptx_shared_address(rows), sums + 2 * warp * (8 * 16), sm, out, bias,
          residual, warp, lane);
  }
};

#define HOPPER_LINEAR_QUANTISED_FEW(types, T)                                                                        \
  extern "C" __global__ void __launch_bounds__(kHopperFewQuantisedThreads, 1) hopper_linear_##types##_quantised_few( \
      const __grid_constant__ HopperQuantisedParams p, void* out, const void* x, const uchar* w, const float* bias,  \
      const float* norm, const float* residual) {                                                                    \
    HopperQuantisedFew<T>::run(p, out, x, w, bias, norm, residual);                                                  \
  }
HOPPER_LINEAR_QUANTISED_FEW(bf16, bfloat)
HOPPER_LINEAR_QUANTISED_FEW(f16, half)
