// SPDX-License-Identifier: Apache-2.0
// The first product of adapters (ops/lora.h) on sm_90a: what a warp computes of it, and the product as a part of the
// launch that needs it. No kernels here.
//
// The order of sums follows from K alone. K is divided among 32 warps in whole units of 64; each warp is one chain of
// k16 steps. Four warps in the order of their k are a part, which adds up their sums in order; then the eight parts are
// added in order, and the result is scaled. kernels/cuda/lora.cuh has the same order.
#pragma once

#include "kernels/cuda/hopper.cuh"

// What the adapters of a step are read from.
struct HopperLoraMemory {
  const uchar* memory;        // of the slots
  const int* rows;            // of the step, those of a run together
  const LoraRunParams* runs;  // empty ones last
  const float* t;             // the first product, scaled
};

// What the first product is written to where it is a part of another launch (HopperLoraFirst).
struct HopperLoraScratch {
  float* t;
  float* parts;
  uint* counters;
};

// Sixteen ranks of a run of rows: one column of a run's t for each.
template <typename T>
struct HopperLoraGroup {
  const T* a;           // [K][16]; null: no adapter of the run has these ranks
  const float* scales;  // of the ranks
  int first, count;     // the run's rows in the list

  HOPPER_FN HopperLoraGroup find(const uchar* memory, i64 slot_bytes, int site, const LoraRunParams& run, int rank,
                                 int k) {
    HopperLoraGroup group = {nullptr, nullptr, run.first, run.count};
    if (run.slot < 0) return group;
    const uchar* slot = memory + run.slot * slot_bytes;
    const LoraSiteParams own = ((const LoraSiteParams*)slot)[site];
    if (rank >= own.rank) return group;
    group.a = (const T*)(slot + own.a) + (i64)rank * k;
    group.scales = (const float*)(slot + own.scales) + rank;
    return group;
  }
  // The row of x and t that is row i of the run; -1 if this call does not have it. `first_row`: the row of the step
  // that is row 0.
  __device__ __forceinline__ int row_of(const int* rows, int i, int first_row, int num_rows) const {
    const int row = i < count ? rows[first + i] - first_row : -1;
    return row < num_rows ? row : -1;
  }
};

template <typename T>
struct HopperLoraChain {
  enum {
    kUnit = 64,
    kSteps = 8  // of k16 whose operands are loaded together
  };
  int first, end;  // its k

  HOPPER_FN HopperLoraChain of(int warp, int k) {
    const int units = (k + kUnit - 1) / kUnit, each = (units + 32 - 1) / 32;
    const int first = min(warp * each, units) * kUnit;
    return {first, min(first + each * kUnit, k)};
  }
  // Lane 4 g + t passes elements (g, 2 t) and (g, 2 t + 1) of an 8x8 matrix and gets (2 t, g) and (2 t + 1, g).
  HOPPER_FN uint transposed(uint pair) {
    uint r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
  }
  // Sum [n][i] of a lane is in row lane / 4 of the run, for i of 2 and 3 eight rows below, and in column
  // 8 n + lane % 4 * 2 + i % 2. `low` and `high` are the rows of x that the lane loads, -1 for none. begin() is called
  // once, after the first part of A is requested and before anything is read from x.
  template <typename Begin>
  __device__ __forceinline__ void add_up(float (&acc)[2][4], const T* of_group, const T* x, i64 x_stride, int low,
                                         int high, const Begin& begin) const {
    const int lane = (int)threadIdx.x & 31, pair = (lane & 3) * 2;
    const T* a = of_group + (lane >> 2) * kLoraGroup + pair;
    const T* of_row[2] = {low >= 0 ? x + low * x_stride + pair : nullptr,
                          high >= 0 ? x + high * x_stride + pair : nullptr};
#pragma unroll 1
    for (int k = first + 16 * kSteps + lane * 4; k < end; k += 128) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(of_group + (i64)k * kLoraGroup));
    }
    if (first >= end) begin();
#pragma unroll 1
    for (int k = first; k < end; k += 16 * kSteps) {
      uint of_a[kSteps][4], of_x[kSteps][4];
      UNROLL for (int s = 0; s < kSteps; s++) {
        UNROLL for (int i = 0; i < 4; i++) {
          const T* from = a + (i64)(k + 16 * s + 8 * (i & 1)) * kLoraGroup + 8 * (i >> 1);
          of_a[s][i] = k + 16 * s < end ? *(const uint*)from : 0;
        }
      }
      if (k == first) begin();
      UNROLL for (int s = 0; s < kSteps; s++) {
        UNROLL for (int i = 0; i < 4; i++) {
          const T* from = of_row[i & 1];
          const bool here = from != nullptr && k + 16 * s < end;
          of_x[s][i] = here ? __ldcg((const uint*)(from + k + 16 * s + 8 * (i >> 1))) : 0;
        }
      }
      UNROLL for (int s = 0; s < kSteps; s++) {
        UNROLL for (int n = 0; n < 2; n++) {
          hopper_mma<T>(acc[n], of_x[s], transposed(of_a[s][2 * n]), transposed(of_a[s][2 * n + 1]));
        }
      }
    }
  }
};

// The first product by the threadgroups of the launch that needs it. An item is a part for sixteen ranks of a run, and
// four warps of a threadgroup compute it. The last of eight parts to be complete adds up all of them and
// writes t. That is much less to read than the parts themselves, for every threadgroup waits for all of t.
//
// Counters are zero between launches: first one of t's complete pieces and one of the threadgroups that have seen that
// t is complete, then for each piece one of its parts. All of them return to zero by themselves. They and `parts` are
// not touched before the preceding launch has ended, because that may still use them.
// REQUIRES: all threadgroups run at the same time; at most kHopperLoraMostItems items for each.
template <typename T>
struct HopperLoraFirst {
  enum { kSums = kLoraRows * kLoraGroup, kParts = kHopperLoraCluster };
  const HopperLoraParams& p;
  const HopperLoraMemory& m;
  const HopperLoraScratch& to;

  // One more than `counter` has, or zero after `most`; returns what it had.
  HOPPER_FN uint count(uint* counter, uint most) {
    uint before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(most) : "memory");
    return before;
  }
  __device__ __forceinline__ void count_piece() const {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(to.counters) : "memory");
  }
  HOPPER_FN void sync_four() { asm volatile("bar.sync 3, 128;" ::: "memory"); }

  // By four warps, of which this is number `warp`; the others may do anything. `shared`: the sums of three of them.
  __device__ __forceinline__ void run(int warp, const T* x, i64 x_stride, int rows, int k,
                                      float4 (&shared)[3][2][32]) const {
    const int lane = (int)threadIdx.x & 31;
    const int items = p.runs * p.groups * kParts, stride = (int)gridDim.x, from = (int)blockIdx.x;
    // Lane i looks up the i-th item, so that all wait for memory at the same time.
    const int mine = from + lane * stride;
    HopperLoraGroup<T> found = {};
    if (lane < kHopperLoraMostItems && mine < items) {
      const int piece = mine / kParts;
      found = HopperLoraGroup<T>::find(m.memory, p.slot_bytes, p.site, m.runs[piece / p.groups],
                                       piece % p.groups * kLoraGroup, k);
      const auto chain = HopperLoraChain<T>::of(mine % kParts * 4 + warp, k);
      if (lane > 0 && found.a != nullptr && chain.first < chain.end) {
        hopper_prefetch_bulk(found.a + (i64)chain.first * kLoraGroup, (chain.end - chain.first) * kLoraGroup * 2);
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; from + i * stride < items; i++) {
      const HopperLoraGroup<T> group = {(const T*)__shfl_sync(0xffffffffu, (i64)found.a, i),
                                        (const float*)__shfl_sync(0xffffffffu, (i64)found.scales, i),
                                        __shfl_sync(0xffffffffu, found.first, i),
                                        __shfl_sync(0xffffffffu, found.count, i)};
      const int item = from + i * stride, part = item % kParts, piece = item / kParts;
      if (group.a == nullptr) {  // the same in all warps; one of the parts counts for all
        ptx_grid_wait();
        if (warp == 0 && lane == 0 && part == 0) count_piece();
        continue;
      }
      const int low = group.row_of(m.rows, lane >> 2, p.first, rows);
      const int high = group.row_of(m.rows, (lane >> 2) + 8, p.first, rows);
      float2 scales[2] = {};
      UNROLL for (int n = 0; n < 2; n++) {
        if (warp == 0) scales[n] = *(const float2*)(group.scales + 8 * n + (lane & 3) * 2);
      }
      float acc[2][4] = {};
      HopperLoraChain<T>::of(part * 4 + warp, k).add_up(acc, group.a, x, x_stride, low, high, [] { ptx_grid_wait(); });
      if (i > 0) sync_four();  // warp 0 has read the sums of the item before
      UNROLL for (int n = 0; n < 2; n++) {
        if (warp > 0) shared[warp - 1][n][lane] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
      }
      sync_four();
      if (warp > 0) continue;
      float4* parts = (float4*)to.parts + (i64)piece * (kParts * kSums / 4) + lane;
      UNROLL for (int n = 0; n < 2; n++) {
        UNROLL for (int w = 0; w < 3; w++) add(acc[n], shared[w][n][lane]);
        __stcg(parts + part * (kSums / 4) + 32 * n, make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]));
      }
      __syncwarp();
      uint before = 0;
      if (lane == 0) before = count(to.counters + 2 + piece, kParts - 1);
      const bool last = __shfl_sync(0xffffffffu, before, 0) == kParts - 1;
      __syncwarp();
      if (last) finish(parts, scales, low, high, piece % p.groups * kLoraGroup);
    }
  }

  // By one warp: waits until t is complete.
  __device__ __forceinline__ void await() const {
    if (((int)threadIdx.x & 31) == 0) {
      const uint pieces = p.runs * p.groups;
      for (uint times = 0, complete = 0; complete < pieces;) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(complete) : "l"(to.counters) : "memory");
        if (complete < pieces) hopper_count_retry(times);
      }
    }
    __syncwarp();
  }
  // By one thread of each threadgroup, after await().
  __device__ __forceinline__ void leave() const {
    if (count(to.counters + 1, gridDim.x - 1) == gridDim.x - 1) __stcg(to.counters, 0u);
  }

 private:
  HOPPER_FN void add(float (&sum)[4], const float4& v) {
    sum[0] += v.x;
    sum[1] += v.y;
    sum[2] += v.z;
    sum[3] += v.w;
  }
  // By a warp: adds up the parts and writes the lane's places of t, from column `column` on.
  __device__ __forceinline__ void finish(const float4* parts, const float2 (&scales)[2], int low, int high,
                                         int column) const {
    float4 of[kParts][2];
    UNROLL for (int r = 0; r < kParts; r++) {
      UNROLL for (int n = 0; n < 2; n++) of[r][n] = __ldcg(parts + r * (kSums / 4) + 32 * n);
    }
    UNROLL for (int n = 0; n < 2; n++) {
      float sum[4] = {of[0][n].x, of[0][n].y, of[0][n].z, of[0][n].w};
      UNROLL for (int r = 1; r < kParts; r++) add(sum, of[r][n]);
      float* out = to.t + column + 8 * n + ((int)threadIdx.x & 3) * 2;
      if (low >= 0) __stcg((float2*)(out + low * p.t_stride), make_float2(sum[0] * scales[n].x, sum[1] * scales[n].y));
      if (high >= 0) {
        __stcg((float2*)(out + high * p.t_stride), make_float2(sum[2] * scales[n].x, sum[3] * scales[n].y));
      }
    }
    __syncwarp();
    if (((int)threadIdx.x & 31) == 0) count_piece();
  }
};
