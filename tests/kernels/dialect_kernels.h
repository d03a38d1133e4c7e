// SPDX-License-Identifier: Apache-2.0
// Kernels that use everything in the dialect once: the same text goes through the host's, Metal's and CUDA's branch.
#pragma once

#include "kernels/compat/async_copy.h"
#include "kernels/compat/dialect.h"
#include "kernels/compat/float_math.h"
#include "kernels/compat/tile.h"
#include "tests/kernels/dialect_params.h"

// out[tid][8]: simd operations on in[tid].
struct SimdOps {
  enum { kThreads = 64 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const DialectParams& p, TGROUP Smem& sm, DEVICE float* out,
                     DEVICE const float* in) {
    const float v = in[c.tid];
    DEVICE float* to = out + c.tid * 8;
    to[0] = simd_sum(v);
    to[1] = simd_max(v);
    to[2] = simd_min(v);
    to[3] = simd_shuffle(v, (c.lane * 7 + 3) % 32);
    to[4] = simd_shuffle_xor(v, 5);
    to[5] = (float)simd_sum((int)c.tid) + (float)simd_max(c.tid) + (float)simd_min((int)c.tid);
    to[6] = simd_any(v > 2.0f) ? 1.0f : 0.0f;
    SG_BARRIER();
    to[7] = simd_all(v > -2.0f) ? 1.0f : 0.0f;
  }
};
KERNEL(simd_ops, SimdOps, DialectParams, float, const float)

// Each thread reads what its opposite wrote.
struct Opposite {
  enum { kThreads = 128 };
  struct Smem {
    float values[128];
  };
  static FN void run(Ctx c, CONSTANT const DialectParams& p, TGROUP Smem& sm, DEVICE float* out) {
    sm.values[c.tid] = (float)(c.tid + c.tgx * 1000 + c.tgy * 10000 + c.tgz * 100000);
    TG_BARRIER();
    const uint group = c.tgx + (uint)p.n * (c.tgy + (uint)p.n * c.tgz);
    out[group * (uint)p.threads + c.tid] = sm.values[(uint)p.threads - 1 - c.tid];
  }
};
KERNEL(opposite, Opposite, DialectParams, float)

// Copies two groups of 16 bytes a thread and hands them to the opposite thread.
struct AsyncCopy {
  enum { kThreads = 32 };
  struct Smem {
    uint4 words[2][32];
  };
  static FN void run(Ctx c, CONSTANT const DialectParams& p, TGROUP Smem& sm, DEVICE uint4* out,
                     DEVICE const uint4* in) {
    copy16_async(&sm.words[0][c.tid], in + c.tid);
    copy_commit();
    copy16_async(&sm.words[1][c.tid], in + 32 + c.tid);
    copy_commit();
    copy_wait<1>();
    TG_BARRIER();
    out[c.tid] = sm.words[0][31 - c.tid];
    copy_wait<0>();
    TG_BARRIER();
    out[32 + c.tid] = sm.words[1][31 - c.tid];
  }
};
KERNEL(async_copy, AsyncCopy, DialectParams, uint4, const uint4)

// out[i][12]: the functions of float_math.h, and what the language has, at in[i].
struct Values {
  enum { kThreads = 64 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const DialectParams& p, TGROUP Smem& sm, DEVICE float* out,
                     DEVICE const float* in) {
    for (int i = (int)c.tid; i < p.n; i += p.threads) {
      const float x = in[i];
      DEVICE float* to = out + (i64)i * 12;
      to[0] = q_exp(x);
      to[1] = q_exp2(-abs(x));
      to[2] = q_sigmoid(x);
      to[3] = q_silu(x);
      to[4] = q_softplus(x);
      to[5] = q_log(abs(x));
      to[6] = q_log1p(abs(x));
      to[7] = q_tanh(x);
      to[8] = q_erf(x);
      to[9] = fma(x, x, floor(x)) + rint(x);
      to[10] = sqrt(abs(x)) / (1.0f + max(x, 0.0f) - min(x, 0.0f));
      to[11] = as_float(as_uint(x) ^ 0x80000000u) + (float)(as_int(x) >> 23) + (float)max((int)c.sg, min(i, 3));
    }
  }
};
KERNEL(values, Values, DialectParams, float, const float)

// out[i] = in[i] through T and back, and through its bits.
template <typename T>
struct Convert {
  enum { kThreads = 64 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const DialectParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE float* back,
                     DEVICE const float* in) {
    for (int i = (int)c.tid; i < p.n; i += p.threads) {
      out[i] = to<T>(in[i]);
      back[i] = to_f(from_bits16<T>((ushort)(to_bits16(out[i]) ^ 0x8000)));
    }
  }
};
KERNEL(convert_f16, Convert<half>, DialectParams, half, float, const float)
KERNEL(convert_bf16, Convert<bfloat>, DialectParams, bfloat, float, const float)

// out[0..255] = a[16, 32] b, b as [k][n] or, with kTrans, as [n][k]; then the rows' maxima and sums; then ones plus the
// product of the first result, rounded to T, with the last 16 of b.
template <typename T, int kTrans>
struct Tile {
  enum { kThreads = 32, kLd = 40, kLdB = kTrans ? 40 : 24 };
  struct Smem {
    T a[16 * 40];
    T b[32 * 40];
  };
  static FN void fill(Ctx c, TGROUP Smem& sm, DEVICE const T* a, DEVICE const T* b) {
    for (uint i = c.lane; i < 16 * 32; i += 32) {
      sm.a[i / 32 * kLd + i % 32] = a[i];
      if (kTrans) {
        sm.b[i / 32 * kLdB + i % 32] = b[i];
      } else {
        sm.b[i / 16 * kLdB + i % 16] = b[i];
      }
    }
    TG_BARRIER();
  }
  static FN void put(THREAD const Acc16& acc, DEVICE float* out, uint lane) {
    UNROLL for (int i = 0; i < 8; i++) out[acc_row(i, lane) * 16 + acc_col(i, lane)] = acc_get(acc, i);
  }
  static FN void run(Ctx c, CONSTANT const DialectParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const T* a,
                     DEVICE const T* b) {
    fill(c, sm, a, b);
    Acc16 acc;
    acc_zero(acc);
    FragA<T> left;
    FragB<T> right;
    for (int k = 0; k < 32; k += 16) {
      frag_load_a(left, sm.a + k, kLd, c.lane);
      if (kTrans) {
        frag_load_b_trans(right, sm.b + k, kLdB, c.lane);
      } else {
        frag_load_b(right, sm.b + k * kLdB, kLdB, c.lane);
      }
      acc_mma(acc, left, right);
    }
    put(acc, out, c.lane);
    float most[2] = {-1e30f, -1e30f}, sum[2] = {0.0f, 0.0f};
    UNROLL for (int i = 0; i < 8; i++) {
      most[i >> 2] = max(most[i >> 2], acc_get(acc, i));
      sum[i >> 2] += acc_get(acc, i);
    }
    UNROLL for (int i = 0; i < 2; i++) {
      out[256 + acc_row(i * 4, c.lane)] = row_max(most[i]);
      out[272 + acc_row(i * 4, c.lane)] = row_sum(sum[i]);
    }
    frag_from_acc(left, acc);
    UNROLL for (int i = 0; i < 8; i++) acc_set(acc, i, 1.0f);
    acc_mma(acc, left, right);
    put(acc, out + 288, c.lane);
  }
};
typedef Tile<half, 0> Tile_f16;
typedef Tile<half, 1> Tile_f16_trans;
typedef Tile<bfloat, 0> Tile_bf16;
typedef Tile<bfloat, 1> Tile_bf16_trans;
KERNEL(tile_f16, Tile_f16, DialectParams, float, const half, const half)
KERNEL(tile_f16_trans, Tile_f16_trans, DialectParams, float, const half, const half)
KERNEL(tile_bf16, Tile_bf16, DialectParams, float, const bfloat, const bfloat)
KERNEL_EARLY(tile_bf16_trans, Tile_bf16_trans, DialectParams, float, const bfloat, const bfloat)
