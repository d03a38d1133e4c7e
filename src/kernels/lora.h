// SPDX-License-Identifier: Apache-2.0
// lora_shrink and lora_expand: the products of adapters (ops/lora.h). A threadgroup takes eight entries of the list of
// rows, which is sorted by slot, and goes through the runs of entries with the same slot. What it computes for a row
// depends on that row alone.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/params/lora.h"

// The rows of the next run of a tile.
struct LoraRun {
  int slot;             // -1: the run is to be skipped
  int count;            // rows
  int rows[kLoraTile];  // of x and out; behind `count` the first one again, so that loads need no condition
  int end;              // the entry of the tile behind the run
};

static FN LoraRun lora_run(CONSTANT const LoraParams& p, DEVICE const int* rows, DEVICE const int* slots, int tile,
                           int begin) {
  LoraRun run;
  const int last = min((int)kLoraTile, p.listed - tile);
  run.slot = slots[tile + begin];
  run.count = 0;
  int i = begin;
  for (; i < last && slots[tile + i] == run.slot; i++) {
    const int row = rows[tile + i] - p.first;
    if (row >= 0 && row < p.rows) run.rows[run.count++] = row;
  }
  run.end = i;
  if (run.count == 0) run.slot = -1;
  for (int r = run.count; r < kLoraTile; r++) run.rows[r] = run.count == 0 ? 0 : run.rows[0];
  return run;
}

// Thread (part, j) sums A's column j over k = part, part + kLoraParts, ...; then the parts are added in order.
// Grid: (listed / kLoraTile, most elements of t / kLoraGroup).
template <typename T>
struct LoraShrink {
  enum { kThreads = kLoraShrinkThreads };
  struct Smem {
    float sums[kLoraParts][kLoraTile][kLoraGroup];
  };
  static FN void run(Ctx c, CONSTANT const LoraParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const T* x,
                     DEVICE const int* tokens, DEVICE const uchar* memory, DEVICE const int* rows,
                     DEVICE const int* slots) {
    const int tile = (int)c.tgx * kLoraTile;
    const int last = min((int)kLoraTile, p.listed - tile);
    const int part = (int)c.tid / kLoraGroup, lane = (int)c.tid % kLoraGroup;
    const int j = (int)c.tgy * kLoraGroup + lane;
    for (int begin = 0; begin < last;) {
      const LoraRun run = lora_run(p, rows, slots, tile, begin);
      begin = run.end;
      if (run.slot < 0) continue;
      DEVICE const uchar* slot = memory + (i64)run.slot * p.slot_bytes;
      const LoraSiteParams site = ((DEVICE const LoraSiteParams*)slot)[p.site];
      if ((int)c.tgy * kLoraGroup >= site.rank) continue;
      DEVICE const T* a = (DEVICE const T*)(slot + site.a) + (i64)c.tgy * kLoraGroup * p.k + lane;
      const float scale = ((DEVICE const float*)(slot + site.scales))[j];
      if (p.from_tokens != 0) {
        if (part < run.count) {
          const int row = run.rows[part];
          out[(i64)row * p.t_stride + j] = to_f(a[(i64)tokens[row] * kLoraGroup]) * scale;
        }
        continue;
      }
      float sums[kLoraTile];
      UNROLL for (int r = 0; r < kLoraTile; r++) sums[r] = 0.0f;
      int k = part;
      for (; k + (kLoraAhead - 1) * kLoraParts < p.k; k += kLoraAhead * kLoraParts) {
        float w[kLoraAhead];
        UNROLL for (int i = 0; i < kLoraAhead; i++) w[i] = to_f(a[(i64)(k + i * kLoraParts) * kLoraGroup]);
        UNROLL for (int r = 0; r < kLoraTile; r++) {
          DEVICE const T* row = x + (i64)run.rows[r] * p.x_stride + k;
          UNROLL for (int i = 0; i < kLoraAhead; i++) sums[r] = fma(to_f(row[i * kLoraParts]), w[i], sums[r]);
        }
      }
      for (; k < p.k; k += kLoraParts) {
        const float w = to_f(a[(i64)k * kLoraGroup]);
        UNROLL for (int r = 0; r < kLoraTile; r++) {
          sums[r] = fma(to_f(x[(i64)run.rows[r] * p.x_stride + k]), w, sums[r]);
        }
      }
      UNROLL for (int r = 0; r < kLoraTile; r++) sm.sums[part][r][lane] = sums[r];
      TG_BARRIER();
      if (part < run.count) {
        float sum = sm.sums[0][part][lane];
        for (int i = 1; i < kLoraParts; i++) sum += sm.sums[i][part][lane];
        out[(i64)run.rows[part] * p.t_stride + j] = sum * scale;
      }
      TG_BARRIER();
    }
  }
};
KERNEL(lora_shrink_f32, LoraShrink<float>, LoraParams, float, const float, const int, const uchar, const int, const int)
KERNEL(lora_shrink_f16, LoraShrink<half>, LoraParams, float, const half, const int, const uchar, const int, const int)
KERNEL(lora_shrink_bf16, LoraShrink<bfloat>, LoraParams, float, const bfloat, const int, const uchar, const int,
       const int)

// A thread computes one column. Grid: (listed / kLoraTile, cols / kLoraThreads).
template <typename T, typename Out>
struct LoraExpand {
  enum { kThreads = kLoraThreads };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const LoraParams& p, TGROUP Smem& sm, DEVICE Out* out, DEVICE const float* t,
                     DEVICE const uchar* memory, DEVICE const int* rows, DEVICE const int* slots) {
    const int tile = (int)c.tgx * kLoraTile;
    const int last = min((int)kLoraTile, p.listed - tile);
    const int column = (int)(c.tgy * kLoraThreads + c.tid);
    for (int begin = 0; begin < last;) {
      const LoraRun run = lora_run(p, rows, slots, tile, begin);
      begin = run.end;
      if (run.slot < 0) continue;
      DEVICE const uchar* slot = memory + (i64)run.slot * p.slot_bytes;
      const LoraSiteParams site = ((DEVICE const LoraSiteParams*)slot)[p.site];
      if (site.rank == 0) continue;
      DEVICE const LoraSliceParams* slices = (DEVICE const LoraSliceParams*)(slot + site.slices);
      for (int s = 0; s < site.num_slices; s++) {
        const LoraSliceParams slice = slices[s];
        const int n = column - slice.column;
        if (n < 0 || n >= slice.n) continue;
        DEVICE const T* b =
            (DEVICE const T*)(slot + slice.b) + (i64)(n / kLoraGroup) * kLoraGroup * slice.rank + n % kLoraGroup;
        float sums[kLoraTile];
        UNROLL for (int r = 0; r < kLoraTile; r++) sums[r] = 0.0f;
        int j = 0;
        for (; j + kLoraAhead <= slice.rank; j += kLoraAhead) {
          float w[kLoraAhead];
          UNROLL for (int i = 0; i < kLoraAhead; i++) w[i] = to_f(b[(j + i) * kLoraGroup]);
          UNROLL for (int r = 0; r < kLoraTile; r++) {
            DEVICE const float* row = t + (i64)run.rows[r] * p.t_stride + slice.first + j;
            UNROLL for (int i = 0; i < kLoraAhead; i++) sums[r] = fma(row[i], w[i], sums[r]);
          }
        }
        for (; j < slice.rank; j++) {
          const float w = to_f(b[j * kLoraGroup]);
          UNROLL for (int r = 0; r < kLoraTile; r++) {
            sums[r] = fma(t[(i64)run.rows[r] * p.t_stride + slice.first + j], w, sums[r]);
          }
        }
        UNROLL for (int r = 0; r < kLoraTile; r++) {
          if (r >= run.count) continue;
          DEVICE Out* y = out + (i64)run.rows[r] * p.out_stride + column;
          *y = to<Out>(to_f(*y) + sums[r]);
        }
      }
    }
  }
};
typedef LoraExpand<float, float> LoraExpandF32;
typedef LoraExpand<half, half> LoraExpandF16;
typedef LoraExpand<half, float> LoraExpandF16F32;
typedef LoraExpand<bfloat, bfloat> LoraExpandBf16;
typedef LoraExpand<bfloat, float> LoraExpandBf16F32;
KERNEL(lora_expand_f32_f32, LoraExpandF32, LoraParams, float, const float, const uchar, const int, const int)
KERNEL(lora_expand_f16_f16, LoraExpandF16, LoraParams, half, const float, const uchar, const int, const int)
KERNEL(lora_expand_f16_f32, LoraExpandF16F32, LoraParams, float, const float, const uchar, const int, const int)
KERNEL(lora_expand_bf16_bf16, LoraExpandBf16, LoraParams, bfloat, const float, const uchar, const int, const int)
KERNEL(lora_expand_bf16_f32, LoraExpandBf16F32, LoraParams, float, const float, const uchar, const int, const int)
