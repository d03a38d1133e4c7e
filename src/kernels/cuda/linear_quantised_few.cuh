// SPDX-License-Identifier: Apache-2.0
// linear for quantised weights and 1 to 8 rows: warps unpack codes into registers, where the tensor cores take them
// (sm_90a).
//
// Equal by memcmp to linear_quantised_wide.cuh, which serves more rows, and to the portable linear. What limits a
// product of few rows is the chain: one k16 step after the other, in a fixed order, and beside it the instructions that
// make values of codes. So codes are never unpacked into shared memory. A tile of 16 rows of W is one panel and belongs
// to `turns` warps, which take its pieces of 256 k in turn:
//   - A warp has requested the codes of its next pieces ahead, into slots of its own.
//   - It makes the operands of all 16 steps of its piece, 64 registers, while the other warps run their chains: a lane
//     reads its four codes of a step and row, 16 neighbouring bits where codes have four.
//   - Then the warp before it hands over the sums, through shared memory; it multiplies, and hands them on.
// A threadgroup has `at_once` tiles at once. Where these are many there are no turns: a warp then makes the operands of
// its next piece between the products of this one.
//
// Codes of four bits become bf16 in pairs, by three instructions that are exact until the last one rounds
// (HopperPiecePairs).
//
// The first weights are loaded and unpacked while the preceding launch still runs; x is read after it, by the warps
// whose turn comes last.
//
// Grid, threads and dynamic memory: hopper_quantised_few_plan(). REQUIRES: k is a multiple of 64; x and out are on
// 16-byte boundaries, x_stride is a multiple of 8 (F32: 4); gated: each half has whole panels.
#pragma once

#include "kernels/cuda/linear_chain.cuh"
#include "kernels/cuda/quantised_pieces.cuh"
#include "kernels/norm_sum.h"

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

// Not inline: with these instructions in between, those of the chain would be further apart.
template <typename T>
struct HopperFewAside {
  static __device__ __noinline__ float activated(const HopperLinearParams& l, float y, float up) {
    return l.epilogue == kHopperGated ? activate_glu(l.activation, l.limit, y, up) : activate(l.activation, y);
  }
  static __device__ __noinline__ void norm_rows(const HopperQuantisedParams& p, uchar* rows, const float* x,
                                                const float* norm, float* chains, int tid) {
    for (int k = tid * 32; k < p.linear.k; k += 64 * 32) {
      asm volatile("prefetch.global.L1 [%0];" ::"l"(norm + k));
    }
    ptx_grid_wait();
    hopper_norm_x<T>(p, rows, x, norm, (float*)(rows + p.linear.m * p.x_row + 256), chains, tid);
  }
};

struct HopperFewSmem {
  unsigned long long x_full;
  __align__(16) float chains[256];  // of a norm
};

// `Whole`: K has whole pieces.
template <typename T, typename Kind, bool Whole>
struct HopperQuantisedFew {
  // ---- the epilogue ----

  // hopper_linear_finish() for the sums of a panel, [row of x][row of W], with a lane for each of them in turn. It runs
  // once, so what it costs is mostly the way of its instructions from memory: they are few here. Gated: `up` has the
  // sums of the other panel; each of two warps has every second pair of rows of x.
  HOPPER_FN void finish(const HopperLinearParams& l, const float* sums, const float* up, int panel, int share,
                        void* out, const float* bias, const float* residual, int lane) {
    const bool gated = l.epilogue == kHopperGated;
    const int r = lane & 15, n = panel * 16 + r;
    if (n >= l.n) return;
#pragma unroll 1
    for (int m = (lane >> 4) + 2 * share; m < l.m; m += gated ? 4 : 2) {
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
      if (l.epilogue != kHopperStore) {
        y = HopperFewAside<T>::activated(l, y, gated ? hopper_rounded<T>(up[m * 16 + r], l, bias, l.n / 2 + n) : 0.0f);
      }
      ((T*)out)[at] = to<T>(y);
    }
  }

  // ---- the warps ----

  // The place of a piece: its tile, and its number there; `round` counts a warp's tiles.
  struct Place {
    int tile, piece, round;
  };

  HOPPER_FN void run(const HopperQuantisedParams& p, HopperFewSmem& sm, void* out, const void* x, const uchar* w,
                     const float* bias, const float* norm, const float* residual) {
    extern __shared__ __align__(128) unsigned char shared[];
    ptx_grid_release();
    const HopperLinearParams& l = p.linear;
    const int tid = (int)threadIdx.x, lane = tid & 31, warp = tid >> 5, warps = (int)(blockDim.x >> 5);
    const int turns = p.turns, at_once = p.at_once, depth = p.depth, slot_bytes = p.slot_bytes;
    const int pieces = (l.k + 255) / 256, mine = warp / turns, turn = warp - mine * turns;
    const bool gated = l.epilogue == kHopperGated, alone = turns == 1;
    const int newer = depth - (alone ? 2 : 1);  // pieces under way beside the one that is waited for
    const int each = gated ? 2 : 1, first = each * (int)(blockIdx.x * (uint)p.units / gridDim.x),
              last = each * (int)((blockIdx.x + 1) * (uint)p.units / gridDim.x);
    // Shared memory: the slots of all warps, their scales, sums that are handed over, results, x.
    uchar* scales = shared + warps * depth * slot_bytes;
    uchar* handed = scales + warps * p.scale_bytes;
    float* results = (float*)(handed + at_once * (32 * 16));  // [2][at_once][row of x][row of W]
    uchar* rows = (uchar*)(results + 2 * at_once * (8 * 16));
    const uchar* raw = shared + warp * depth * slot_bytes;
    const uint slots = ptx_shared_address(raw), slots_end = slots + depth * slot_bytes,
               my_scales = ptx_shared_address(scales) + warp * p.scale_bytes;
    const uint my_sums = ptx_shared_address(handed) + (mine * 32 + lane) * 16, x_full = ptx_shared_address(&sm.x_full);
    const unsigned long long policy = hopper_read_once();
    if (tid == 0) hopper_barrier_init(x_full, l.normed ? 2 : (int)blockDim.x);
    hopper_barrier_init_done();

    const auto advance = [&](Place& at) {
      at.piece += turns;
      if (at.piece >= pieces) at.piece -= pieces, at.tile += at_once, at.round++;
    };
    Place now = {first + mine, turn, 0}, next = now;
    const auto panel_of = [&](int tile) {
      const uint panel = gated ? (tile >> 1) + (tile & 1) * p.gate_panels : tile;
      return w + (unsigned long long)panel * (uint)p.weight.stride;
    };
    const uchar* panel = panel_of(next.tile);
    const auto steps_of = [&](int piece) { return Whole ? 16 : min(16, l.k / 16 - piece * 16); };
    const auto request_next = [&](uint to) {
      if (next.tile < last) {
        Kind::template request<Whole>(p, panel, next.piece, steps_of(next.piece), to, policy, lane);
        const int tile = next.tile;
        advance(next);
        if (next.tile != tile) panel = panel_of(next.tile);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (uint to = slots; to < slots_end - (alone ? slot_bytes : 0); to += slot_bytes) request_next(to);
    __syncthreads();  // x_full is there

    // Two warps normalise x, those whose turn comes last.
    if (l.normed && warp >= warps - 2) {
      HopperFewAside<T>::norm_rows(p, rows, (const float*)x, norm, sm.chains, tid - (warps - 2) * 32);
      if (lane == 0) hopper_barrier_arrive(x_full);
    }

    const int g = lane >> 2, t = lane & 3;
    // Absent rows repeat the last one.
    const uint lane_x = ptx_shared_address(rows) + min(lane & 7, l.m - 1) * p.x_row + (lane >> 3) * 16;
    uint a[16][4], b[3][4];  // operands of 16 steps, and of three pairs of steps
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    uint slot = slots;

    // Waits for the oldest piece under way, which is in `from`, and prepares its scales.
    const auto expect = [&](int piece, uint from, uint to) {
      hopper_wait_pieces(newer);
      __syncwarp();
      Kind::scales(p, raw + (from - slots), piece, to, lane);
      __syncwarp();
    };
    const auto after = [&](uint at) { return at + slot_bytes == slots_end ? slots : at + slot_bytes; };
    const typename Kind::Powers powers = Kind::powers();
    const auto unpack = [&](int s, uint from, uint scale, uint(&to)[4]) {
      Kind::operand(p, powers, from, scale, s, g, t, to);
    };
    const auto begin_x = [&](uint from) {
      hopper_ldmatrix(b[0], from);
      hopper_ldmatrix(b[1], from + 64);
    };
    const auto multiply = [&](int s, const uint(&of_w)[4], uint from) {
      const uint* of_x = b[s / 2 % 3] + 2 * (s & 1);
      hopper_chain_mma(acc, of_w, of_x[0], of_x[1], T());
      if (s % 2 == 0 && s + 4 < 16) hopper_ldmatrix(b[(s / 2 + 2) % 3], from + (s / 2 + 2) * 64);
    };
    // The warp that has multiplied a tile's last piece stores its results, of gate and up together with the other's.
    const auto finish_tile = [&]() {
      const int m = t * 2, share = gated ? mine & 1 : 0;
      // Two sets, because the other warp may still read those of the tile before.
      float* all = results + (now.round & 1) * at_once * (8 * 16);
      UNROLL for (int i = 0; i < 4; i++) all[(mine * 8 + m + (i & 1)) * 16 + g + 8 * (i >> 1)] = acc[i];
      __syncwarp();
      if (gated) hopper_pair_wait(p.gate_barrier + mine / 2);
      const float* sums = all + (mine - share) * (8 * 16);
      finish(l, sums, sums + 8 * 16, gated ? now.tile >> 1 : now.tile, share, out, bias, residual, lane);
      __syncwarp();
    };

    // All threads copy x, when the first operands are there. The copy engine would be slower, because of the fence that
    // it needs.
    const auto bring_x = [&]() {
      ptx_grid_wait();
      if (l.normed) return;
#pragma unroll 1
      for (int m = 0; m < l.m; m++) {
        const T* from = (const T*)x + (i64)m * l.x_stride;
        const uint to = ptx_shared_address(rows) + m * p.x_row;
#pragma unroll 4
        for (int k = tid * 8; k < l.k; k += (int)blockDim.x * 8) hopper_copy16(to + k * 2, from + k);
      }
      hopper_barrier_arrive_copied(x_full);
    };
    if (alone) {
      // Four steps ahead of the products, the operand of another step takes the place of the one just multiplied. The
      // slot that the piece before has left is filled again.
      uint scale = my_scales, free = slots_end - slot_bytes;
      if (now.tile < last) {
        expect(now.piece, slot, scale);
        UNROLL for (int s = 0; s < 4; s++) unpack(s, slot, scale, a[s]);
      }
      bring_x();
      hopper_barrier_wait(x_full, 0);
#pragma unroll 1
      while (now.tile < last) {
        const int steps = steps_of(now.piece);
        const bool ended = now.piece + 1 == pieces, more = !ended || now.tile + at_once < last;
        const uint from = lane_x + now.piece * 512, next_slot = after(slot);
        const uint next_scale = scale == my_scales ? my_scales + p.scale_bytes / 2 : my_scales;
        request_next(free);
        begin_x(from);
        if (more) expect(ended ? 0 : now.piece + 1, next_slot, next_scale);
        UNROLL for (int s = 0; s < 16; s++) {
          if (Whole || s / 4 < steps / 4) multiply(s, a[s & 3], from);
          if (s < 12) {
            unpack(s + 4, slot, scale, a[s & 3]);
          } else {
            unpack(s - 12, next_slot, next_scale, a[s & 3]);  // of no use, if there is no more
          }
        }
        __syncwarp();  // all lanes have read the codes
        free = slot;
        slot = next_slot;
        scale = next_scale;
        if (ended) {
          finish_tile();
          UNROLL for (int i = 0; i < 4; i++) acc[i] = 0.0f;
        }
        advance(now);
      }
    } else {
      const int hand_from = 1 + warp, hand_to = turn + 1 == turns ? hand_from - turn : hand_from + 1;
      bool begun = false;
      if (now.tile >= last) bring_x();
#pragma unroll 1
      while (now.tile < last) {
        const int steps = steps_of(now.piece);
        const bool ended = now.piece + 1 == pieces, more = !ended || now.tile + at_once < last;
        const uint from = lane_x + now.piece * 512;
        expect(now.piece, slot, my_scales);
        UNROLL for (int s = 0; s < 16; s++) unpack(s, slot, my_scales, a[s]);
        if (!begun) bring_x();
        __syncwarp();  // all lanes have read the codes
        request_next(slot);
        slot = after(slot);
        if (!begun) hopper_barrier_wait(x_full, 0);
        begin_x(from);
        // The operands are complete before the sums arrive.
        UNROLL for (int s = 0; s < 16; s++) {
          asm volatile("" : "+r"(a[s][0]), "+r"(a[s][1]), "+r"(a[s][2]), "+r"(a[s][3]));
        }
        if (begun || now.piece != 0) hopper_pair_wait(hand_from);
        begun = true;
        if (now.piece == 0) {
          UNROLL for (int i = 0; i < 4; i++) acc[i] = 0.0f;
        } else {
          hopper_load_sums(acc, my_sums);
        }
        UNROLL for (int s = 0; s < 16; s++) {
          if (Whole || s / 4 < steps / 4) multiply(s, a[s], from);
        }
        if (ended) {
          finish_tile();
        } else {
          hopper_store_sums(my_sums, acc);
        }
        if (more) hopper_pair_arrive(hand_to);
        advance(now);
      }
    }
    // A thread must not exit while its own copies are in flight.
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
};

#define HOPPER_LINEAR_QUANTISED_FEW(types, T, kind, low, high, table, scheme)                                       \
  extern "C" __global__ void __launch_bounds__(kHopperFewQuantisedThreads, 1) hopper_linear_##types##_few_##kind(   \
      const __grid_constant__ HopperQuantisedParams p, void* out, const void* x, const uchar* w, const float* bias, \
      const float* norm, const float* residual) {                                                                   \
    __shared__ HopperFewSmem sm;                                                                                    \
    typedef HopperPieceKind<T, low, high, table != 0, scheme> Kind;                                                 \
    if (!Kind::kEnds || p.linear.k % 256 == 0) {                                                                    \
      HopperQuantisedFew<T, Kind, true>::run(p, sm, out, x, w, bias, norm, residual);                               \
    } else {                                                                                                        \
      HopperQuantisedFew<T, Kind, !Kind::kEnds>::run(p, sm, out, x, w, bias, norm, residual);                       \
    }                                                                                                               \
  }
#define HOPPER_LINEAR_QUANTISED_FEW_BOTH(kind, ...)            \
  HOPPER_LINEAR_QUANTISED_FEW(bf16, bfloat, kind, __VA_ARGS__) \
  HOPPER_LINEAR_QUANTISED_FEW(f16, half, kind, __VA_ARGS__)
HOPPER_QUANTISED_KINDS(HOPPER_LINEAR_QUANTISED_FEW_BOTH)
