// SPDX-License-Identifier: Apache-2.0
// The products of experts in MXFP4 with tiles of up to 16 sorted rows and bf16 activations (sm_90a).
//
// Equal by memcmp to linear_quantised_wide.cuh, which serves every quantised type: a value of MXFP4 is exact in bf16,
// and a sum is one chain of k16 steps from zero. Here no warp unpacks for another. A warp takes 16 rows of W (gated:
// eight of gate and the matching eight of up), copies its codes some chunks ahead into a ring of its own, and turns the
// eight codes that a lane needs for a step into the four registers of mma's first operand. The rows of x stay in shared
// memory as a whole.
//
// The code is short where it runs (see docs/notes/gpu-families.md): with one token, instructions arrive from memory.
//
// Grid: (tiles of rows of W by warps, tiles of rows of x). Threads: 32 per warp. Dynamic memory: hopper_fp4_memory().
// REQUIRES: k is a multiple of 32, n of 16 (gated: 32).
#pragma once

#include "kernels/cuda/linear_chain.cuh"
#include "kernels/params/hopper_quantised.h"

HOPPER_FN void hopper_copy8(uint to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
HOPPER_FN void hopper_copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
HOPPER_FN void hopper_copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
HOPPER_FN uint hopper_multiply_bf16(uint a, uint b) {
  uint r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

template <int MT>
struct HopperMoeFp4 {
  typedef HopperChain<bfloat, MT, false> Chain;
  enum {
    kSteps = kHopperFp4Steps,
    kDepth = hopper_fp4_depth(8 * MT),
    kHeadsAt = kSteps * 128,
    kChunk = kHopperFp4Chunk
  };

  // Where a lane's codes and exponents come from. A step of a panel has 16 rows of eight bytes, so half a tile is 64
  // bytes of it; a pair of steps has a byte of exponent per row.
  struct Source {
    const uchar *codes, *heads;
  };
  HOPPER_FN Source source_of(const HopperMoeFp4Params& p, const uchar* w, int tile, int lane) {
    const bool gated = p.linear.epilogue == kHopperGated;
    const int half = lane >> 2 & 1, head_half = lane & 1;
    const auto panel = [&](int which) {
      return w + (i64)(gated ? (tile >> 1) + which * (p.linear.n >> 5) : tile) * p.weight.stride;
    };
    const int row = gated ? tile & 1 : half, head_row = gated ? tile & 1 : head_half;
    return {panel(half) + row * 64 + (lane >> 3) * 128 + (lane & 3) * 16,
            panel(head_half) + p.weight.head_at + head_row * 8 + (lane >> 1) * 16};
  }
  // Requests the chunk that begins at `step`, or nothing behind the last one; a group of copies either way.
  HOPPER_FN void request(const Source& from, uint to, int step, int steps, int lane) {
    const int left = steps - step;
    UNROLL for (int j = 0; j < kSteps / 4; j++) {
      if ((lane >> 3) + 4 * j < left) hopper_copy16(to + lane * 16 + j * 512, from.codes + (i64)step * 128 + j * 512);
    }
    if (lane < kSteps && lane < left) hopper_copy8(to + kHeadsAt + lane * 8, from.heads + (i64)step * 8);
    hopper_copies_commit();
  }

  // The power of two that turns the bits of a code, taken as the end of a tiny bf16, into its value: 2^126 times the
  // block's 2^(e - 127). `Rare`: above 2^127 the rest is in `more`, and an exponent below 2 stands for zeros.
  template <bool Rare>
  HOPPER_FN uint factor(uint exponent) {
    if (Rare && exponent < 2) return 0;
    return ((Rare ? min(exponent, 128u) : exponent) + 126u) * 0x00800080u;
  }
  HOPPER_FN uint more(uint exponent) { return (max(exponent, 128u) - 1u) * 0x00800080u; }
  // Four bytes of exponents: whether one of them is not from 2 to 127. Subtracting 2 from each byte borrows only below
  // a byte that is less than 2.
  HOPPER_FN bool is_rare(uint exponents) { return ((exponents - 0x02020202u) | exponents) & 0x80808080u; }

  // Copies the tile's rows of x, with the bulk copy engine.
  HOPPER_FN void copy_x(const HopperMoeFp4Params& p, uint rows, const bfloat* x, int count, uint full, int lane) {
    const int bytes = p.linear.k * 2;
    if (lane == 0) hopper_barrier_expect(full, count * bytes);
    __syncwarp();
    asm volatile("fence.proxy.async;" ::: "memory");
    for (int row = lane; row < count; row += 32) {
      hopper_copy_bulk(rows + row * (bytes + 16), x + (i64)row * p.linear.x_stride, bytes, full);
    }
  }

  // One step: 16 rows of W times 8 MT rows of x. Byte 0 of `codes` has k (low nibble) and k + 8 of row g, byte 1 those
  // of row g + 8; bytes 2 and 3 have k + 1 and k + 9. A nibble is a sign, two bits of exponent and one of fraction.
  template <bool Rare>
  HOPPER_FN void step(typename Chain::Sums& sums, uint codes, const uint (&scale)[2], const uint (&large)[2],
                      const uint (&x)[MT][4], int second) {
    const uint sign = 0x80008000u, size = 0x01c001c0u;
    uint a[4] = {(codes << 12 & sign) | (codes << 6 & size), (codes << 4 & sign) | (codes >> 2 & size),
                 (codes << 8 & sign) | (codes << 2 & size), (codes & sign) | (codes >> 6 & size)};
    UNROLL for (int i = 0; i < 4; i++) {
      a[i] = hopper_multiply_bf16(a[i], scale[i & 1]);
      if (Rare) a[i] = hopper_multiply_bf16(a[i], large[i & 1]);
    }
    UNROLL for (int j = 0; j < MT; j++) {
      hopper_chain_mma(sums.acc[j], a, x[j][2 * second], x[j][2 * second + 1], bfloat());
    }
  }

  // The pairs of steps of a chunk. `x`: the lane's address in each tile of rows of x.
  template <bool Rare>
  HOPPER_FN void chunk(typename Chain::Sums& sums, const uchar* from, const uint (&rows)[MT], int pairs, int lane) {
    const uchar* codes = from + lane * 2;
    const uchar* heads = from + kHeadsAt + (lane >> 2);
#pragma unroll(Rare ? 1 : 2)
    for (int pair = 0; pair < pairs; pair++) {
      uint x[MT][4];
      UNROLL for (int j = 0; j < MT; j++) hopper_ldmatrix(x[j], rows[j] + pair * 64);
      const uint e[2] = {heads[pair * 16], heads[pair * 16 + 8]};
      const uint scale[2] = {factor<Rare>(e[0]), factor<Rare>(e[1])};
      const uint large[2] = {Rare ? more(e[0]) : 0u, Rare ? more(e[1]) : 0u};
      UNROLL for (int i = 0; i < 2; i++) {
        const uchar* at = codes + (2 * pair + i) * 128;
        step<Rare>(sums, __byte_perm(*(const ushort*)at, *(const ushort*)(at + 64), 0x5140), scale, large, x, i);
      }
    }
  }

  HOPPER_FN void multiply(const HopperMoeFp4Params& p, const Source& source, const uchar* ring, const uint (&first)[MT],
                          typename Chain::Sums& sums, int lane) {
    const int steps = p.linear.k / 16;
    const uint to = ptx_shared_address(ring);
    uint x[MT];
    UNROLL for (int j = 0; j < MT; j++) x[j] = first[j];
    int slot = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step += kSteps) {
      hopper_copies_wait<kDepth - 1>();
      __syncwarp();
      const uchar* from = ring + slot * kChunk;
      const int pairs = min((int)kSteps, steps - step) / 2;
      // (Old bytes behind the last step may count as well.)
      const uint exponents = ((const uint*)(from + kHeadsAt))[lane % (kSteps * 2)];
      if (__any_sync(0xffffffffu, is_rare(exponents))) {
        chunk<true>(sums, from, x, pairs, lane);
      } else {
        chunk<false>(sums, from, x, pairs, lane);
      }
      __syncwarp();
      request(source, to + slot * kChunk, step + kDepth * kSteps, steps, lane);
      slot = slot + 1 == kDepth ? 0 : slot + 1;
      UNROLL for (int j = 0; j < MT; j++) x[j] += kSteps * 32;
    }
    // A thread must not exit while its own copies are in flight; the groups that are left are empty.
  }

  HOPPER_FN void run(const HopperMoeFp4Params& p, bfloat* out, const bfloat* x, const uchar* w, const float* bias,
                     const int* experts) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ unsigned long long x_full;
    const HopperLinearParams& l = p.linear;
    if (!p.early) ptx_grid_wait();
    // After the wait: so the table of experts is complete before the next launch begins.
    ptx_grid_release();
    const int expert = __ldcg(experts + blockIdx.y);
    const int count = min(__ldcg(experts + p.max_tiles + blockIdx.y), l.m);
    if (expert < 0) {
      if (p.early) ptx_grid_wait();
      return;
    }
    const int warps = (int)blockDim.x >> 5, warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    const int tile = (int)blockIdx.x * warps + warp;
    const bool works = tile < l.tiles;
    const uint full = ptx_shared_address(&x_full);
    uchar* ring = shared + warp * (kDepth * kChunk);
    const uint rows = ptx_shared_address(shared + warps * (kDepth * kChunk));
    const Source source = source_of(p, w + expert * p.weight.expert_stride, works ? tile : 0, lane);
    if (works) {
      UNROLL for (int i = 0; i < kDepth; i++) {
        request(source, ptx_shared_address(ring) + i * kChunk, i * kSteps, l.k / 16, lane);
      }
    }
    if (threadIdx.x == 0) {
      hopper_barrier_init(full, 1);
      hopper_barrier_init_done();
    }
    __syncthreads();
    if (p.early) ptx_grid_wait();
    const i64 row = (i64)blockIdx.y * p.tile_rows;
    if (warp == 0) copy_x(p, rows, x + row * l.x_stride, count, full, lane);
    if (!works) return;
    uint first[MT];  // absent rows repeat the last one
    UNROLL for (int j = 0; j < MT; j++) {
      first[j] = rows + min(8 * j + (lane & 7), count - 1) * (l.k * 2 + 16) + (lane >> 3) * 16;
    }
    typename Chain::Sums sums = {};
    hopper_barrier_wait(full, 0);
    multiply(p, source, ring, first, sums, lane);
    Chain::finish(l, sums, tile, 0, out + row * l.out_stride, l.biased ? bias + (i64)expert * l.n : bias, nullptr,
                  lane);
  }
};

#define HOPPER_MOE_FP4(rows, tiles, threads)                                                             \
  extern "C" __global__ void __launch_bounds__(threads)                                                  \
      hopper_moe_fp4_m##rows(const __grid_constant__ HopperMoeFp4Params p, bfloat* out, const bfloat* x, \
                             const uchar* w, const float* bias, const int* experts) {                    \
    HopperMoeFp4<tiles>::run(p, out, x, w, bias, experts);                                               \
  }
HOPPER_MOE_FP4(8, 1, kHopperFp4Threads)
HOPPER_MOE_FP4(16, 2, kHopperFp4Threads)
