// SPDX-License-Identifier: Apache-2.0
// The bodies of linear for 16-bit activations, which use the matrix tile: one for few rows, one for many. No kernels
// here.
//
// In both, each sum is one chain of k16 steps from zero, in ascending order, that stops at K: a step is one acc_mma
// over 16 k, and each adds to the result of the one before. So their results are equal by memcmp, whatever the tile and
// the number of rows. Weights of the activations' own type are copied as they are; all others are converted to float
// and rounded to T once. Grouped bodies (experts) take rows of x in an order that is sorted by expert.
#pragma once

#include "kernels/activation_functions.h"
#include "kernels/compat/async_copy.h"
#include "kernels/compat/dialect.h"
#include "kernels/compat/tile.h"
#include "kernels/linear_weight.h"
#include "kernels/norm_sum.h"
#include "kernels/params/linear.h"

template <typename T>
FN float linear_rounded(CONSTANT const LinearLast& p, float acc, DEVICE const float* bias, int n) {
  const float y = to_f(to<T>(acc));
  return p.biased != 0 ? to_f(to<T>(y + bias[n])) : y;
}

// The epilogue of one sum; not for gated products.
template <typename T>
FN void linear_store(CONSTANT const LinearLast& p, DEVICE uchar* out, i64 row, int n, float acc,
                     DEVICE const float* bias, DEVICE const float* residual) {
  const i64 at = row * p.out_stride + n;
  if (p.epilogue == kLinearStoreF32) {
    ((DEVICE float*)out)[at] = p.biased != 0 ? acc + bias[n] : acc;
    return;
  }
  const float y = linear_rounded<T>(p, acc, bias, n);
  if (p.epilogue == kLinearResidual) {
    ((DEVICE float*)out)[at] = fma(y, p.scale, residual[row * p.residual_stride + n]);
  } else if (p.epilogue == kLinearActivated) {
    ((DEVICE T*)out)[at] = to<T>(activate(p.activation, y));
  } else {
    ((DEVICE T*)out)[at] = to<T>(y);
  }
}

template <typename T>
FN void linear_store_gated(CONSTANT const LinearLast& p, DEVICE uchar* out, i64 row, int n, float gate, float up,
                           DEVICE const float* bias) {
  const float g = linear_rounded<T>(p, gate, bias, n), u = linear_rounded<T>(p, up, bias, p.columns + n);
  ((DEVICE T*)out)[row * p.out_stride + n] = to<T>(activate_glu(p.activation, p.limit, g, u));
}

// The row of W that is row r of a tile; rows past the end repeat the last one.
FN int linear_row(CONSTANT const LinearParams& p, int tile, int r) {
  if (p.last.epilogue == kLinearGated) {
    return min(tile * 8 + (r & 7), p.last.columns - 1) + ((r & 8) != 0 ? p.last.columns : 0);
  }
  return min(tile * 16 + r, p.last.columns - 1);
}

// The sums go through threadgroup memory before the epilogue, as tiles of 16 rows of kLinearSumLd floats. So the
// epilogue's code exists once in a kernel, and neighbouring lanes write neighbouring columns.
enum { kLinearSumLd = 20, kLinearSumTile = 16 * kLinearSumLd };

FN void linear_stage_sums(THREAD const Acc16& acc, TGROUP float* sums, uint lane) {
  UNROLL for (int i = 0; i < 8; i++) sums[acc_row(i, lane) * kLinearSumLd + acc_col(i, lane)] = acc_get(acc, i);
}

// Stores `count` tiles, two per row of tiles, beginning with tile `first` of W. `rows` holds their row numbers in out
// (-1: none). Called by one simdgroup, after a barrier.
template <typename T>
FN void linear_store_tiles(CONSTANT const LinearParams& p, TGROUP const float* sums, int count, TGROUP const int* rows,
                           int first, uint lane, DEVICE uchar* out, DEVICE const float* bias,
                           DEVICE const float* residual) {
  for (int i = 0; i < count * 8; i++) {
    const int t = i >> 3, r = (i & 7) * 2 + (int)(lane >> 4), column = (int)(lane & 15);
    const int row = rows[(t >> 1) * 16 + r], tile = first + (t & 1);
    TGROUP const float* sum = sums + t * kLinearSumTile + r * kLinearSumLd + column;
    if (row < 0) continue;
    if (p.last.epilogue == kLinearGated) {
      const int n = tile * 8 + column;
      if (column < 8 && n < p.last.columns) linear_store_gated<T>(p.last, out, row, n, sum[0], sum[8], bias);
    } else if (tile * 16 + column < p.last.columns) {
      linear_store<T>(p.last, out, row, tile * 16 + column, sum[0], bias, residual);
    }
  }
}

// ---- loading W: R rows by 2 R threads, a chunk of k at a time, into rows of `Ld` elements ----

// Weights of type T are copied as they are, several chunks ahead.
template <typename T>
struct LinearPlain {
  enum { kChunk = 32, kFewStages = 5, kManyStages = 3 };
  struct Held {
    i64 at[2];  // byte offsets of this thread's 16-byte pieces in two rows
  };
  template <int R>
  static FN void begin(CONSTANT const LinearParams& p, DEVICE const uchar* w, THREAD Held& held, int tile, int t) {
    UNROLL for (int j = 0; j < 2; j++) {
      const int r = (t >> 2) + R / 2 * j;
      held.at[j] = (i64)linear_row(p, tile + (r >> 4), r & 15) * p.weight.stride + (t & 3) * 16;
    }
  }
  // Rows are padded with zeros to a multiple of 16 bytes; past that there is nothing to copy.
  template <int R, int Ld>
  static FN void load(CONSTANT const LinearParams& p, DEVICE const uchar* w, THREAD Held& held, TGROUP T* into,
                      int chunk, int t) {
    const bool inside = chunk * kChunk + (t & 3) * 8 < p.weight.k;
    UNROLL for (int j = 0; j < 2; j++) {
      TGROUP T* row = into + ((t >> 2) + R / 2 * j) * Ld + (t & 3) * 8;
      if (inside) {
        copy16_async(row, w + held.at[j] + chunk * (kChunk * 2));
      } else {
        *(TGROUP uint4*)row = make_uint4(0, 0, 0, 0);
      }
    }
  }
};

// Stores sixteen values as T.
template <typename T>
FN void linear_pack16(TGROUP T* row, THREAD const float* v) {
  uint u[8];
  UNROLL for (int i = 0; i < 8; i++) {
    u[i] = (uint)to_bits16(to<T>(v[2 * i])) | (uint)to_bits16(to<T>(v[2 * i + 1])) << 16;
  }
  ((TGROUP uint4*)row)[0] = make_uint4(u[0], u[1], u[2], u[3]);
  ((TGROUP uint4*)row)[1] = make_uint4(u[4], u[5], u[6], u[7]);
}

// Weights of any other type: a thread has one row and every second step of 16 k, and fetches one chunk ahead.
template <typename T>
struct LinearAny {
  enum { kChunk = 32, kManyStages = 2 };
  struct Held {
    WeightRaw raw;
    int n;
  };
  template <int R>
  static FN void begin(CONSTANT const LinearParams& p, DEVICE const uchar* w, THREAD Held& held, int tile, int t) {
    const int r = t & (R - 1);
    held.n = linear_row(p, tile + (r >> 4), r & 15);
    weight_begin(p.weight, w, held.n, t / R, held.raw);
  }
  template <int R, int Ld>
  static FN void load(CONSTANT const LinearParams& p, DEVICE const uchar* w, THREAD Held& held, TGROUP T* into,
                      int chunk, int t) {
    const int step = chunk * 2 + t / R;
    float v[16];
    weight_finish(p.weight, w, held.n, step, held.raw, v);
    linear_pack16(into + (t & (R - 1)) * Ld + t / R * 16, v);
    weight_begin(p.weight, w, held.n, step + 2, held.raw);
  }
};

// ---- loading x: Rows rows by `threads` threads, zeros past K; absent rows are left as they are ----

template <typename T, int Rows, int Chunk>
struct LinearRows {
  enum { kLd = Chunk + 8, kPieces = Chunk / 8 };
  // `from` holds the row numbers of x (-1: none), `inverse` the norm's factor of each row.
  static FN void load(CONSTANT const LinearParams& p, DEVICE const uchar* x, TGROUP const int* from,
                      TGROUP const float* inverse, DEVICE const float* norm, TGROUP T* into, int chunk, int t,
                      int threads) {
    for (int i = t; i < Rows * kPieces; i += threads) {
      const int r = i / kPieces, k = chunk * Chunk + (i % kPieces) * 8;
      if (from[r] < 0) continue;
      TGROUP T* piece = into + r * kLd + (i % kPieces) * 8;
      const i64 at = (i64)from[r] * p.x_stride + k;
      if (p.normed != 0) {
        for (int j = 0; j < 8; j++) {
          const float v = k + j < p.weight.k ? (((DEVICE const float*)x)[at + j] * inverse[r]) * norm[k + j] : 0.0f;
          piece[j] = to<T>(v);
        }
      } else if (p.aligned != 0 && k + 8 <= p.weight.k) {
        copy16_async(piece, (DEVICE const T*)x + at);
      } else {
        for (int j = 0; j < 8; j++) piece[j] = k + j < p.weight.k ? ((DEVICE const T*)x)[at + j] : to<T>(0.0f);
      }
    }
  }
};

// Finds a threadgroup's rows of x and out: `Rows` of them, counted from row `first`, or from entry `first` of the
// order.
template <int Rows>
FN void linear_find_rows(CONSTANT const LinearParams& p, int first, uint tid, bool grouped, DEVICE const int* order,
                         TGROUP int* from, TGROUP int* to) {
  if ((int)tid >= Rows) return;
  const int at = first + (int)tid;
  if (grouped) {
    const int pair = order[at];
    from[tid] = pair < 0 ? -1 : pair / p.choices;
    to[tid] = pair;
  } else {
    from[tid] = to[tid] = at < p.m ? at : -1;
  }
}

// Computes the norm's factors of 16 rows of x, with all simdgroups.
FN void linear_norms(CONSTANT const LinearParams& p, DEVICE const uchar* x, TGROUP const int* from,
                     TGROUP float* inverse, Ctx c, int simdgroups) {
  for (int r = (int)c.sg; r < 16; r += simdgroups) {
    if (from[r] < 0) continue;
    const float sum = norm_sum_of_squares((DEVICE const float*)x + (i64)from[r] * p.x_stride, p.weight.k, c.lane);
    if (c.lane == 0) inverse[r] = norm_inverse(sum, p.weight.k, p.eps);
  }
  TG_BARRIER();
}

// ---- few rows: 16 rows of x, one tile of W per simdgroup ----

// Grid: (tiles of W / simdgroups, rows / 16). Threads: 32 * p.simdgroups, of which there are at most Simdgroups.
template <typename T, typename W, int Simdgroups = 4, int Stages = W::kFewStages>
struct LinearFewBody {
  enum { kThreads = 32 * Simdgroups, kChunk = W::kChunk, kStages = Stages, kLd = kChunk + 8 };
  typedef LinearRows<T, 16, kChunk> X;
  struct Smem {
    T x[kStages][16 * kLd];
    T w[kStages][Simdgroups][16 * kLd];
    int from[16], to[16];
    float inverse[16];
  };
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const float* norm,
                     DEVICE const float* residual, bool grouped, DEVICE const int* order) {
    const int tile = (int)c.tgx * p.simdgroups + (int)c.sg, threads = 32 * p.simdgroups;
    const int chunks = (p.weight.k + kChunk - 1) / kChunk;
    typename W::Held held;
    W::template begin<16>(p, w, held, tile, (int)c.lane);
    for (int s = 0; s < kStages - 1 && s < chunks; s++) {
      W::template load<16, kLd>(p, w, held, sm.w[s][c.sg], s, (int)c.lane);
    }
    if (!grouped) GRID_WAIT();
    linear_find_rows<16>(p, (int)c.tgy * 16, c.tid, grouped, order, sm.from, sm.to);
    TG_BARRIER();
    if (p.normed != 0) linear_norms(p, x, sm.from, sm.inverse, c, p.simdgroups);
    for (int s = 0; s < kStages - 1; s++) {
      if (s < chunks) X::load(p, x, sm.from, sm.inverse, norm, sm.x[s], s, (int)c.tid, threads);
      copy_commit();
    }
    Acc16 acc;
    acc_zero(acc);
    for (int chunk = 0; chunk < chunks; chunk++) {
      copy_wait<kStages - 2>();
      TG_BARRIER();
      const int next = chunk + kStages - 1;
      if (next < chunks) {
        X::load(p, x, sm.from, sm.inverse, norm, sm.x[next % kStages], next, (int)c.tid, threads);
        W::template load<16, kLd>(p, w, held, sm.w[next % kStages][c.sg], next, (int)c.lane);
      }
      copy_commit();
      UNROLL for (int k = 0; k < kChunk; k += 16) {
        if (chunk * kChunk + k < p.weight.k) {
          FragA<T> a;
          FragB<T> b;
          frag_load_a(a, sm.x[chunk % kStages] + k, kLd, c.lane);
          frag_load_b_trans(b, sm.w[chunk % kStages][c.sg] + k, kLd, c.lane);
          acc_mma(acc, a, b);
        }
      }
    }
    // Only this simdgroup reads and writes its part of w, so a simdgroup barrier is enough.
    SG_BARRIER();
    TGROUP float* sums = (TGROUP float*)sm.w[0][c.sg];
    linear_stage_sums(acc, sums, c.lane);
    SG_BARRIER();
    linear_store_tiles<T>(p, sums, 1, sm.to, tile, c.lane, out, bias, residual);
  }
};

// ---- few rows and a weight of any type: one tile, unpacked by four simdgroups and multiplied by a fifth ----

// Unpacking takes longer than multiplying, and a chain cannot be divided. So four simdgroups unpack 128 k together, one
// chunk ahead of simdgroup 0, which runs the chain; codes are fetched four chunks ahead. Grid: (tiles of W, rows / 16).
// Threads: 160.
template <typename T>
struct LinearAnyFewBody {
  enum { kThreads = kLinearAnyThreads, kChunk = 128, kLd = kChunk + 8, kAhead = 4 };
  typedef LinearRows<T, 16, kChunk> X;
  struct Smem {
    T x[2][16 * kLd];
    T w[2][16 * kLd];
    int from[16], to[16];
    float inverse[16];
  };
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const float* norm,
                     DEVICE const float* residual, bool grouped, DEVICE const int* order) {
    const int tile = (int)c.tgx, chunks = (p.weight.k + kChunk - 1) / kChunk;
    const bool unpacks = c.sg > 0;
    const int t = (int)c.tid - 32, r = t & 15, step = t >> 4, n = linear_row(p, tile, r);
    WeightRaw raw[kAhead];
    if (unpacks) {
      UNROLL for (int j = 0; j < kAhead; j++) weight_begin(p.weight, w, n, j * (kChunk / 16) + step, raw[j]);
    }
    if (!grouped) GRID_WAIT();
    linear_find_rows<16>(p, (int)c.tgy * 16, c.tid, grouped, order, sm.from, sm.to);
    TG_BARRIER();
    if (p.normed != 0) linear_norms(p, x, sm.from, sm.inverse, c, kThreads / 32);
    Acc16 acc;
    acc_zero(acc);
    // Round -1 multiplies nothing; it only loads the first chunk.
    for (int first = -1; first < chunks; first += kAhead) {
      UNROLL for (int j = 0; j < kAhead; j++) {
        const int chunk = first + j, next = chunk + 1;
        if (chunk < chunks) {
          copy_wait<0>();
          TG_BARRIER();
          if (next < chunks) {
            X::load(p, x, sm.from, sm.inverse, norm, sm.x[next & 1], next, (int)c.tid, kThreads);
            copy_commit();
            if (unpacks) {
              const int at = next * (kChunk / 16) + step;
              float v[16];
              weight_finish(p.weight, w, n, at, raw[j], v);
              linear_pack16(sm.w[next & 1] + r * kLd + step * 16, v);
              weight_begin(p.weight, w, n, at + kAhead * (kChunk / 16), raw[j]);
            }
          }
          if (!unpacks && chunk >= 0) {
            for (int k = 0; k < kChunk && chunk * kChunk + k < p.weight.k; k += 16) {
              FragA<T> a;
              FragB<T> b;
              frag_load_a(a, sm.x[chunk & 1] + k, kLd, c.lane);
              frag_load_b_trans(b, sm.w[chunk & 1] + k, kLd, c.lane);
              acc_mma(acc, a, b);
            }
          }
        }
      }
    }
    if (unpacks) return;
    SG_BARRIER();
    TGROUP float* sums = (TGROUP float*)sm.w[0];
    linear_stage_sums(acc, sums, c.lane);
    SG_BARRIER();
    linear_store_tiles<T>(p, sums, 1, sm.to, tile, c.lane, out, bias, residual);
  }
};

// ---- many rows: 64 rows of x and four tiles of W, a quarter per simdgroup ----

// Grid: (tiles of W / 4, rows / 64). Threads: 128.
template <typename T, typename W>
struct LinearManyBody {
  enum { kThreads = kLinearThreads, kChunk = W::kChunk, kStages = W::kManyStages, kLd = kChunk + 8 };
  typedef LinearRows<T, 64, kChunk> X;
  struct Smem {
    T tiles[kStages][2][64 * kLd];  // x and W; at the end the sums
    int from[64], to[64];
  };
  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const float* residual, bool grouped,
                     DEVICE const int* order) {
    const int tile = (int)c.tgx * 4, chunks = (p.weight.k + kChunk - 1) / kChunk;
    typename W::Held held;
    W::template begin<64>(p, w, held, tile, (int)c.tid);
    for (int s = 0; s < kStages - 1 && s < chunks; s++)
      W::template load<64, kLd>(p, w, held, sm.tiles[s][1], s, (int)c.tid);
    if (!grouped) GRID_WAIT();
    linear_find_rows<64>(p, (int)c.tgy * 64, c.tid, grouped, order, sm.from, sm.to);
    TG_BARRIER();
    for (int s = 0; s < kStages - 1; s++) {
      if (s < chunks)
        X::load(p, x, sm.from, (TGROUP const float*)sm.from, bias, sm.tiles[s][0], s, (int)c.tid, kThreads);
      copy_commit();
    }
    const int row = (int)(c.sg >> 1) * 32, column = (int)(c.sg & 1) * 32;
    // Rows are filled from the front: if the first row of a tile is absent, all of its rows are.
    const bool top = sm.from[row] >= 0, bottom = sm.from[row + 16] >= 0;
    Acc16 acc[2][2];
    UNROLL for (int i = 0; i < 4; i++) acc_zero(acc[i >> 1][i & 1]);
    for (int chunk = 0; chunk < chunks; chunk++) {
      copy_wait<kStages - 2>();
      TG_BARRIER();
      const int next = chunk + kStages - 1;
      if (next < chunks) {
        X::load(p, x, sm.from, (TGROUP const float*)sm.from, bias, sm.tiles[next % kStages][0], next, (int)c.tid,
                kThreads);
        W::template load<64, kLd>(p, w, held, sm.tiles[next % kStages][1], next, (int)c.tid);
      }
      copy_commit();
      TGROUP const T* xs = sm.tiles[chunk % kStages][0] + row * kLd;
      TGROUP const T* ws = sm.tiles[chunk % kStages][1] + column * kLd;
      UNROLL for (int k = 0; k < kChunk; k += 16) {
        if (chunk * kChunk + k < p.weight.k && top) {
          FragA<T> a;
          FragB<T> left, right;
          frag_load_b_trans(left, ws + k, kLd, c.lane);
          frag_load_b_trans(right, ws + 16 * kLd + k, kLd, c.lane);
          frag_load_a(a, xs + k, kLd, c.lane);
          acc_mma(acc[0][0], a, left);
          acc_mma(acc[0][1], a, right);
          if (bottom) {
            frag_load_a(a, xs + 16 * kLd + k, kLd, c.lane);
            acc_mma(acc[1][0], a, left);
            acc_mma(acc[1][1], a, right);
          }
        }
      }
    }
    TG_BARRIER();
    TGROUP float* sums = (TGROUP float*)sm.tiles[0][0] + c.sg * (4 * kLinearSumTile);
    UNROLL for (int i = 0; i < 4; i++) linear_stage_sums(acc[i >> 1][i & 1], sums + i * kLinearSumTile, c.lane);
    SG_BARRIER();
    linear_store_tiles<T>(p, sums, 4, sm.to + row, tile + column / 16, c.lane, out, bias, residual);
  }
};
