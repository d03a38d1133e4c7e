// SPDX-License-Identifier: Apache-2.0
// linear for quantised weights and 1 to 64 rows, where K or rows do not fit linear_quantised_few.cuh and
// linear_quantised_wide.cuh, and for experts: codes are streamed from memory, unpacked by warps of their own, and
// multiplied with x by the tensor cores (sm_90a).
//
// Equal by memcmp to the portable linear for every M: each element of the weight is the float of linear_weight.h
// rounded to T, and a sum is one chain of k16 steps from zero. A threadgroup takes two panels of 16 rows of W at a time
// (gated: one of gate, one of up), in chunks of 128 k:
//   - Eight warps unpack, four per panel, each every fourth chunk. A warp copies a chunk's codes and scales into slots
//     of its own, some chunks ahead, and writes rows of T to the ring of chunks.
//   - Two or four warps run the chains: one per tile of 16 rows of W and up to 32 rows of x, 24 cycles per step.
//   - If x does not fit into shared memory as a whole, it is loaded with each chunk: for the first chunks of the ring
//     by the warps of the chains, later by those that unpack.
//
// The first weights are loaded and unpacked while the preceding launch still runs; x is read after it.
//
// Grid, threads and dynamic memory: hopper_quantised_plan(). REQUIRES: x and out are on 16-byte boundaries, x_stride is
// a multiple of 8 (F32: 4); gated: each half has whole panels.
#pragma once

#include "kernels/cuda/linear_chain.cuh"
#include "kernels/cuda/quantised_codes.cuh"

// For a warp that has time: one lane polls, with pauses. Polling uses shared-memory bandwidth that the chains need.
HOPPER_FN void hopper_barrier_wait_calmly(uint barrier, uint parity, int lane) {
  if (lane == 0) {
    while (!hopper_barrier_ready(barrier, parity)) __nanosleep(60);
  }
  __syncwarp();
}

// `Chains`: warps that run chains.
template <typename T, int MT, int Chains>
struct HopperLinearQuantised {
  typedef HopperChain<T, MT, MT == 1> Chain;
  enum {
    kChunk = 128,
    kRow = kHopperTileRow,
    kTile = 16 * kRow,
    kTurns = kHopperUnpackers / 2  // warps that share a panel
  };
  static_assert(Chain::kRow == kRow, "one ring");

  // A position in a stream of chunks, unit after unit.
  struct Stream {
    int unit, k, slot, parity;
  };
  struct Smem {
    unsigned long long full[kHopperUnpackDepth], empty[kHopperUnpackDepth];
    unsigned long long raw[kHopperUnpackers][kHopperRawSlots];
    unsigned long long x_full;
    __align__(16) float chains[256];
  };

  // Moves on by up to four chunks; the ring has at least as many.
  HOPPER_FN void advance(const HopperQuantisedParams& p, Stream& s, int chunks) {
    s.slot += chunks;
    if (s.slot >= p.depth) {
      s.slot -= p.depth;
      s.parity ^= 1;
    }
    s.k += chunks * kChunk;
    while (s.k >= p.whole_k) {
      s.k -= p.whole_k;
      s.unit += (int)gridDim.x;
    }
  }

  // ---- x ----

  // Loads a chunk of x: half a warp per row, 16 pieces of 16 bytes, in every second pair of rows; another warp loads
  // the others.
  HOPPER_FN void stream_x(const HopperQuantisedParams& p, uint ring, const T* x, const Stream& at, int which, uint full,
                          int lane) {
    const int piece = lane & 15;
    if (at.k + piece * 8 < p.linear.k) {
      const T* from = x + at.k + piece * 8;
      const uint to = ring + at.slot * p.stage_bytes + kHopperPairBytes + piece * 16;
#pragma unroll 4
      for (int row = (lane >> 4) + 2 * which; row < p.linear.m; row += 4) {
        hopper_copy16(to + row * kRow, from + (i64)row * p.linear.x_stride);
      }
    }
    hopper_barrier_arrive_copied(full + at.slot * 8);
  }
  // Loads the chunks of x that the ring has room for at the start.
  HOPPER_FN void begin_x(const HopperQuantisedParams& p, uint ring, const T* x, int which, uint full, int lane) {
    Stream at = {(int)blockIdx.x, 0, 0, 0};
    for (int i = 0; i < p.depth && at.unit < p.units; i++) {
      stream_x(p, ring, x, at, which, full, lane);
      advance(p, at, 1);
    }
  }

  // ---- the warps that unpack ----

  // Requests a chunk of a panel; the copies arrive at `barrier` when they have landed.
  template <int Low, int High, bool Table, int Scheme>
  HOPPER_FN void request(const HopperQuantisedParams& p, const uchar* w, const Stream& at, int which, uint to,
                         uint barrier, int lane) {
    constexpr bool kByTwo = Scheme == kSchemeScale || Scheme == kSchemeScaleMin || Scheme == kSchemeExponent;
    constexpr bool kGrouped = Scheme == kSchemeGroup || Scheme == kSchemeE4M3;
    constexpr int kSubShift = Scheme == kSchemeSuperMin || Table ? 1 : 0;
    const int number =
        p.linear.epilogue == kHopperGated ? at.unit + which * p.gate_panels : min(2 * at.unit + which, p.panels - 1);
    const uchar* panel = w + (i64)number * p.weight.stride;
    const uint first = (uint)at.k / 16, last = (uint)min(at.k + kChunk, p.linear.k) / 16 - 1;
    hopper_request_part<(Low + 1) / 2, 0>(p, 0, panel, to, first, last, lane);
    if (High > 0) hopper_request_part<1, 0>(p, 1, panel, to, first, last, lane);
    hopper_request_part<1, kGrouped ? -1 : kByTwo ? 1 : 4>(p, 2, panel, to, first, last, lane);
    if (!kByTwo && !kGrouped) hopper_request_part<1, kSubShift>(p, 3, panel, to, first, last, lane);
    hopper_barrier_arrive_copied(barrier);
  }

  // Unpacks the eight steps of a chunk for 16 rows. A lane has one row and two of the four pairs of steps; a pair
  // shares a head.
  template <int Low, int High, bool Table, int Scheme>
  HOPPER_FN void unpack(const HopperQuantisedParams& p, const HopperRawChunk& chunk, int k, int steps, uchar* to,
                        int lane) {
    constexpr bool kGrouped = Scheme == kSchemeGroup || Scheme == kSchemeE4M3;
    constexpr bool kTwo = Scheme == kSchemeSubScale || Scheme == kSchemeSubScaleMin;
    const int r = lane & 15;
    const float base = 8388608.0f + (Table ? 128.0f : (float)p.weight.offset);
    const uint first = (uint)k / 16;
#pragma unroll 1
    for (int pair = lane >> 4; 2 * pair < steps; pair += 2) {
      const int head = kGrouped ? hopper_in_units<-1>(p, first + 2 * pair) - hopper_in_units<-1>(p, first) : 0;
      WeightRaw raw[2];
      UNROLL for (int j = 0; j < 2; j++) hopper_fetch<Low, High>(chunk, (2 * pair + j) * 16 + r, raw[j]);
      if constexpr (Scheme == kSchemeExponent && HopperSame<T, bfloat>::value) {
        const uint exponent = chunk.heads[pair * 16 + r];
        UNROLL for (int j = 0; j < 2; j++) hopper_unpack16_fp4(raw[j], exponent, to + (2 * pair + j) * 32);
        continue;
      }
      WeightScale scale = hopper_scale < Scheme, Table ? 1 : 0 > (chunk, pair, 0, head, r);
      UNROLL for (int j = 0; j < 2; j++) {
        if (kTwo && j == 1) scale = hopper_scale < Scheme, Table ? 1 : 0 > (chunk, pair, 1, head, r);
        uint c[4];
        hopper_codes<Low, High, Table>(p.weight.values, raw[j], c);
        if (Scheme == kSchemeE4M3) {
          hopper_unpack16_e4m3<T>(c, scale.scale, to + (2 * pair + j) * 32);
        } else {
          hopper_unpack16<T>(c, scale, base, to + (2 * pair + j) * 32);
        }
      }
    }
  }

  // The work of unpacking warp `number`.
  template <int Low, int High, bool Table, int Scheme>
  HOPPER_FN void unpack_all(const HopperQuantisedParams& p, uchar* ring, const uchar* slots, const uchar* w, const T* x,
                            Smem& sm, int number, int lane) {
    const int which = number & 1, r = lane & 15;
    const uint full = ptx_shared_address(sm.full), empty = ptx_shared_address(sm.empty);
    const uint to = ptx_shared_address(slots), there = ptx_shared_address(sm.raw[number]);
    // Gated tiles have eight rows of gate, then eight of up.
    uchar* row = ring + (p.linear.epilogue == kHopperGated ? (r >> 3) * kTile + ((r & 7) + 8 * which) * kRow
                                                           : which * kTile + r * kRow);
    Stream at = {(int)blockIdx.x, 0, 0, 0};
    advance(p, at, number >> 1);
    Stream requested = at;
    for (int i = 0; i < p.slots && requested.unit < p.units; i++) {
      request<Low, High, Table, Scheme>(p, w, requested, which, to + i * p.slot_bytes, there + i * 8, lane);
      advance(p, requested, kTurns);
    }
    int slot = 0, parity = 0, chunks = number >> 1;
#pragma unroll 1
    while (at.unit < p.units) {
      const uchar* from = slots + slot * p.slot_bytes;
      const HopperRawChunk chunk = {from, from + p.parts[1].slot_at, from + p.parts[2].slot_at,
                                    from + p.parts[3].slot_at};
      hopper_barrier_wait_calmly(there + slot * 8, parity, lane);
      hopper_barrier_wait_calmly(empty + at.slot * 8, at.parity ^ 1, lane);
      if (!p.resident && chunks >= p.depth) {
        ptx_grid_wait();
        stream_x(p, ptx_shared_address(ring), x, at, which, full, lane);
      }
      chunks += kTurns;
      unpack<Low, High, Table, Scheme>(p, chunk, at.k, min(kChunk, p.linear.k - at.k) / 16,
                                       row + at.slot * p.stage_bytes, lane);
      __syncwarp();
      if (lane == 0) hopper_barrier_arrive(full + at.slot * 8);
      if (requested.unit < p.units) {
        request<Low, High, Table, Scheme>(p, w, requested, which, to + slot * p.slot_bytes, there + slot * 8, lane);
        advance(p, requested, kTurns);
      }
      advance(p, at, kTurns);
      slot = slot + 1 == p.slots ? 0 : slot + 1;
      parity ^= slot == 0 ? 1 : 0;
    }
    // A thread must not exit while its own copies are in flight.
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

  HOPPER_FN void unpacker(const HopperQuantisedParams& p, uchar* ring, uchar* slots, const uchar* w, const T* x,
                          Smem& sm, int number, int lane) {
    slots += number * p.slots * p.slot_bytes;
#define HOPPER_KIND(low, high, table, scheme) \
  return unpack_all<low, high, table != 0, scheme>(p, ring, slots, w, x, sm, number, lane)
    HOPPER_KINDS(p.kind)
#undef HOPPER_KIND
  }

  // ---- the warps that multiply ----

  HOPPER_FN void chain(const HopperQuantisedParams& p, uint ring, uint rows, Smem& sm, void* out, const float* bias,
                       const float* residual, int warp, int lane) {
    const HopperLinearParams& l = p.linear;
    const uint full = hopper_kept(ptx_shared_address(sm.full)), empty = hopper_kept(ptx_shared_address(sm.empty));
    const int half = warp & 1, m0 = (warp >> 1) * 8 * MT;
    const uint lane_w = ring + half * kTile + (lane & 15) * kRow + (lane >> 4) * 16;
    uint lane_x[MT], x[MT];  // absent rows repeat the last one
    UNROLL for (int j = 0; j < MT; j++) {
      lane_x[j] = rows + min(m0 + 8 * j + (lane & 7), l.m - 1) * p.x_row + (lane >> 3) * 16;
      x[j] = lane_x[j];
    }
    Stream at = {(int)blockIdx.x, 0, 0, 0};
    typename Chain::Sums sums = {};
    typename Chain::Window f;
    Chain::begin(l, sums, 2 * at.unit + half, m0, residual, lane);
    hopper_barrier_wait(full, 0);
    Chain::first_four(f, lane_w, x);
#pragma unroll 1
    while (true) {
      const int steps = min(kChunk, l.k - at.k) / 16;
      const bool turned = at.slot + 1 == p.depth, ended = at.k + kChunk >= l.k;
      const Stream next = {at.unit + (ended ? (int)gridDim.x : 0), ended ? 0 : at.k + kChunk, turned ? 0 : at.slot + 1,
                           at.parity ^ (turned ? 1 : 0)};
      const bool more = next.unit < p.units;
      // Asked early, so that the answer arrives during the latency of the products.
      const bool ready = hopper_barrier_ready(full + next.slot * 8, next.parity);
      Chain::first_half(sums, f, steps, lane_w + at.slot * p.stage_bytes, x);
      const uint next_w = lane_w + next.slot * p.stage_bytes;
      const uint next_at = p.resident ? next.k * 2 : next.slot * p.stage_bytes;
      UNROLL for (int j = 0; j < MT; j++) x[j] = lane_x[j] + next_at;
      if (more && !ready) hopper_barrier_wait(full + next.slot * 8, next.parity);
      Chain::second_half(sums, f, steps, more, next_w, x);
      // All lanes have read all of the chunk into registers.
      __syncwarp();
      if (lane == 0) hopper_barrier_arrive(empty + at.slot * 8);
      if (ended) {
        Chain::finish(l, sums, 2 * at.unit + half, m0, out, bias, residual, lane);
        if (more) Chain::begin(l, sums, 2 * next.unit + half, m0, residual, lane);
      }
      if (!more) return;
      at = next;
    }
  }

  HOPPER_FN void init_barriers(const HopperQuantisedParams& p, Smem& sm) {
    const int tid = (int)threadIdx.x;
    if (tid < kHopperUnpackDepth) {
      hopper_barrier_init(ptx_shared_address(&sm.full[tid]), p.resident ? 2 : 2 + 64);
      hopper_barrier_init(ptx_shared_address(&sm.empty[tid]), 2 * p.groups);
    }
    if (tid < kHopperUnpackers * kHopperRawSlots) hopper_barrier_init(ptx_shared_address(&sm.raw[0][0]) + tid * 8, 32);
    if (tid == 0) hopper_barrier_init(ptx_shared_address(&sm.x_full), 1);
    hopper_barrier_init_done();
    __syncthreads();
  }

  HOPPER_FN void run(const HopperQuantisedParams& p, void* out, const void* x, const uchar* w, const float* bias,
                     const float* norm, const float* residual) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Smem sm;
    ptx_grid_release();
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    uchar* ring = shared;
    uchar* slots = ring + p.depth * p.stage_bytes;
    uchar* rows = slots + kHopperUnpackers * p.slots * p.slot_bytes;
    init_barriers(p, sm);
    if (warp >= Chains) return unpacker(p, ring, slots, w, (const T*)x, sm, warp - Chains, lane);
    if (MT == 1 && p.linear.normed) {
      for (int k = (int)threadIdx.x * 32; k < p.linear.k; k += 64 * 32) {
        asm volatile("prefetch.global.L1 [%0];" ::"l"(norm + k));
      }
    }
    ptx_grid_wait();
    const uint x_full = ptx_shared_address(&sm.x_full);
    if (MT == 1 && p.linear.normed) {
      hopper_norm_x<T>(p, rows, (const float*)x, norm, (float*)(rows + p.linear.m * p.x_row + 256), sm.chains,
                       (int)threadIdx.x);
    } else if (p.resident) {
      if (warp == 0) hopper_copy_x(p, ptx_shared_address(rows), (const T*)x, x_full, lane);
      hopper_barrier_wait(x_full, 0);
    } else if (warp < 2) {
      begin_x(p, ptx_shared_address(ring), (const T*)x, warp, ptx_shared_address(sm.full), lane);
    }
    if (warp >= 2 * p.groups) return;
    const uint at = ptx_shared_address(p.resident ? rows : ring + kHopperPairBytes);
    chain(p, ptx_shared_address(ring), at, sm, out, bias, residual, warp, lane);
  }
};

#define HOPPER_LINEAR_QUANTISED(types, T, rows, tiles, chains, groups)                                               \
  extern "C" __global__ void __launch_bounds__(hopper_quantised_threads(chains), groups)                             \
      hopper_linear_##types##_quantised_m##rows(const __grid_constant__ HopperQuantisedParams p, void* out,          \
                                                const void* x, const uchar* w, const float* bias, const float* norm, \
                                                const float* residual) {                                             \
    HopperLinearQuantised<T, tiles, chains>::run(p, out, x, w, bias, norm, residual);                                \
  }
HOPPER_LINEAR_QUANTISED(bf16, bfloat, 8, 1, 2, 2)
HOPPER_LINEAR_QUANTISED(bf16, bfloat, 16, 2, 2, 2)
HOPPER_LINEAR_QUANTISED(bf16, bfloat, 32, 2, 4, 2)
HOPPER_LINEAR_QUANTISED(bf16, bfloat, 64, 4, 4, 1)
HOPPER_LINEAR_QUANTISED(f16, half, 8, 1, 2, 2)
HOPPER_LINEAR_QUANTISED(f16, half, 16, 2, 2, 2)
HOPPER_LINEAR_QUANTISED(f16, half, 32, 2, 4, 2)
HOPPER_LINEAR_QUANTISED(f16, half, 64, 4, 4, 1)

// The product of one tile of rows, sorted by expert, with its expert's weight. Grid: as planned for one expert, by the
// number of tiles. The weights can only be requested when the expert is known.
template <typename T, int MT, int Chains>
HOPPER_FN void hopper_moe_quantised(const HopperMoeQuantisedParams& p, T* out, const T* x, const uchar* w,
                                    const float* bias, const int* experts) {
  if (!p.early) ptx_grid_wait();
  const int expert = __ldcg(experts + blockIdx.y);
  if (expert < 0) {
    if (p.early) ptx_grid_wait();
    return;
  }
  const HopperLinearParams& l = p.product.linear;
  const i64 row = (i64)blockIdx.y * l.m;
  HopperLinearQuantised<T, MT, Chains>::run(p.product, out + row * l.out_stride, x + row * l.x_stride,
                                            w + expert * p.product.weight.expert_stride,
                                            l.biased ? bias + (i64)expert * l.n : bias, nullptr, nullptr);
}

#define HOPPER_MOE_QUANTISED(types, T, rows, tiles, chains, groups)                                                  \
  extern "C" __global__ void __launch_bounds__(hopper_quantised_threads(chains), groups)                             \
      hopper_moe_##types##_quantised_m##rows(const __grid_constant__ HopperMoeQuantisedParams p, T* out, const T* x, \
                                             const uchar* w, const float* bias, const int* experts) {                \
    hopper_moe_quantised<T, tiles, chains>(p, out, x, w, bias, experts);                                             \
  }
HOPPER_MOE_QUANTISED(bf16, bfloat, 8, 1, 2, 2)
HOPPER_MOE_QUANTISED(bf16, bfloat, 16, 2, 2, 2)
HOPPER_MOE_QUANTISED(bf16, bfloat, 32, 2, 4, 2)
HOPPER_MOE_QUANTISED(bf16, bfloat, 64, 4, 4, 1)
HOPPER_MOE_QUANTISED(f16, half, 8, 1, 2, 2)
HOPPER_MOE_QUANTISED(f16, half, 16, 2, 2, 2)
HOPPER_MOE_QUANTISED(f16, half, 32, 2, 4, 2)
HOPPER_MOE_QUANTISED(f16, half, 64, 4, 4, 1)
