// SPDX-License-Identifier: Apache-2.0
// The second product of adapters (ops/lora.h) as a part of another kernel's epilogue (sm_90a): it adds to a tile of
// rounded sums in shared memory, with the bits of lora_expand. No kernels here.
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

// Four columns of a tile, for the rows of a run: what one thread adds at a time.
struct HopperLoraQuad {
  LoraRunParams run;
  LoraSiteParams site;
  const uchar* slot;
  int column, n;  // in the tile, and of the linear's output
};

template <typename T, int THREADS>
struct HopperLoraAdd {
  // Item `item` of a tile with `quads` times four columns; false if there is no such item. `output_column` tells which
  // column of the output a column of the tile is; four neighbours that begin at a multiple of four stay neighbours.
  template <typename Columns>
  HOPPER_FN bool quad_of(const HopperLoraParams& p, const HopperLoraMemory& m, int item, int quads,
                         Columns output_column, HopperLoraQuad& quad) {
    if (item >= p.runs * quads) return false;
    quad.run = m.runs[item / quads];
    if (quad.run.slot < 0) return false;  // empty runs are the last ones
    quad.slot = m.memory + quad.run.slot * p.slot_bytes;
    quad.site = ((const LoraSiteParams*)quad.slot)[p.site];
    quad.column = item % quads * 4;
    quad.n = output_column(quad.column);
    return true;
  }
  HOPPER_FN bool touches(const LoraSliceParams& slice, int n) {
    return n + 4 > slice.column && n < slice.column + slice.n;
  }
  // Where the panel with the slice's column n begins.
  HOPPER_FN const T* panel_of(const HopperLoraQuad& quad, const LoraSliceParams& slice, int n) {
    return (const T*)(quad.slot + slice.b) + (i64)(n / kLoraGroup) * slice.rank * kLoraGroup;
  }

  // Brings the adapters' part of the tile into the L2 cache.
  template <typename Columns>
  HOPPER_FN void prefetch(const HopperLoraParams& p, const HopperLoraMemory& m, int columns, Columns output_column) {
    HopperLoraQuad quad;
#pragma unroll 1
    for (int item = (int)threadIdx.x; quad_of(p, m, item, columns / 4, output_column, quad); item += THREADS) {
      const LoraSliceParams* slices = (const LoraSliceParams*)(quad.slot + quad.site.slices);
#pragma unroll 1
      for (int s = 0; s < quad.site.num_slices; s++) {
        const LoraSliceParams slice = slices[s];
        if (!touches(slice, quad.n)) continue;
        const int n = max(quad.n - slice.column, 0);
        const char* from = (const char*)panel_of(quad, slice, n);
        for (int at = n / 4 % 4 * 128; at < slice.rank * kLoraGroup * 2; at += 512) {
          asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
        }
      }
    }
  }

  // Adds to sums[row - first_row][column] what the adapters of rows [first_row, end_row) have. REQUIRES: the sums
  // are there for all threads, and the first product is complete.
  template <typename Columns>
  HOPPER_FN void add(const HopperLoraParams& p, const HopperLoraMemory& m, T* sums, int stride, int columns,
                     int first_row, int end_row, Columns output_column) {
    HopperLoraQuad quad;
#pragma unroll 1
    for (int item = (int)threadIdx.x; quad_of(p, m, item, columns / 4, output_column, quad); item += THREADS) {
      const LoraSliceParams* slices = (const LoraSliceParams*)(quad.slot + quad.site.slices);
#pragma unroll 1
      for (int s = 0; s < quad.site.num_slices; s++) {
        const LoraSliceParams slice = slices[s];
        if (!touches(slice, quad.n)) continue;
        const int n = quad.n - slice.column;
        const bool whole = n >= 0 && n + 4 <= slice.n && n % 4 == 0 && slice.first % 4 == 0 && p.t_stride % 4 == 0;
#pragma unroll 1
        for (int first = 0; first < quad.run.count; first += 4) {
          T* place[4];
          const float* t[4];
          UNROLL for (int r = 0; r < 4; r++) {
            const int row = first + r < quad.run.count ? m.rows[quad.run.first + first + r] - p.first : -1;
            const bool here = row >= first_row && row < end_row;
            place[r] = here ? sums + (row - first_row) * stride + quad.column : nullptr;
            t[r] = m.t + (i64)(here ? row : first_row) * p.t_stride + slice.first;
          }
          if (whole) {
            add_whole(quad, slice, n, place, t);
          } else {
            add_single(quad, slice, n, place, t);
          }
        }
      }
    }
  }

  // B as pairs of two columns, 16 ranks at a time.
  HOPPER_FN void add_whole(const HopperLoraQuad& quad, const LoraSliceParams& slice, int n, T* const (&place)[4],
                           const float* const (&t)[4]) {
    const T* b = panel_of(quad, slice, n) + n % kLoraGroup;
    float acc[4][4];
    UNROLL for (int r = 0; r < 4; r++) UNROLL for (int c = 0; c < 4; c++) acc[r][c] = 0.0f;
#pragma unroll 1
    for (int begin = 0; begin < slice.rank; begin += kLoraChunk) {
      uint2 w[kLoraChunk];
      float4 left[4][kLoraChunk / 4];
      UNROLL for (int j = 0; j < kLoraChunk; j++) {
        w[j] = make_uint2(0, 0);
        if (begin + j < slice.rank) w[j] = __ldg((const uint2*)(b + (i64)(begin + j) * kLoraGroup));
      }
      UNROLL for (int r = 0; r < 4; r++) {
        UNROLL for (int j = 0; j < kLoraChunk / 4; j++) {
          left[r][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if (begin + 4 * j < slice.rank) left[r][j] = __ldcg((const float4*)(t[r] + begin + 4 * j));
        }
      }
      UNROLL for (int j = 0; j < kLoraChunk; j++) {
        const float4 v = lora_floats(w[j]);
        UNROLL for (int r = 0; r < 4; r++) {
          const float4 four = left[r][j / 4];
          float with = j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w;
          if (begin + j >= slice.rank) with = 0.0f;  // it belongs to another slice
          acc[r][0] = fma(with, v.x, acc[r][0]);
          acc[r][1] = fma(with, v.y, acc[r][1]);
          acc[r][2] = fma(with, v.z, acc[r][2]);
          acc[r][3] = fma(with, v.w, acc[r][3]);
        }
      }
    }
    UNROLL for (int r = 0; r < 4; r++) {
      if (place[r] == nullptr) continue;
      uint2* y = (uint2*)place[r];
      const float4 before = lora_floats(*y);
      *y = make_uint2(hopper_pack<T>(before.x + acc[r][0], before.y + acc[r][1]),
                      hopper_pack<T>(before.z + acc[r][2], before.w + acc[r][3]));
    }
  }
  HOPPER_FN float4 lora_floats(uint2 packed) {
    T four[4];
    *(uint2*)four = packed;
    return make_float4(to_f(four[0]), to_f(four[1]), to_f(four[2]), to_f(four[3]));
  }
  // Columns that are partly another slice's, and ranks at odd places.
  HOPPER_FN void add_single(const HopperLoraQuad& quad, const LoraSliceParams& slice, int n, T* const (&place)[4],
                            const float* const (&t)[4]) {
#pragma unroll 1
    for (int c = max(-n, 0); c < min(4, slice.n - n); c++) {
      const T* b = panel_of(quad, slice, n + c) + (n + c) % kLoraGroup;
      UNROLL for (int r = 0; r < 4; r++) {
        if (place[r] == nullptr) continue;
        float acc = 0.0f;
#pragma unroll 1
        for (int j = 0; j < slice.rank; j++) acc = fma(__ldcg(t[r] + j), to_f(b[(i64)j * kLoraGroup]), acc);
        place[r][c] = to<T>(to_f(place[r][c]) + acc);
      }
    }
  }
};
