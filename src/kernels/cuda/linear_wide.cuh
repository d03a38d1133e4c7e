// SPDX-License-Identifier: Apache-2.0
// linear for up to 32 rows: W is wgmma's 64-row operand, x its columns, both streamed (sm_90a).
//
// Equal by memcmp to linear_few.cuh, the portable linear and cuBLASLt without split-K. One warpgroup computes 64 rows
// of W (gated: 32 of gate and the matching 32 of up, alternating by eight) over all of K, 64 k per stage, loaded by
// cp.async.
//
// Grid: (tiles of 16 rows of W / 4). Threads and dynamic memory: hopper_linear_plan(). REQUIRES: K is a multiple of 64;
// x, W and out are on 16-byte boundaries, x_stride is a multiple of 8.
#pragma once

#include "kernels/cuda/hopper.cuh"

// d[64, NB] += a[64, 16] b[NB, 16]^T, both from swizzled shared memory.
#define HOPPER_D8(o)                                                                                          \
  "+f"(d[o]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3]), "+f"(d[o + 4]), "+f"(d[o + 5]), "+f"(d[o + 6]), \
      "+f"(d[o + 7])
#define HOPPER_WG_KK(name, type)                                                                         \
  HOPPER_FN void name(float(&d)[8], unsigned long long a, unsigned long long b, type) {                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32." HOPPER_NAME_##type "." HOPPER_NAME_##type \
                 " {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, 1, 1, 1, 0, 0;"                                    \
                 : HOPPER_D8(0)                                                                          \
                 : "l"(a), "l"(b));                                                                      \
  }                                                                                                      \
  HOPPER_FN void name(float(&d)[16], unsigned long long a, unsigned long long b, type) {                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." HOPPER_NAME_##type "." HOPPER_NAME_##type \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, 1, 1, 1, 0, 0;"    \
                 : HOPPER_D8(0), HOPPER_D8(8)                                                            \
                 : "l"(a), "l"(b));                                                                      \
  }
#define HOPPER_NAME_bfloat "bf16"
#define HOPPER_NAME_half "f16"
HOPPER_WG_KK(hopper_wg_kk, bfloat)
HOPPER_WG_KK(hopper_wg_kk, half)

template <typename T, int NB>
struct HopperLinearWide {
  enum { kStages = NB == 16 ? 10 : 8, kAhead = kStages - 2, kW = 64 * 128, kStage = kW + NB * 128 };

  static_assert(kStages == hopper_wide_stages(NB), "as the host counts");

  // Piece c of row r goes to c ^ (r % 8), wgmma's 128-byte swizzle; eight threads per row, 16 rows at a time.
  HOPPER_FN void load_w(const uint* rows, const T* w, uint to, int k) {
    const uint r = threadIdx.x >> 3, c = threadIdx.x & 7;
    const uint at = to + r * 128 + ((c ^ (r & 7)) << 4);
    UNROLL for (int i = 0; i < 4; i++) hopper_copy16(at + i * 2048, (const uint4*)w + (rows[i] + (uint)(k >> 3)));
  }
  HOPPER_FN void load_x(const HopperLinearParams& p, const T* x, uint to, int k) {
    const int r = (int)threadIdx.x >> 3, c = (int)threadIdx.x & 7;
    UNROLL for (int i = 0; i < NB / 16; i++) {
      const int row = min(r + 16 * i, p.m - 1);
      hopper_copy16(to + (r + 16 * i) * 128 + ((c ^ (r & 7)) << 4), x + (i64)row * p.x_stride + k + c * 8);
    }
  }

  HOPPER_FN void run(const HopperLinearParams& p, void* out, const T* x, const T* w, const float* bias,
                     const float* residual) {
    extern __shared__ __align__(128) unsigned char shared[];
    ptx_grid_release();
    const uint base = (ptx_shared_address(shared) + 1023) & ~1023u;
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    const int stages = p.k / 64;
    uint rows[4];  // what this thread loads of W, counted in 16-byte pieces
    UNROLL for (int i = 0; i < 4; i++) {
      const int tile = min((int)blockIdx.x * 4 + i, p.tiles - 1);
      rows[i] = (uint)hopper_linear_row(p, tile, (int)threadIdx.x >> 3) * (uint)(p.k >> 3) + (threadIdx.x & 7);
    }
    UNROLL for (int s = 0; s < kAhead; s++) {
      if (s < stages) load_w(rows, w, base + s * kStage, s * 64);
    }
    ptx_grid_wait();
    UNROLL for (int s = 0; s < kAhead; s++) {
      if (s < stages) load_x(p, x, base + s * kStage + kW, s * 64);
      ptx_copy_commit();
    }
    float acc[NB / 2];
    UNROLL for (int i = 0; i < NB / 2; i++) acc[i] = 0.0f;
    int slot = 0, next_slot = kAhead % kStages;
#pragma unroll 1
    for (int s = 0; s < stages; s++) {
      ptx_copy_wait<kAhead - 1>();
      hopper_fence_async();
      __syncthreads();  // the stage has landed for all threads, and wgmma no longer reads the one before the last
      const uint stage = base + slot * kStage;
      hopper_wg_arrive();
      UNROLL for (int k = 0; k < 4; k++) {
        hopper_wg_kk(acc, hopper_descriptor(stage + 32 * k, 16, 1024), hopper_descriptor(stage + kW + 32 * k, 16, 1024),
                     T());
      }
      hopper_wg_commit();
      if (s + kAhead < stages) {
        load_w(rows, w, base + next_slot * kStage, (s + kAhead) * 64);
        load_x(p, x, base + next_slot * kStage + kW, (s + kAhead) * 64);
      }
      ptx_copy_commit();
      hopper_wg_wait<1>();
      slot = slot + 1 == kStages ? 0 : slot + 1;
      next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
    }
    hopper_wg_wait<0>();
    const int tile = (int)blockIdx.x * 4 + warp;
    if (tile >= p.tiles) return;
    UNROLL for (int j = 0; j < NB / 8; j++) {
      float before[4] = {};
      hopper_linear_before(p, before, tile, lane >> 2, 8 * j + (lane & 3) * 2, residual);
      hopper_linear_finish<T>(p, acc + 4 * j, before, tile, lane >> 2, 8 * j + (lane & 3) * 2, out, bias);
    }
  }
};

#define HOPPER_LINEAR_WIDE(types, T, rows)                                                                           \
  extern "C" __global__ void __launch_bounds__(kHopperLinearThreads)                                                 \
      hopper_linear_##types##_m##rows##_wide(const __grid_constant__ HopperLinearParams p, void* out, const void* x, \
                                             const T* w, const float* bias, const float*, const float* residual) {   \
    HopperLinearWide<T, rows>::run(p, out, (const T*)x, w, bias, residual);                                          \
  }
HOPPER_LINEAR_WIDE(bf16, bfloat, 16)
HOPPER_LINEAR_WIDE(bf16, bfloat, 32)
HOPPER_LINEAR_WIDE(f16, half, 16)
HOPPER_LINEAR_WIDE(f16, half, 32)
