// SPDX-License-Identifier: Apache-2.0
// The chain of products of a warp over chunks of 128 k: 16 rows of W times 8 MT rows of x, both in shared memory
// (sm_90a).
//
// Each step (one mma) takes 24 cycles and depends on the one before, and a warp issues in order. So the fragments for
// four steps later are loaded during that latency. No kernels here.
#pragma once

#include "kernels/cuda/hopper.cuh"

// hopper_mma as volatile assembly, so that the compiler keeps its place among the loads.
HOPPER_FN void hopper_chain_mma(float* d, const uint* a, uint b0, uint b1, bfloat) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
HOPPER_FN void hopper_chain_mma(float* d, const uint* a, uint b0, uint b1, half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// `Ahead`: the residual is loaded when a tile begins, which costs registers.
template <typename T, int MT, bool Ahead>
struct HopperChain {
  enum { kRow = 128 * 2 + 16 };  // bytes of a row of W in a chunk; the padding of 16 spreads eight rows over all banks

  struct Window {  // fragments of four steps: those of step i are w[i % 4] and x[...][i / 2 % 2]
    uint w[4][4];
    uint x[MT][2][4];
  };
  struct Sums {
    float acc[MT][4];
    float before[Ahead ? MT : 1][4];  // the residual
  };

  HOPPER_FN void fetch_w(Window& f, int step, uint w, int at) { hopper_ldmatrix(f.w[step & 3], w + at * 32); }
  HOPPER_FN void fetch_x(Window& f, int step, const uint (&x)[MT], int at) {
    UNROLL for (int j = 0; j < MT; j++) hopper_ldmatrix(f.x[j][(step >> 1) & 1], x[j] + (at >> 1) * 64);
  }
  HOPPER_FN void multiply(Sums& sums, const Window& f, int step) {
    UNROLL for (int j = 0; j < MT; j++) {
      const uint* x = f.x[j][(step >> 1) & 1] + (step & 1) * 2;
      hopper_chain_mma(sums.acc[j], f.w[step & 3], x[0], x[1], T());
    }
  }
  HOPPER_FN void first_four(Window& f, uint w, const uint (&x)[MT]) {
    UNROLL for (int i = 0; i < 4; i++) {
      fetch_w(f, i, w, i);
      if (i % 2 == 0) fetch_x(f, i, x, i);
    }
  }
  // The first four steps of a chunk, while the window moves on to the second four. The last chunk of K may have fewer
  // `steps`. That the products are conditional also keeps the sums in their registers, so that a fetch waits only for
  // its window.
  HOPPER_FN void first_half(Sums& sums, Window& f, int steps, uint w, const uint (&x)[MT]) {
    UNROLL for (int i = 0; i < 4; i++) {
      if (i < steps) multiply(sums, f, i);
      fetch_w(f, i, w, i + 4);
      if (i % 2 == 1) fetch_x(f, i, x, i + 3);
    }
  }
  // The second four steps, while the window moves on to the first four of the next chunk, if there is one.
  HOPPER_FN void second_half(Sums& sums, Window& f, int steps, bool more, uint next_w, const uint (&next_x)[MT]) {
    UNROLL for (int i = 4; i < 8; i++) {
      if (i < steps) multiply(sums, f, i);
      if (more) {
        fetch_w(f, i, next_w, i - 4);
        if (i % 2 == 1) fetch_x(f, i, next_x, i - 5);
      }
    }
  }

  // Starts a tile of 16 rows of W, for the rows of x from m0 on.
  HOPPER_FN void begin(const HopperLinearParams& p, Sums& sums, int tile, int m0, const float* residual, int lane) {
    UNROLL for (int j = 0; j < MT; j++) {
      UNROLL for (int i = 0; i < 4; i++) sums.acc[j][i] = 0.0f;
      if (Ahead) hopper_linear_before(p, sums.before[j], tile, lane >> 2, m0 + 8 * j + (lane & 3) * 2, residual);
    }
  }
  HOPPER_FN void finish(const HopperLinearParams& p, Sums& sums, int tile, int m0, void* out, const float* bias,
                        const float* residual, int lane) {
    UNROLL for (int j = 0; j < MT; j++) {
      const int g = lane >> 2, m = m0 + 8 * j + (lane & 3) * 2;
      float* before = sums.before[Ahead ? j : 0];
      if (!Ahead) hopper_linear_before(p, before, tile, g, m, residual);
      hopper_linear_finish<T>(p, sums.acc[j], before, tile, g, m, out, bias);
    }
  }
};
