// SPDX-License-Identifier: Apache-2.0
// The products of experts: rows of x that are sorted by expert, times the weight of each tile's expert (sm_90a).
//
// Equal by memcmp to the portable linear for every number of rows: each sum is one chain of k16 steps. A threadgroup
// computes XB rows of x by 64 or 128 rows of W (gated: half of them of gate, and the matching ones of up). W is wgmma's
// 64-row operand, so that few rows of x cost few products; both operands are loaded by the copy engine, W once per tile
// of rows. One warp issues the loads, the others multiply.
//
// Grid: (tiles of W, tiles of rows), hopper_moe_threads(), hopper_moe_memory(). REQUIRES: K is a multiple of 16, N of 2
// (gated: of 4); x and W have the layout of their tensor maps, with boxes of XB rows and of half a tile of W.
#pragma once

#include "kernels/cuda/wgmma.cuh"

template <typename T, int XB>
struct HopperMoeLinear {
  enum {
    kGroups = hopper_moe_groups(XB),
    kDeep = hopper_moe_deep(XB),  // units of 64 k in a stage
    kDepth = 64 * kDeep,
    kStages = hopper_moe_stages(XB),
    WB = 64 * kGroups,
    kW = WB * 128,  // bytes of 64 k of W, and of x
    kX = XB * 128,
    kStage = kDeep * (kW + kX),  // W first, then x
    kRing = 1024,                // offset of the ring; the mbarriers are before it
    kSums = XB / 2,              // sums per lane
    kSumsStride = WB + 8,        // elements between the rows of rounded sums
    kMultipliers = 128 * kGroups
  };
  static_assert(kStages >= 3 && kStages * 16 <= kRing && XB * kSumsStride * 2 <= kStages * kStage,
                "sums take the ring's place");

  HOPPER_FN uint full(uint base, int slot) { return base + slot * 16; }
  HOPPER_FN uint empty(uint base, int slot) { return base + slot * 16 + 8; }
  HOPPER_FN uint stage_at(uint base, int slot) { return base + kRing + slot * kStage; }
  HOPPER_FN void sync_multipliers() {
    if (kGroups == 1) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 256;" ::: "memory");
    }
  }

  // ---- the warp that loads ----

  // With many rows, several tiles of rows read the same weights.
  HOPPER_FN void load_box(const HopperMoeParams& p, uint to, int k, int row, uint barrier) {
    if (XB <= 32) {
      hopper_box_copy(to, &p.w, k, row, 0, barrier, hopper_read_once());
    } else {
      hopper_box_copy(to, &p.w, k, row, 0, barrier);
    }
  }
  // `expert` counts from the first one of W.
  HOPPER_FN void load_w(const HopperMoeParams& p, int expert, uint stage, uint barrier, int k) {
    const bool gated = p.linear.epilogue == kHopperGated;
    const int first = expert * p.linear.n + (int)blockIdx.x * (gated ? WB / 2 : WB);
    const int second = first + (gated ? p.linear.n / 2 : WB / 2);
    UNROLL for (int i = 0; i < kDeep; i++) {
      load_box(p, stage + i * kW, k + 64 * i, first, barrier);
      load_box(p, stage + i * kW + kW / 2, k + 64 * i, second, barrier);
    }
  }
  HOPPER_FN void load_x(const HopperMoeParams& p, uint stage, uint barrier, int k) {
    UNROLL for (int i = 0; i < kDeep; i++) {
      hopper_box_copy(stage + kDeep * kW + i * kX, &p.x, k + 64 * i, (int)blockIdx.y * XB, 0, barrier);
    }
  }
  // All lanes run the loop, one issues the loads. W is requested before the wait for the preceding launch, x after it.
  HOPPER_FN void produce(const HopperMoeParams& p, int expert, uint base, int stages) {
    const int first = min(stages, (int)kStages);
    const bool issues = hopper_elected();
    if (issues) {
      for (int s = 0; s < first; s++) {
        hopper_barrier_expect(full(base, s), kStage);
        load_w(p, expert, stage_at(base, s), full(base, s), s * kDepth);
      }
    }
    ptx_grid_wait();
    if (issues) {
      for (int s = 0; s < first; s++) load_x(p, stage_at(base, s), full(base, s), s * kDepth);
    }
    __syncwarp();
    int slot = 0;
    uint parity = 0;
#pragma unroll 1
    for (int s = first; s < stages; s++) {
      hopper_barrier_wait(empty(base, slot), parity);
      if (issues) {
        hopper_barrier_expect(full(base, slot), kStage);
        load_w(p, expert, stage_at(base, slot), full(base, slot), s * kDepth);
        load_x(p, stage_at(base, slot), full(base, slot), s * kDepth);
      }
      __syncwarp();
      if (++slot == kStages) {
        slot = 0;
        parity ^= 1;
      }
    }
  }

  // ---- the warpgroups that multiply ----

  HOPPER_FN void step(float (&acc)[kSums], uint w, uint x, int k) {
    hopper_wg_product(acc, hopper_descriptor_of(w + (k >> 2) * (kW >> 4) + (k & 3) * 2, 1024),
                      hopper_descriptor_of(x + (k >> 2) * (kX >> 4) + (k & 3) * 2, 1024), T());
  }
  // Rows of x that belong to no choice hold old data; their sums are stored to rows that nothing reads.
  HOPPER_FN void multiply(float (&acc)[kSums], const HopperMoeParams& p, uint base, int stages) {
    const uint group = hopper_uniform(threadIdx.x >> 7);
    const uint first_w = hopper_uniform(hopper_descriptor_word(stage_at(base, 0) + group * 8192, 16));
    const uint first_x = hopper_uniform(hopper_descriptor_word(stage_at(base, 0) + kDeep * kW, 16));
    const bool signals = (threadIdx.x & 31) == 0;
    const int whole = p.linear.k / kDepth;
    int slot = 0, last = 0;
    uint parity = 0, w = first_w, x = first_x;
#pragma unroll 1
    for (int s = 0; s < whole; s++) {
      hopper_barrier_wait(full(base, slot), parity);
      hopper_wg_arrive();
      UNROLL for (int k = 0; k < 4 * kDeep; k++) step(acc, w, x, k);
      hopper_wg_commit();
      hopper_wg_wait<1>();
      if (signals && s > 0) hopper_barrier_arrive(empty(base, last));
      last = slot;
      slot++;
      w += kStage >> 4;
      x += kStage >> 4;
      if (slot == kStages) {
        slot = 0;
        parity ^= 1;
        w = first_w;
        x = first_x;
      }
    }
    if (whole < stages) {  // K ends inside a stage
      hopper_barrier_wait(full(base, slot), parity);
      hopper_wg_arrive();
      UNROLL for (int k = 0; k < 4 * kDeep - 1; k++) {
        if (whole * kDepth + k * 16 < p.linear.k) step(acc, w, x, k);
      }
      hopper_wg_commit();
    }
    hopper_wg_wait<0>();
  }

  // ---- the epilogue ----

  // Stages rounded sums in the ring's memory, [row of x][row of W], so that gate and up of a column are found together
  // and neighbouring lanes write a row of out.
  HOPPER_FN void keep_sums(const float (&acc)[kSums], const HopperLinearParams& p, const float* bias, T* sums) {
    const bool gated = p.epilogue == kHopperGated;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    sync_multipliers();  // no stage is read any more
    UNROLL for (int i = 0; i < kSums; i++) {
      const int r = warp * 16 + (lane >> 2) + 8 * ((i >> 1) & 1), m = 8 * (i >> 2) + (lane & 3) * 2 + (i & 1);
      const int n =
          gated ? (int)blockIdx.x * (WB / 2) + (r < WB / 2 ? r : r - WB / 2 + p.n / 2) : (int)blockIdx.x * WB + r;
      sums[m * kSumsStride + r] = to<T>(hopper_rounded<T>(acc[i], p, bias, min(n, p.n - 1)));
    }
    sync_multipliers();
  }
  HOPPER_FN void finish(const float (&acc)[kSums], const HopperLinearParams& p, T* out, const float* bias, T* sums) {
    const bool gated = p.epilogue == kHopperGated;
    keep_sums(acc, p, bias, sums);
    const int columns = gated ? WB / 2 : WB, limit = gated ? p.n / 2 : p.n, first = (int)blockIdx.x * columns;
    T* rows = out + (i64)blockIdx.y * XB * p.out_stride + first;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < XB * (columns / 2); i += kMultipliers) {
      const int m = i / (columns / 2), column = i % (columns / 2) * 2;
      if (first + column >= limit) continue;
      const T* pair = sums + m * kSumsStride + column;
      float y = to_f(pair[0]), z = to_f(pair[1]);
      if (gated) {
        y = activate_glu(p.activation, p.limit, y, to_f(pair[WB / 2]));
        z = activate_glu(p.activation, p.limit, z, to_f(pair[WB / 2 + 1]));
      } else if (p.epilogue == kHopperActivated) {
        y = activate(p.activation, y);
        z = activate(p.activation, z);
      }
      *(uint*)(rows + (i64)m * p.out_stride + column) = hopper_pack<T>(y, z);
    }
  }

  HOPPER_FN void run(const HopperMoeParams& p, T* out, const float* bias, const int* experts) {
    extern __shared__ __align__(128) unsigned char shared[];
    if (!p.early) ptx_grid_wait();
    // After the wait: so the table of experts is complete before the next launch begins.
    ptx_grid_release();
    const int expert = __ldcg(experts + blockIdx.y), here = expert - p.first;
    if (expert < 0 || here < 0 || here >= p.experts) {
      ptx_grid_wait();
      return;
    }
    const uint start = ptx_shared_address(shared), base = (start + 1023) & ~1023u;
    const int stages = (p.linear.k + kDepth - 1) / kDepth;
    if (threadIdx.x == kMultipliers) {
      for (int s = 0; s < kStages; s++) {
        hopper_barrier_init(full(base, s), 1);
        hopper_barrier_init(empty(base, s), kMultipliers / 32);
      }
      hopper_barrier_init_done();
    }
    __syncthreads();
    if (hopper_uniform(threadIdx.x >> 5) == kMultipliers / 32) return produce(p, here, base, stages);
    float acc[kSums];
    UNROLL for (int i = 0; i < kSums; i++) acc[i] = 0.0f;
    multiply(acc, p, base, stages);
    ptx_grid_wait();
    finish(acc, p.linear, out, p.linear.biased ? bias + (i64)expert * p.linear.n : bias,
           (T*)(shared + (base - start) + kRing));
  }
};

#define HOPPER_MOE_LINEAR(types, T, rows)                                                                 \
  extern "C" __global__ void __launch_bounds__(hopper_moe_threads(rows), 2) hopper_moe_##types##_r##rows( \
      const __grid_constant__ HopperMoeParams p, T* out, const float* bias, const int* experts) {         \
    HopperMoeLinear<T, rows>::run(p, out, bias, experts);                                                 \
  }
#define HOPPER_MOE_LINEARS(types, T) \
  HOPPER_MOE_LINEAR(types, T, 8)     \
  HOPPER_MOE_LINEAR(types, T, 16)    \
  HOPPER_MOE_LINEAR(types, T, 32)    \
  HOPPER_MOE_LINEAR(types, T, 64)    \
  HOPPER_MOE_LINEAR(types, T, 128)
HOPPER_MOE_LINEARS(bf16, bfloat)
HOPPER_MOE_LINEARS(f16, half)
