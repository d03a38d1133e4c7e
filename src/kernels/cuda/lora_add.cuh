// SPDX-License-Identifier: Apache-2.0
// The second product of adapters (ops/lora.h) as a part of another kernel's epilogue (sm_90a): it adds to a tile of
// rounded sums in shared memory, with the bits of lora_expand. No kernels here.
//
// A thread adds to four columns for the rows of a run. What it needs is copied to shared memory while the kernel's main
// loop runs. The code of the usual case is short, because an epilogue is executed once per launch, and takes about as
// long as its instructions take to arrive.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/params/lora.h"

// What the adapters of a step are read from.
struct HopperLoraMemory {
  const uchar* memory;        // of the slots
  const int* rows;            // of the step, those of a run together
  const LoraRunParams* runs;  // empty ones last
  const float* t;             // the first product, scaled
};

// Shared memory of THREADS threads; rows of t follow it (p.staged_ranks).
template <typename T>
struct alignas(16) HopperLoraRoom {
  T b[kHopperLoraItems][kLoraGroup][4];  // [item][rank][column]
  int places[32][kLoraRows];             // [run][row]: rows of the tile, or -1
};
static_assert(sizeof(HopperLoraRoom<bfloat>) == kHopperLoraRoom, "as the host counts");

// The columns [0, COLUMNS) of a tile with the rows [first_row, end_row). `output_column` tells which column of the
// output a column of the tile is; four neighbours that begin at a multiple of four stay neighbours.
template <typename T, int COLUMNS, typename Columns>
struct HopperLoraTile {
  enum { kThreads = kHopperLoraItems, kQuads = COLUMNS / 4 };
  const HopperLoraParams& p;
  const HopperLoraMemory& m;
  HopperLoraRoom<T>* room;  // not used unless p.room
  int first_row, end_row;
  Columns output_column;
  // The thread's item: its first column of the tile, the rows of its run (0: nothing to do in short code), where its
  // slice begins in a row of t, and its ranks. `rest`: there are other items, or this one is not for the short code.
  int column, count, first, rank;
  bool rest;

  // Where column n of a slice begins in its B.
  __device__ __forceinline__ const T* column_of(const uchar* slot, const LoraSliceParams& slice, int n) const {
    return (const T*)(slot + slice.b) + (i64)(n / kLoraGroup) * slice.rank * kLoraGroup + n % kLoraGroup;
  }
  __device__ __forceinline__ int place_of(const LoraRunParams& run, int i) const {
    const int row = i < run.count ? m.rows[run.first + i] - p.first : -1;
    return row >= first_row && row < end_row ? row - first_row : -1;
  }

  // Requests the part of B. It reads nothing that a launch of the step writes.
  __device__ __forceinline__ void prepare() {
    const int item = (int)threadIdx.x;
    column = item % kQuads * 4;
    count = first = rank = 0;
    rest = item + kThreads < p.runs * kQuads && m.runs[(item + kThreads) / kQuads].slot >= 0;
    if (item >= p.runs * kQuads) return;
    const LoraRunParams run = m.runs[item / kQuads];
    if (run.slot < 0) return;
    const uchar* slot = m.memory + run.slot * p.slot_bytes;
    const LoraSiteParams site = ((const LoraSiteParams*)slot)[p.site];
    if (p.room != 0) {
#pragma unroll 1
      for (int i = item % kQuads; i < kLoraRows; i += kQuads) room->places[item / kQuads][i] = place_of(run, i);
    }
    const int n = output_column(column);
#pragma unroll 1
    for (int s = 0; s < site.num_slices; s++) {
      const LoraSliceParams slice = ((const LoraSliceParams*)(slot + site.slices))[s];
      const int at = n - slice.column;
      if (at + 4 <= 0 || at >= slice.n) continue;
      const bool usual = p.room != 0 && at >= 0 && at + 4 <= slice.n && slice.rank <= kLoraGroup &&
                         ((at | slice.first | slice.rank) & 3) == 0;
      if (!usual) {
        rest = true;
        continue;
      }
      count = run.count;
      first = slice.first;
      rank = slice.rank;
      const T* from = column_of(slot, slice, at);
#pragma unroll 1
      for (int j = 0; j < rank; j++) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(ptx_shared_address(room->b[item][j])),
                     "l"(from + j * kLoraGroup)
                     : "memory");
      }
    }
  }
  // Requests the rows of t, when the first product is complete.
  __device__ __forceinline__ void request_t() {
    const int pieces = p.staged_ranks / 4;
    float* to_rows = (float*)(room + 1);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < (end_row - first_row) * pieces; i += kThreads) {
      hopper_copy16(ptx_shared_address(to_rows + 4 * i),
                    m.t + (i64)(first_row + i / pieces) * p.t_stride + i % pieces * 4);
    }
    ptx_copy_commit();
  }
  // What the thread requested is there after this; a barrier must follow.
  __device__ __forceinline__ void await() {
    ptx_copy_wait<0>();
  }

  // REQUIRES: all sums, and what all threads have requested, are there.
  __device__ __forceinline__ void add(T* sums, int stride) {
    const float* t = p.staged_ranks > 0 ? (const float*)(room + 1) : m.t + first_row * p.t_stride;
    const int t_stride = p.staged_ranks > 0 ? p.staged_ranks : (int)p.t_stride;
    const T(*b)[4] = room->b[threadIdx.x];
    const int* places = room->places[(int)threadIdx.x / kQuads];
#pragma unroll 1
    for (int i = 0; i < count; i += 4) {
      int place[4];
      const float* left[4];
      float acc[4][4] = {};
      UNROLL for (int r = 0; r < 4; r++) {
        place[r] = places[i + r];
        left[r] = t + max(place[r], 0) * t_stride + first;
      }
#pragma unroll 1
      for (int j = 0; j < rank; j += 4) {
        float4 four[4];
        UNROLL for (int r = 0; r < 4; r++) four[r] = *(const float4*)(left[r] + j);
        UNROLL for (int e = 0; e < 4; e++) {
          const uint2 packed = *(const uint2*)b[j + e];
          const float v[4] = {low_of(packed.x), high_of(packed.x), low_of(packed.y), high_of(packed.y)};
          UNROLL for (int r = 0; r < 4; r++) {
            const float with = e == 0 ? four[r].x : e == 1 ? four[r].y : e == 2 ? four[r].z : four[r].w;
            UNROLL for (int c = 0; c < 4; c++) acc[r][c] = fma(with, v[c], acc[r][c]);
          }
        }
      }
      UNROLL for (int r = 0; r < 4; r++) {
        if (place[r] < 0) continue;
        uint2* y = (uint2*)(sums + place[r] * stride + column);
        const uint2 before = *y;
        *y = make_uint2(hopper_pack<T>(low_of(before.x) + acc[r][0], high_of(before.x) + acc[r][1]),
                        hopper_pack<T>(low_of(before.y) + acc[r][2], high_of(before.y) + acc[r][3]));
      }
    }
    if (rest) add_rest(*this, sums, stride);  // by value, so that the members stay in registers
  }

 private:
  static __device__ __forceinline__ float low_of(uint pair) {
    return to_f(from_bits16<T>((ushort)pair));
  }
  static __device__ __forceinline__ float high_of(uint pair) {
    return to_f(from_bits16<T>((ushort)(pair >> 16)));
  }

  // Whatever add() leaves: many runs, large ranks, ranks and columns at odd places.
  static __device__ __noinline__ void add_rest(HopperLoraTile tile, T* sums, int stride) {
    tile.add_others(sums, stride);
  }
  __device__ __forceinline__ void add_others(T* sums, int stride) {
    for (int item = (int)threadIdx.x; item < p.runs * kQuads; item += kThreads) {
      const LoraRunParams run = m.runs[item / kQuads];
      if (run.slot < 0) return;
      const uchar* slot = m.memory + run.slot * p.slot_bytes;
      const LoraSiteParams site = ((const LoraSiteParams*)slot)[p.site];
      const int n = output_column(item % kQuads * 4);
#pragma unroll 1
      for (int s = 0; s < site.num_slices; s++) {
        const LoraSliceParams slice = ((const LoraSliceParams*)(slot + site.slices))[s];
        const int at = n - slice.column;
        if (at + 4 <= 0 || at >= slice.n) continue;
        if (item == (int)threadIdx.x && count > 0 && slice.first == first && at >= 0 && at + 4 <= slice.n) continue;
#pragma unroll 1
        for (int i = 0; i < run.count * 4; i++) {
          const int c = i % 4, place = place_of(run, i / 4);
          if (place < 0 || at + c < 0 || at + c >= slice.n) continue;
          const T* b = column_of(slot, slice, at + c);
          const float* left = m.t + (first_row + place) * p.t_stride + slice.first;
          T* y = sums + place * stride + item % kQuads * 4 + c;
          float acc = 0.0f;
#pragma unroll 1
          for (int j = 0; j < slice.rank; j++) acc = fma(__ldcg(left + j), to_f(b[(i64)j * kLoraGroup]), acc);
          *y = to<T>(to_f(*y) + acc);
        }
      }
    }
  }
};
