// SPDX-License-Identifier: Apache-2.0
// The body of linear for float activations and weights of every type: a chain of fma over ascending k. No kernels here.
#pragma once

#include "kernels/linear_mma.h"

// A threadgroup computes 16 rows of x by 32 columns of out (gated: 32 of gate and the matching 32 of up), 32 k at a
// time; a thread has one column and four rows. Grid: (columns / 32, rows / 16). Threads: 128.
struct LinearFloatBody {
  enum { kThreads = kLinearThreads, kLd = 33 };
  struct Smem {
    float x[16 * kLd];
    float w[2][32 * kLd];
    int from[16], to[16];
    float inverse[16];
  };

  static FN void load_x(CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE const float* x,
                        DEVICE const float* norm, int k, int t) {
    for (int i = t; i < 16 * 32; i += kThreads) {
      const int r = i >> 5, at = k + (i & 31);
      float v = 0.0f;
      if (sm.from[r] >= 0 && at < p.weight.k) {
        v = x[(i64)sm.from[r] * p.x_stride + at];
        if (p.normed != 0) v = (v * sm.inverse[r]) * norm[at];
      }
      sm.x[r * kLd + (i & 31)] = v;
    }
  }

  static FN void load_w(CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE const uchar* w, int column, int k,
                        int t) {
    const int r = t & 31, half_step = (t >> 5) & 1, part = t >> 6;
    if (part != 0 && p.last.epilogue != kLinearGated) return;
    const int n = min(column + r, p.last.columns - 1) + part * p.last.columns;
    float v[16];
    weight_load16(p.weight, w, n, k / 16 + half_step, v);
    UNROLL for (int i = 0; i < 16; i++) sm.w[part][r * kLd + half_step * 16 + i] = v[i];
  }

  static FN void run(Ctx c, CONSTANT const LinearParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const uchar* w, DEVICE const float* bias, DEVICE const float* norm,
                     DEVICE const float* residual, bool grouped, DEVICE const int* order) {
    if (!grouped) GRID_WAIT();
    linear_find_rows<16>(p, (int)c.tgy * 16, c.tid, grouped, order, sm.from, sm.to);
    TG_BARRIER();
    DEVICE const float* rows = (DEVICE const float*)x;
    if (p.normed != 0) {
      for (int r = (int)c.sg; r < 16; r += kThreads / 32) {
        if (sm.from[r] < 0) continue;
        const float sum = norm_sum_of_squares(rows + (i64)sm.from[r] * p.x_stride, p.weight.k, c.lane);
        if (c.lane == 0) sm.inverse[r] = norm_inverse(sum, p.weight.k, p.eps);
      }
    }
    const int column = (int)c.tgx * 32, mine = column + (int)c.lane;
    const bool gated = p.last.epilogue == kLinearGated;
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f}, up[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int k = 0; k < p.weight.k; k += 32) {
      TG_BARRIER();
      load_x(p, sm, rows, norm, k, (int)c.tid);
      load_w(p, sm, w, column, k, (int)c.tid);
      TG_BARRIER();
      const int count = min(32, p.weight.k - k);
      for (int i = 0; i < 4; i++) {
        const int r = (int)c.sg + 4 * i;
        if (sm.from[r] < 0) continue;
        for (int j = 0; j < count; j++) acc[i] = fma(sm.x[r * kLd + j], sm.w[0][c.lane * kLd + j], acc[i]);
        for (int j = 0; gated && j < count; j++) up[i] = fma(sm.x[r * kLd + j], sm.w[1][c.lane * kLd + j], up[i]);
      }
    }
    if (mine >= p.last.columns) return;
    for (int i = 0; i < 4; i++) {
      const int row = sm.to[c.sg + 4 * i];
      if (row < 0) continue;
      if (gated) {
        linear_store_gated<float>(p.last, out, row, mine, acc[i], up[i], bias);
      } else {
        linear_store<float>(p.last, out, row, mine, acc[i], bias, residual);
      }
    }
  }
};
