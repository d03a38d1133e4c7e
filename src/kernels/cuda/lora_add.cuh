// SPDX-License-Identifier: Apache-2.0
// The second product of adapters (ops/lora.h) as a part of another kernel's epilogue (sm_90a): it adds to a tile of
// rounded sums in shared memory, with the bits of lora_expand. No kernels here.
//
// An item is four columns of a tile and the rows of a run. What the first ITEMS of them need is copied to shared memory
// while the kernel's main loop runs, best by a warp that does nothing else: first what the runs' adapters have for this
// linear, which takes three loads that depend on each other, for all runs at once, and then the parts of B. Then
// all threads add that have nothing else to do. The code of the usual case is short, because an epilogue is
// executed once per launch, and takes about as long as its instructions take to arrive.
#pragma once

#include "kernels/cuda/lora_first.cuh"

// Rows of t follow it (p.staged_ranks).
template <typename T, int ITEMS>
struct alignas(16) HopperLoraRoom {
  struct Run {
    int first, count;  // in the list of rows; count 0: none
    int slices, unused;
  };
  struct Slice {
    const T* b;
    int column, n, first, rank;
  };
  // How many rows an item has (0: nothing to do in short code), its ranks, and where its slice begins in a row of t.
  struct Item {
    short count, rank;
    int first;
  };
  // [rank][item][column]: threads with neighbouring items read neighbouring places. With the ranks of an item together,
  // a warp's reads of one rank would all be in the same two banks.
  T b[kLoraGroup][ITEMS][4];
  int places[kHopperLoraRuns][kLoraRows];  // [run][row]: rows of the tile, or -1
  Slice slices[kHopperLoraRuns][kHopperLoraSlices];
  Run runs[kHopperLoraRuns];
  Item items[ITEMS];
  int rest, padding[3];  // nonzero: there are items that are not, or not wholly, for the short code
};
static_assert(sizeof(HopperLoraRoom<bfloat, kHopperLoraItems>) == hopper_lora_room(kHopperLoraItems),
              "as the host counts");

// The columns of a tile with the rows [first_row, end_row). `output_column` tells which column of the
// output a column of the tile is; four neighbours that begin at a multiple of four stay neighbours.
template <typename T, int ITEMS, typename Columns>
struct HopperLoraTile {
  const HopperLoraParams& p;
  const HopperLoraMemory& m;
  HopperLoraRoom<T, ITEMS>* room;  // not used unless p.room
  int first_row, end_row;
  int quads;  // fours of columns of the tile
  Columns output_column;

  // Where column n of a slice begins in its B.
  static __device__ __forceinline__ const T* column_of(const T* b, int rank, int n) {
    return b + (i64)(n / kLoraGroup) * rank * kLoraGroup + n % kLoraGroup;
  }
  // The row of the tile that is row i of the list of rows, or -1.
  HOPPER_METHOD int place_of(int i) const {
    const int row = m.rows[i] - p.first;
    return row >= first_row && row < end_row ? row - first_row : -1;
  }

  // What the adapters of the runs have for this linear. A barrier between these threads must follow. Here and below,
  // true: not everything is for the short code. Neither reads what a launch of the step writes.
  HOPPER_METHOD bool prepare_runs(int thread, int threads) {
    bool rest = p.room == 0;
#pragma unroll 1
    for (int r = thread; r < p.runs && p.room != 0; r += threads) {
      const LoraRunParams run = m.runs[r];
      if (r >= kHopperLoraRuns) {
        rest |= run.slot >= 0;
        continue;
      }
      int slices = 0;
      if (run.slot >= 0) {
        const uchar* slot = m.memory + run.slot * p.slot_bytes;
        const LoraSiteParams site = ((const LoraSiteParams*)slot)[p.site];
        rest |= site.num_slices > kHopperLoraSlices;
        slices = min(site.num_slices, (int)kHopperLoraSlices);
        UNROLL for (int s = 0; s < kHopperLoraSlices; s++) {
          if (s >= slices) break;
          const LoraSliceParams slice = ((const LoraSliceParams*)(slot + site.slices))[s];
          room->slices[r][s] = {(const T*)(slot + slice.b), slice.column, slice.n, slice.first, slice.rank};
        }
      }
      room->runs[r] = {run.first, run.slot >= 0 ? run.count : 0, slices, 0};
    }
    return rest;
  }
  // Requests the items' parts of B.
  HOPPER_METHOD bool prepare_items(int thread, int threads) {
    if (p.room == 0) return true;
    const int runs = min(p.runs, (int)kHopperLoraRuns);
    bool rest = false;
#pragma unroll 1
    for (int i = thread; i < runs * kLoraRows; i += threads) {
      const auto run = room->runs[i / kLoraRows];
      const int row = i % kLoraRows;
      room->places[i / kLoraRows][row] = row < run.count ? place_of(run.first + row) : -1;
    }
#pragma unroll 1
    for (int item = thread; item < runs * quads; item += threads) {
      const auto run = room->runs[item / quads];
      if (item >= ITEMS) {
        rest |= run.count > 0;
        continue;
      }
      room->items[item] = {0, 0, 0};
      const int n = output_column(item % quads * 4);
#pragma unroll 1
      for (int s = 0; s < run.slices; s++) {
        const auto slice = room->slices[item / quads][s];
        const int at = n - slice.column;
        if (at + 4 <= 0 || at >= slice.n) continue;
        if (at < 0 || at + 4 > slice.n || slice.rank > kLoraGroup || ((at | slice.first | slice.rank) & 3) != 0) {
          rest = true;
          continue;
        }
        room->items[item] = {(short)run.count, (short)slice.rank, slice.first};
        const T* from = column_of(slice.b, slice.rank, at);
#pragma unroll 4
        for (int j = 0; j < slice.rank; j++) {
          asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(ptx_shared_address(room->b[j][item])),
                       "l"(from + j * kLoraGroup)
                       : "memory");
        }
      }
    }
    return rest;
  }
  // Requests the rows of t, when the first product is complete.
  HOPPER_METHOD void request_t(int thread, int threads) {
    const int pieces = p.staged_ranks / 4;
    float* to_rows = (float*)(room + 1);
#pragma unroll 1
    for (int i = thread; i < (end_row - first_row) * pieces; i += threads) {
      hopper_copy16(ptx_shared_address(to_rows + 4 * i),
                    m.t + (i64)(first_row + i / pieces) * p.t_stride + i % pieces * 4);
    }
    ptx_copy_commit();
  }
  // What the thread requested is there after this; a barrier must follow.
  HOPPER_METHOD void await() {
    ptx_copy_wait<0>();
  }

  // REQUIRES: all sums, and what has been requested, are there. `rest`: what the preparing functions told any thread.
  // Threads take four rows of an item at a time.
  HOPPER_METHOD void add(T* sums, int stride, bool rest, int thread, int threads) {
    if (p.room != 0) {
      const int items = min(p.runs * quads, (int)ITEMS);
      int item = thread, row = 0;
#pragma unroll 1
      while (true) {
#pragma unroll 1
        for (; item >= items; row += 4) item -= items;
        if (row >= kLoraRows) break;
        add_four_rows(item, row, sums + item % quads * 4, stride);
        item += threads;
      }
    }
    if (rest) add_rest(*this, sums, stride, thread, threads);  // by value, so that the members stay in registers
  }

 private:
  HOPPER_METHOD void add_four_rows(int item, int row, T* sums, int stride) {
    const typename HopperLoraRoom<T, ITEMS>::Item own = room->items[item];
    if (row >= own.count) return;
    const float* t = p.staged_ranks > 0 ? (const float*)(room + 1) : m.t + first_row * p.t_stride;
    const int t_stride = p.staged_ranks > 0 ? p.staged_ranks : (int)p.t_stride;
    const T* b = room->b[0][item];
    const int* places = room->places[item / quads] + row;
    int place[4];
    const float* left[4];
    float acc[4][4] = {};
    UNROLL for (int r = 0; r < 4; r++) {
      place[r] = places[r];
      left[r] = t + max(place[r], 0) * t_stride + own.first;
    }
#pragma unroll 1
    for (int j = 0; j < own.rank; j += 4) {
      float4 four[4];
      UNROLL for (int r = 0; r < 4; r++) four[r] = *(const float4*)(left[r] + j);
      UNROLL for (int e = 0; e < 4; e++) {
        const uint2 packed = *(const uint2*)(b + (j + e) * (4 * ITEMS));
        const float v[4] = {low_of(packed.x), high_of(packed.x), low_of(packed.y), high_of(packed.y)};
        UNROLL for (int r = 0; r < 4; r++) {
          const float with = e == 0 ? four[r].x : e == 1 ? four[r].y : e == 2 ? four[r].z : four[r].w;
          UNROLL for (int c = 0; c < 4; c++) acc[r][c] = fma(with, v[c], acc[r][c]);
        }
      }
    }
    UNROLL for (int r = 0; r < 4; r++) {
      if (place[r] < 0) continue;
      uint2* y = (uint2*)(sums + place[r] * stride);
      const uint2 before = *y;
      *y = make_uint2(hopper_pack<T>(low_of(before.x) + acc[r][0], high_of(before.x) + acc[r][1]),
                      hopper_pack<T>(low_of(before.y) + acc[r][2], high_of(before.y) + acc[r][3]));
    }
  }
  static __device__ __forceinline__ float low_of(uint pair) {
    return to_f(from_bits16<T>((ushort)pair));
  }
  static __device__ __forceinline__ float high_of(uint pair) {
    return to_f(from_bits16<T>((ushort)(pair >> 16)));
  }

  // Whatever add() leaves: many runs, large ranks, ranks and columns at odd places.
  static __device__ __noinline__ void add_rest(HopperLoraTile tile, T* sums, int stride, int thread, int threads) {
    tile.add_others(sums, stride, thread, threads);
  }
  HOPPER_METHOD void add_others(T* sums, int stride, int thread, int threads) {
    for (int item = thread; item < p.runs * quads; item += threads) {
      const LoraRunParams run = m.runs[item / quads];
      if (run.slot < 0) return;
      typename HopperLoraRoom<T, ITEMS>::Item own = {};
      if (p.room != 0 && item < ITEMS) own = room->items[item];
      const uchar* slot = m.memory + run.slot * p.slot_bytes;
      const LoraSiteParams site = ((const LoraSiteParams*)slot)[p.site];
      const int n = output_column(item % quads * 4);
#pragma unroll 1
      for (int s = 0; s < site.num_slices; s++) {
        const LoraSliceParams slice = ((const LoraSliceParams*)(slot + site.slices))[s];
        const int at = n - slice.column;
        if (at + 4 <= 0 || at >= slice.n) continue;
        if (own.count > 0 && slice.first == own.first && at >= 0 && at + 4 <= slice.n) continue;
#pragma unroll 1
        for (int i = 0; i < run.count * 4; i++) {
          const int c = i % 4, place = place_of(run.first + i / 4);
          if (place < 0 || at + c < 0 || at + c >= slice.n) continue;
          const T* b = column_of((const T*)(slot + slice.b), slice.rank, at + c);
          const float* left = m.t + (first_row + place) * p.t_stride + slice.first;
          T* y = sums + place * stride + item % quads * 4 + c;
          float acc = 0.0f;
#pragma unroll 1
          for (int j = 0; j < slice.rank; j++) acc = fma(__ldcg(left + j), to_f(b[(i64)j * kLoraGroup]), acc);
          *y = to<T>(to_f(*y) + acc);
        }
      }
    }
  }
};
