// SPDX-License-Identifier: Apache-2.0
// Norms of few rows between two products (sm_90a): rms_norm of the residual stream, or add_norm. Equal by memcmp to
// kernels/norm.h.
//
// A row has one thread for every four (or eight) elements, so that all of it is loaded at once, by little code, and at
// most two rows find room on a multiprocessor. With fewer threads per row the multiprocessors that the product before
// has left idle take eight rows each, one after the other. Weights are loaded before that product ends.
//
// Grid: (rows), hopper_norm_threads(), a row of floats as dynamic memory. REQUIRES: columns are a multiple of four, at
// most kHopperNormRow; everything on 16-byte boundaries (T: eight).
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/load4.h"
#include "kernels/norm_sum.h"
#include "kernels/params/norm.h"

template <typename T>
struct HopperNormRow {
  struct Smem {
    float chains[kNormThreads];
  };

  // 1 / rms of the row whose elements 4 * (tid + i * threads) are in v[i].
  template <int kHeld>
  HOPPER_FN float inverse(Smem& sm, float4* row, const float4 (&v)[kHeld], int columns, float eps) {
    const int tid = (int)threadIdx.x, threads = (int)blockDim.x;
    UNROLL for (int i = 0; i < kHeld; i++) {
      if (tid + i * threads < columns / 4) row[tid + i * threads] = v[i];
    }
    __syncthreads();
    if (tid < kNormThreads) {
      const float* at = (const float*)row;
      float chain = 0.0f;
#pragma unroll 4
      for (int j = tid; j < columns; j += kNormThreads) chain = fma(at[j], at[j], chain);
      sm.chains[tid] = chain;
    }
    __syncthreads();
    const float* l = sm.chains + (tid & 31);
    return norm_inverse(simd_sum(norm_fold(l[0], l[32], l[64], l[96], l[128], l[160], l[192], l[224])), columns, eps);
  }
  HOPPER_FN float4 normed(float4 v, float by, float4 w) {
    return make_float4((v.x * by) * w.x, (v.y * by) * w.y, (v.z * by) * w.z, (v.w * by) * w.w);
  }

  template <int kHeld>
  HOPPER_FN void run(const HopperNormParams& p, float* residual, T* out, const T* x, const float* post_weight,
                     const float* weight) {
    extern __shared__ __align__(16) float4 row[];
    __shared__ Smem sm;
    const int tid = (int)threadIdx.x, threads = (int)blockDim.x, fours = p.row.columns / 4;
    x += blockIdx.x * p.row.x_stride;
    residual += blockIdx.x * p.row.residual_stride;
    out += blockIdx.x * p.row.out_stride;
    float4 sum[kHeld], post[kHeld], w[kHeld];
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int at = tid + i * threads;
      sum[i] = post[i] = w[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (at < fours && p.row.normed_x != 0) post[i] = load4(post_weight + 4 * at);
      if (at < fours && p.row.normed_sum != 0) w[i] = load4(weight + 4 * at);
    }
    ptx_grid_wait();
    UNROLL for (int i = 0; i < kHeld; i++) {
      if (tid + i * threads < fours) sum[i] = load4(residual + 4 * (tid + i * threads));
    }
    if (p.added != 0) {
      float4 held[kHeld];
      UNROLL for (int i = 0; i < kHeld; i++) {
        held[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (tid + i * threads < fours) held[i] = load4(x + 4 * (tid + i * threads));
      }
      if (p.row.normed_x != 0) {
        const float by = inverse<kHeld>(sm, row, held, p.row.columns, p.row.eps);
        UNROLL for (int i = 0; i < kHeld; i++) {
          const float4 v = normed(held[i], by, post[i]);
          held[i] = hopper_four(make_uint2(hopper_pack<T>(v.x, v.y), hopper_pack<T>(v.z, v.w)), T());
        }
      }
      UNROLL for (int i = 0; i < kHeld; i++) {
        const float4 v = held[i], r = sum[i];
        sum[i] = make_float4(fma(v.x, p.row.scale, r.x), fma(v.y, p.row.scale, r.y), fma(v.z, p.row.scale, r.z),
                             fma(v.w, p.row.scale, r.w));
        if (tid + i * threads < fours) store4(residual + 4 * (tid + i * threads), sum[i]);
      }
      if (p.row.normed_sum == 0) return;
    }
    const float by = inverse<kHeld>(sm, row, sum, p.row.columns, p.row.eps);
    UNROLL for (int i = 0; i < kHeld; i++) {
      if (tid + i * threads < fours) store4(out + 4 * (tid + i * threads), normed(sum[i], by, w[i]));
    }
  }
};

#define HOPPER_NORM_ROW(types, T)                                                                              \
  extern "C" __global__ void __launch_bounds__(kHopperNormThreads, 1)                                          \
      hopper_norm_row_##types(const __grid_constant__ HopperNormParams p, float* residual, T* out, const T* x, \
                              const float* post_weight, const float* weight) {                                 \
    ptx_grid_release();                                                                                        \
    if (p.row.columns <= 4 * kHopperNormThreads) {                                                             \
      HopperNormRow<T>::template run<1>(p, residual, out, x, post_weight, weight);                             \
    } else {                                                                                                   \
      HopperNormRow<T>::template run<2>(p, residual, out, x, post_weight, weight);                             \
    }                                                                                                          \
  }
HOPPER_NORM_ROW(bf16, bfloat)
HOPPER_NORM_ROW(f16, half)
