// SPDX-License-Identifier: Apache-2.0
// lora_shrink and lora_expand: the products of adapters (ops/lora.h). A threadgroup takes a run of rows with the same
// adapter. What it computes for a row depends on that row alone.
//
// x is cut into spans of kLoraSpan elements, so that many threadgroups share the work of a few rows. lora_shrink writes
// the sums over each span; lora_expand adds them in their order.
//
// What no launch of the step writes (lists of rows, adapters, tokens) is loaded before GRID_WAIT().
//
// With experts, a row is one of a token's choices, and each expert has a site.
#pragma once

#include "kernels/compat/async_copy.h"
#include "kernels/compat/dialect.h"
#include "kernels/compat/tile.h"
#include "kernels/load4.h"
#include "kernels/params/lora.h"

// The row of x and out that is row i of a run; -1 if this call does not have it.
static FN int lora_row(CONSTANT const LoraParams& p, LoraRunParams run, DEVICE const int* rows, int i) {
  if (i >= run.count) return -1;
  const int row = rows[run.first + i] - p.first;
  return row >= 0 && row < p.rows ? row : -1;
}

// The site of the run's adapter; rank 0 if there is no run.
static FN LoraSiteParams lora_site(Ctx c, CONSTANT const LoraParams& p, DEVICE const uchar* memory,
                                   DEVICE const LoraRunParams* runs, THREAD LoraRunParams& run) {
  if (p.sorted != 0) GRID_WAIT();
  run = runs[c.tgx];
  LoraSiteParams site;
  site.rank = 0;
  if (run.slot >= 0) site = ((DEVICE const LoraSiteParams*)(memory + run.slot * p.slot_bytes))[p.site + run.expert];
  return site;
}

// t = A[:, token], in one span.
template <typename T>
static FN void lora_look_up(Ctx c, CONSTANT const LoraParams& p, LoraRunParams run, DEVICE float* out,
                            DEVICE const int* tokens, DEVICE const T* a, DEVICE const int* rows) {
  for (int i = (int)c.tid; i < kLoraRows * kLoraGroup; i += kLoraThreads) {
    const int j = i % kLoraGroup, row = lora_row(p, run, rows, i / kLoraGroup);
    if (row < 0) continue;
    out[(i64)row * p.t_stride + (int)c.tgy * kLoraGroup + j] = to_f(a[(i64)tokens[row] * kLoraGroup + j]);
  }
}

// Writes the sums of the parts of a span, added in order.
static FN void lora_write(Ctx c, CONSTANT const LoraParams& p, LoraRunParams run, DEVICE float* out,
                          DEVICE const int* rows, TGROUP const float* sums) {
  const int each = kLoraRows * kLoraGroup;
  for (int i = (int)c.tid; i < each; i += kLoraThreads) {
    const int j = i % kLoraGroup, row = lora_row(p, run, rows, i / kLoraGroup);
    if (row < 0) continue;
    float sum = sums[i];
    UNROLL for (int part = 1; part < kLoraSimdgroups; part++) sum += sums[part * each + i];
    out[(i64)row * p.t_stride + (int)c.tgz * p.span_stride + (int)c.tgy * kLoraGroup + j] = sum;
  }
}

// Each simdgroup multiplies its quarter of the span by tiles. Grid: (runs, rank / kLoraGroup, spans).
template <typename T>
struct LoraShrink {
  enum {
    kThreads = kLoraThreads,
    kPart = (int)kLoraSpan / (int)kLoraSimdgroups,
    kStride = kPart + 8,
    kPieces = kPart / 8,
    kTurns = (int)kLoraRows * kPieces / 32,
    kXSize = (int)kLoraRows * kStride,
    kASize = (int)kLoraGroup * kPart
  };
  struct Smem {
    alignas(16) T x[kLoraSimdgroups][kXSize];
    alignas(16) T a[kLoraSimdgroups][kASize];
    float sums[kLoraSimdgroups][kLoraRows * kLoraGroup];
  };
  static FN void run(Ctx c, CONSTANT const LoraParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const T* x,
                     DEVICE const int* tokens, DEVICE const uchar* memory, DEVICE const int* rows,
                     DEVICE const LoraRunParams* runs) {
    LoraRunParams run;
    const LoraSiteParams site = lora_site(c, p, memory, runs, run);
    if ((int)c.tgy * kLoraGroup >= site.rank) {
      GRID_WAIT();
      return;
    }
    const i64 depth = p.k;
    DEVICE const T* a = (DEVICE const T*)(memory + run.slot * p.slot_bytes + site.a) + (i64)c.tgy * kLoraGroup * depth;
    if (p.from_tokens != 0) {
      GRID_WAIT();
      lora_look_up(c, p, run, out, tokens, a, rows);
      return;
    }
    const int first = (int)c.tgz * kLoraSpan + (int)c.sg * kPart;
    TGROUP T* own_a = sm.a[c.sg];
    TGROUP T* own_x = sm.x[c.sg];
    // Zeros behind the end of x, and in rows that are not there.
    for (int i = (int)c.lane; i < kPart * 2; i += 32) {
      TGROUP T* place = own_a + i * 8;
      if (first + i / 2 < p.k) {
        copy16_async(place, a + (i64)first * kLoraGroup + i * 8);
      } else {
        UNROLL for (int e = 0; e < 8; e++) place[e] = to<T>(0.0f);
      }
    }
    int own_rows[kTurns];
    UNROLL for (int j = 0; j < kTurns; j++) own_rows[j] = lora_row(p, run, rows, ((int)c.lane + 32 * j) / kPieces);
    GRID_WAIT();
    UNROLL for (int j = 0; j < kTurns; j++) {
      const int i = (int)c.lane + 32 * j, k = first + i % kPieces * 8, row = own_rows[j];
      TGROUP T* place = own_x + i / kPieces * kStride + i % kPieces * 8;
      DEVICE const T* from = x + (i64)(row / p.of_row) * p.x_stride + k;
      if (row >= 0 && k < p.k && p.aligned != 0) {
        copy16_async(place, from);
      } else {
        for (int e = 0; e < 8; e++) place[e] = row >= 0 && k + e < p.k ? from[e] : to<T>(0.0f);
      }
    }
    copy_commit();
    copy_wait<0>();
    TG_BARRIER();
    Acc16 acc;
    acc_zero(acc);
    UNROLL for (int k = 0; k < kPart; k += 16) {
      FragA<T> left;
      FragB<T> right;
      frag_load_a(left, own_x + k, kStride, c.lane);
      frag_load_b(right, own_a + k * kLoraGroup, kLoraGroup, c.lane);
      acc_mma(acc, left, right);
    }
    UNROLL for (int i = 0; i < 8; i++) {
      sm.sums[c.sg][acc_row(i, c.lane) * kLoraGroup + acc_col(i, c.lane)] = acc_get(acc, i);
    }
    TG_BARRIER();
    lora_write(c, p, run, out, rows, sm.sums[0]);
  }
};

// With floats, a thread has four columns of A for one row, and an eighth of a quarter of the span.
template <>
struct LoraShrink<float> {
  enum { kThreads = kLoraThreads };
  struct Smem {
    float sums[kLoraSimdgroups][kLoraRows * kLoraGroup];
  };
  static FN void run(Ctx c, CONSTANT const LoraParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* x,
                     DEVICE const int* tokens, DEVICE const uchar* memory, DEVICE const int* rows,
                     DEVICE const LoraRunParams* runs) {
    LoraRunParams run;
    const LoraSiteParams site = lora_site(c, p, memory, runs, run);
    GRID_WAIT();
    if ((int)c.tgy * kLoraGroup >= site.rank) return;
    const i64 depth = p.k;
    DEVICE const float* a =
        (DEVICE const float*)(memory + run.slot * p.slot_bytes + site.a) + (i64)c.tgy * kLoraGroup * depth;
    if (p.from_tokens != 0) {
      lora_look_up(c, p, run, out, tokens, a, rows);
      return;
    }
    const int part = kLoraSpan / kLoraSimdgroups;
    const int first = (int)c.tgz * kLoraSpan + (int)c.sg * part, last = min(first + part, p.k);
    for (int i = (int)c.lane; i < kLoraRows * kLoraGroup; i += 32) {
      const int j = i % kLoraGroup, row = lora_row(p, run, rows, i / kLoraGroup);
      float sum = 0.0f;
      if (row >= 0) {
        DEVICE const float* from = x + (i64)(row / p.of_row) * p.x_stride;
        for (int k = first; k < last; k++) sum = fma(from[k], a[(i64)k * kLoraGroup + j], sum);
      }
      sm.sums[c.sg][i] = sum;
    }
    TG_BARRIER();
    lora_write(c, p, run, out, rows, sm.sums[0]);
  }
};
KERNEL_EARLY(lora_shrink_f32, LoraShrink<float>, LoraParams, float, const float, const int, const uchar, const int,
             const LoraRunParams)
KERNEL_EARLY(lora_shrink_f16, LoraShrink<half>, LoraParams, float, const half, const int, const uchar, const int,
             const LoraRunParams)
KERNEL_EARLY(lora_shrink_bf16, LoraShrink<bfloat>, LoraParams, float, const bfloat, const int, const uchar, const int,
             const LoraRunParams)

// Four columns of B by kLoraChunk ranks as floats.
struct LoraWeights {
  float4 of[kLoraChunk];
};

// A thread computes four neighbouring columns, for four rows at a time. The code is short, because a launch as small as
// this one takes about as long as its instructions take to arrive. Grid: (runs, cols / (kLoraColumns * kLoraThreads)).
template <typename T, typename Out>
struct LoraExpand {
  enum { kThreads = kLoraThreads };
  struct Smem {
    alignas(16) float t[kLoraRanks][kLoraRows];
    int rows[kLoraRows];
  };
  // Element j of column n of B; zero if the slice has no such column.
  static FN float one(DEVICE const T* b, LoraSliceParams slice, int n, int j) {
    if (n < 0 || n >= slice.n) return 0.0f;
    return to_f(b[((i64)(n / kLoraGroup) * slice.rank + j) * kLoraGroup + n % kLoraGroup]);
  }
  static FN void add_one(DEVICE Out* y, int n, int columns, float sum) {
    if (n >= 0 && n < columns) *y = to<Out>(to_f(*y) + sum);
  }
  // Elements [begin, begin + kLoraChunk) of columns [n, n + 4); zeros behind the last rank.
  static FN void load_b(THREAD LoraWeights& w, DEVICE const T* b, LoraSliceParams slice, int n, int begin) {
    DEVICE const T* from = b + ((i64)(n / kLoraGroup) * slice.rank + begin) * kLoraGroup + n % kLoraGroup;
    UNROLL for (int j = 0; j < kLoraChunk; j++) {
      w.of[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (begin + j < slice.rank) w.of[j] = load4(from + j * kLoraGroup);
    }
  }
  // Adds t[j] b[j] to the sums of four rows from `first` on.
  static FN float4 one_step(float left, float4 v, float4 sum) {
    return make_float4(fma(left, v.x, sum.x), fma(left, v.y, sum.y), fma(left, v.z, sum.z), fma(left, v.w, sum.w));
  }
  static FN void step(TGROUP const Smem& sm, int j, int first, float4 v, THREAD float4* sums) {
    const float4 left = *(TGROUP const float4*)&sm.t[j][first];
    sums[0] = one_step(left.x, v, sums[0]);
    sums[1] = one_step(left.y, v, sums[1]);
    sums[2] = one_step(left.z, v, sums[2]);
    sums[3] = one_step(left.w, v, sums[3]);
  }
  // Elements [begin, begin + kLoraRanks) of the slice's part of t, for all rows of the run; zeros behind the last one.
  static FN void load_t(Ctx c, CONSTANT const LoraParams& p, TGROUP Smem& sm, DEVICE const float* t,
                        DEVICE const float* scales, LoraSliceParams slice, int begin) {
    const int width = slice.rank - begin <= kLoraChunk ? kLoraChunk : kLoraRanks;  // ranks that are needed
    for (int i = (int)c.tid; i < width * kLoraRows; i += kLoraThreads) {
      const int j = i % width, r = i / width, row = sm.rows[r];
      float sum = 0.0f;
      if (row >= 0 && begin + j < slice.rank) {
        DEVICE const float* from = t + (i64)row * p.t_stride + slice.first + begin + j;
        for (int s = 0; s < p.spans; s += kLoraAhead) {
          float parts[kLoraAhead];
          UNROLL for (int n = 0; n < kLoraAhead; n++) parts[n] = s + n < p.spans ? from[(s + n) * p.span_stride] : 0.0f;
          UNROLL for (int n = 0; n < kLoraAhead; n++) sum += parts[n];
        }
        if (p.scaled == 0) sum *= scales[slice.first + begin + j];
      }
      sm.t[j][r] = sum;
    }
  }
  static FN void add_slice(Ctx c, CONSTANT const LoraParams& p, TGROUP Smem& sm, DEVICE Out* out, DEVICE const float* t,
                           DEVICE const T* b, DEVICE const float* scales, LoraSliceParams slice, int count,
                           int column) {
    const int n = column - slice.column;  // the first of four columns of B, of which some may not be there
    const bool all = p.aligned != 0 && (slice.column & 3) == 0 && n >= 0 && n + kLoraColumns <= slice.n;
    LoraWeights w;
    int held = -1, staged = -1;  // what is in w and in sm.t
    for (int first = 0; first < count; first += 4) {
      float4 sums[4];
      UNROLL for (int r = 0; r < 4; r++) sums[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int begin = 0; begin < slice.rank; begin += kLoraChunk) {
        if (all && held != begin) load_b(w, b, slice, n, begin);
        held = begin;
        if (begin % kLoraRanks == 0 && staged != begin) {
          GRID_WAIT();
          TG_BARRIER();
          load_t(c, p, sm, t, scales, slice, begin);
          TG_BARRIER();
          staged = begin;
        }
        if (all) {
          UNROLL for (int j = 0; j < kLoraChunk; j++) step(sm, begin % kLoraRanks + j, first, w.of[j], sums);
        } else {
          for (int j = begin; j < min(begin + (int)kLoraChunk, slice.rank); j++) {
            step(sm, j % kLoraRanks, first,
                 make_float4(one(b, slice, n, j), one(b, slice, n + 1, j), one(b, slice, n + 2, j),
                             one(b, slice, n + 3, j)),
                 sums);
          }
        }
      }
      UNROLL for (int r = 0; r < 4; r++) {
        const int row = sm.rows[first + r];
        if (row < 0) continue;
        DEVICE Out* y = out + (i64)row * p.out_stride + column;
        const float4 sum = sums[r];
        if (all) {
          const float4 before = load4(y);
          store4(y, make_float4(before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w));
        } else {
          add_one(y, n, slice.n, sum.x);
          add_one(y + 1, n + 1, slice.n, sum.y);
          add_one(y + 2, n + 2, slice.n, sum.z);
          add_one(y + 3, n + 3, slice.n, sum.w);
        }
      }
    }
  }
  static FN void run(Ctx c, CONSTANT const LoraParams& p, TGROUP Smem& sm, DEVICE Out* out, DEVICE const float* t,
                     DEVICE const uchar* memory, DEVICE const int* rows, DEVICE const LoraRunParams* runs) {
    LoraRunParams run;
    const LoraSiteParams site = lora_site(c, p, memory, runs, run);
    if (site.rank == 0) {
      GRID_WAIT();
      return;
    }
    DEVICE const uchar* slot = memory + run.slot * p.slot_bytes;
    DEVICE const LoraSliceParams* slices = (DEVICE const LoraSliceParams*)(slot + site.slices);
    DEVICE const float* scales = (DEVICE const float*)(slot + site.scales);
    const int width = kLoraColumns * kLoraThreads, group = (int)c.tgy * width;
    if ((int)c.tid < kLoraRows) sm.rows[c.tid] = lora_row(p, run, rows, (int)c.tid);
    for (int s = 0; s < site.num_slices; s++) {
      const LoraSliceParams slice = slices[s];
      if (slice.column >= group + width || slice.column + slice.n <= group) continue;
      add_slice(c, p, sm, out, t, (DEVICE const T*)(slot + slice.b), scales, slice, run.count,
                group + (int)c.tid * kLoraColumns);
    }
    GRID_WAIT();  // for a threadgroup without columns of a slice
  }
};
typedef LoraExpand<float, float> LoraExpandF32;
typedef LoraExpand<half, half> LoraExpandF16;
typedef LoraExpand<half, float> LoraExpandF16F32;
typedef LoraExpand<bfloat, bfloat> LoraExpandBf16;
typedef LoraExpand<bfloat, float> LoraExpandBf16F32;
KERNEL_EARLY(lora_expand_f32_f32, LoraExpandF32, LoraParams, float, const float, const uchar, const int,
             const LoraRunParams)
KERNEL_EARLY(lora_expand_f16_f16, LoraExpandF16, LoraParams, half, const float, const uchar, const int,
             const LoraRunParams)
KERNEL_EARLY(lora_expand_f16_f32, LoraExpandF16F32, LoraParams, float, const float, const uchar, const int,
             const LoraRunParams)
KERNEL_EARLY(lora_expand_bf16_bf16, LoraExpandBf16, LoraParams, bfloat, const float, const uchar, const int,
             const LoraRunParams)
KERNEL_EARLY(lora_expand_bf16_f32, LoraExpandBf16F32, LoraParams, float, const float, const uchar, const int,
             const LoraRunParams)
