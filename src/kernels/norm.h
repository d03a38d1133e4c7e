// SPDX-License-Identifier: Apache-2.0
// rms_norm, layer_norm, gated_rms_norm and add_norm; the contract is in ops/norm.h, but the order of sums is that of
// norm_sum.h.
//
// A group of at most kNormNarrow columns is computed by one simdgroup, a larger one by a threadgroup, with the same
// bits. x and out may be the same: after the sums, a thread writes only elements that it has read itself.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/compat/float_math.h"
#include "kernels/load4.h"
#include "kernels/norm_sum.h"
#include "kernels/params/norm.h"

// The group that this thread works on (wide: together with all threads, otherwise with its simdgroup), and its
// elements.
struct NormPlace {
  i64 x, gate, out;  // offsets of the group's first element
  int weight;        // offset of the group's weights
  int first, step;   // the thread's elements are first, first + step, ...
};

FN bool norm_place(Ctx c, CONSTANT const NormParams& p, THREAD NormPlace& at) {
  const uint index = p.wide != 0 ? c.tgx : c.tgx * (uint)(kNormThreads / 32) + c.sg;  // the host checks that it fits
  const i64 row = (i64)(index / (uint)p.groups);
  if (row >= p.rows) return false;
  const int column = (int)(index % (uint)p.groups) * p.group;
  at.x = row * p.x_stride + column;
  at.gate = row * p.gate_stride + column;
  at.out = row * p.out_stride + column;
  at.weight = p.weight_size == p.group ? 0 : column;
  at.first = (int)(p.wide != 0 ? c.tid : c.lane);
  at.step = p.wide != 0 ? kNormThreads : 32;
  return true;
}

struct NormSmem {
  float chains[kNormThreads];
};

// Adds up the group's sum. Wide: from each thread's `chain`; otherwise from eight `terms` per lane, one per chain.
FN float norm_add_up(Ctx c, CONSTANT const NormParams& p, TGROUP NormSmem& sm, THREAD const float* terms, float chain) {
  if (p.wide != 0) return norm_sum_of_chains(sm.chains, chain, c);
  return simd_sum(norm_fold(terms[0], terms[1], terms[2], terms[3], terms[4], terms[5], terms[6], terms[7]));
}

// Elements that a thread keeps in registers, so that wide groups of up to kNormRow columns are read once.
enum { kNormHeld = kNormRow / kNormThreads };

// A small kernel between two products takes about as long as its instructions take to arrive, because the weights of
// the products have driven them out of the caches. So the usual case, a row in vectors of four, has short code of its
// own: the row goes through threadgroup memory, where each thread finds the elements of its chain.
struct NormRowSmem {
  NormSmem sums;
  float4 row[kNormRow / 4];
};

template <typename X, typename T>
struct RmsNorm {
  enum { kThreads = kNormThreads };
  typedef NormRowSmem Smem;

  static FN void whole_row(Ctx c, CONSTANT const NormParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const X* x,
                           DEVICE const float* weight) {
    x += c.tgx * p.x_stride;
    out += c.tgx * p.out_stride;
    const int fours = p.group / 4;
    float4 held[kNormHeld / 4], weights[kNormHeld / 4];
    UNROLL for (int i = 0; i < kNormHeld / 4; i++) {
      const int at = (int)c.tid + i * kThreads;
      if (at < fours) {
        held[i] = load4(x + 4 * at);
        weights[i] = load4(weight + 4 * at);
        sm.row[at] = held[i];
      }
    }
    TG_BARRIER();
    TGROUP const float* row = (TGROUP const float*)sm.row;
    float chain = 0.0f;
    for (int j = (int)c.tid; j < p.group; j += kThreads) chain = fma(row[j], row[j], chain);
    const float inverse = norm_inverse(norm_sum_of_chains(sm.sums.chains, chain, c), p.group, p.eps);
    UNROLL for (int i = 0; i < kNormHeld / 4; i++) {
      const int at = (int)c.tid + i * kThreads;
      const float4 v = held[i], w = weights[i];
      if (at < fours) {
        store4(out + 4 * at,
               make_float4((v.x * inverse) * w.x, (v.y * inverse) * w.y, (v.z * inverse) * w.z, (v.w * inverse) * w.w));
      }
    }
  }

  static FN void run(Ctx c, CONSTANT const NormParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const X* x,
                     DEVICE const float* weight) {
    if (p.fours != 0) {
      whole_row(c, p, sm, out, x, weight);
      return;
    }
    NormPlace at;
    if (!norm_place(c, p, at)) return;
    float held[kNormHeld], squares[kNormHeld];
    float chain = 0.0f;
    UNROLL for (int i = 0; i < kNormHeld; i++) {
      const int j = at.first + i * at.step;
      held[i] = j < p.group ? to_f(x[at.x + j]) : 0.0f;
    }
    UNROLL for (int i = 0; i < kNormHeld; i++) {
      squares[i] = held[i] * held[i];
      chain = fma(held[i], held[i], chain);
    }
    for (int j = at.first + kNormHeld * at.step; j < p.group; j += at.step) {
      const float v = to_f(x[at.x + j]);
      chain = fma(v, v, chain);
    }
    const float inverse = norm_inverse(norm_add_up(c, p, sm.sums, squares, chain), p.group, p.eps);
    UNROLL for (int i = 0; i < kNormHeld; i++) {
      const int j = at.first + i * at.step;
      if (j < p.group) out[at.out + j] = to<T>((held[i] * inverse) * weight[j]);
    }
    for (int j = at.first + kNormHeld * at.step; j < p.group; j += at.step) {
      out[at.out + j] = to<T>((to_f(x[at.x + j]) * inverse) * weight[j]);
    }
  }
};

// The chains of the mean add; those of the squares use fma.
template <typename X, typename T>
struct LayerNorm {
  enum { kThreads = kNormThreads };
  typedef NormSmem Smem;

  static FN float scaled(CONSTANT const NormParams& p, float normed, int j, DEVICE const float* weight,
                         DEVICE const float* bias) {
    return p.biased != 0 ? fma(normed, weight[j], bias[j]) : normed * weight[j];
  }

  static FN void run(Ctx c, CONSTANT const NormParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const X* x,
                     DEVICE const float* weight, DEVICE const float* bias) {
    NormPlace at;
    if (!norm_place(c, p, at)) return;
    float held[kNormHeld], squares[kNormHeld];
    float chain = 0.0f;
    UNROLL for (int i = 0; i < kNormHeld; i++) {
      const int j = at.first + i * at.step;
      held[i] = j < p.group ? to_f(x[at.x + j]) : 0.0f;
      chain += held[i];
    }
    const int rest = at.first + kNormHeld * at.step;
    for (int j = rest; j < p.group; j += at.step) chain += to_f(x[at.x + j]);
    const float mean = norm_add_up(c, p, sm, held, chain) / (float)p.group;

    chain = 0.0f;
    UNROLL for (int i = 0; i < kNormHeld; i++) {
      const float d = at.first + i * at.step < p.group ? held[i] - mean : 0.0f;
      squares[i] = d * d;
      chain = fma(d, d, chain);
    }
    for (int j = rest; j < p.group; j += at.step) {
      const float d = to_f(x[at.x + j]) - mean;
      chain = fma(d, d, chain);
    }
    const float inverse = norm_inverse(norm_add_up(c, p, sm, squares, chain), p.group, p.eps);
    UNROLL for (int i = 0; i < kNormHeld; i++) {
      const int j = at.first + i * at.step;
      if (j < p.group) out[at.out + j] = to<T>(scaled(p, (held[i] - mean) * inverse, j, weight, bias));
    }
    for (int j = rest; j < p.group; j += at.step) {
      out[at.out + j] = to<T>(scaled(p, (to_f(x[at.x + j]) - mean) * inverse, j, weight, bias));
    }
  }
};

// With gate_first the products x * silu(gate), as floats, are normalised. A thread that has more of them than it keeps
// computes the rest a second time.
template <typename T>
struct GatedRmsNorm {
  enum { kThreads = kNormThreads, kGatedHeld = 8 };
  struct Smem {
    NormSmem sums;
    float4 row[kNormRow / 4];
    T gates[sizeof(T) == 2 ? kNormRow : 4];
  };

  // As in RmsNorm, with the gate before the norm.
  static FN void whole_row(Ctx c, CONSTANT const NormParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* x,
                           DEVICE const T* gate, DEVICE const float* weight) {
    x += c.tgx * p.x_stride;
    gate += c.tgx * p.gate_stride;
    out += c.tgx * p.out_stride;
    float4 held[kNormHeld / 4], gates[kNormHeld / 4];
    float weights[kNormHeld];
    UNROLL for (int i = 0; i < kNormHeld / 4; i++) {
      const int at = 4 * ((int)c.tid + i * kThreads);
      if (at < p.group) {
        held[i] = load4(x + at);
        gates[i] = load4(gate + at);
      }
    }
    UNROLL for (int i = 0; i < kNormHeld; i++) {
      const int j = (int)c.tid + i * kThreads;
      if (j < p.group) weights[i] = weight[j];
    }
    UNROLL for (int i = 0; i < kNormHeld / 4; i++) {
      const int at = (int)c.tid + i * kThreads;
      if (4 * at < p.group) {
        sm.row[at] = held[i];
        sm.gates[4 * at] = to<T>(gates[i].x);
        sm.gates[4 * at + 1] = to<T>(gates[i].y);
        sm.gates[4 * at + 2] = to<T>(gates[i].z);
        sm.gates[4 * at + 3] = to<T>(gates[i].w);
      }
    }
    TG_BARRIER();
    TGROUP float* row = (TGROUP float*)sm.row;
    float chain = 0.0f;
    ROLLED for (int j = (int)c.tid; j < p.group; j += kThreads) {
      const float v = value(p, row[j], to_f(sm.gates[j]));
      row[j] = v;
      chain = fma(v, v, chain);
    }
    const float inverse = norm_inverse(norm_sum_of_chains(sm.sums.chains, chain, c), p.group, p.eps);
    UNROLL for (int i = 0; i < kNormHeld; i++) {
      const int j = (int)c.tid + i * kThreads;
      if (j < p.group) out[j] = to<T>((row[j] * inverse) * weights[i]);
    }
  }

  // A narrow group of at most 128 columns: the usual heads, in short code.
  static FN void head(CONSTANT const NormParams& p, THREAD const NormPlace& at, DEVICE T* out, DEVICE const T* x,
                      DEVICE const T* gate, DEVICE const float* weight) {
    float held[4], gates[4], weights[4];
    UNROLL for (int i = 0; i < 4; i++) {
      const int j = at.first + 32 * i;
      held[i] = j < p.group ? to_f(x[j]) : 0.0f;
      gates[i] = j < p.group ? to_f(gate[j]) : 0.0f;
      weights[i] = j < p.group ? weight[j] : 0.0f;
    }
    UNROLL for (int i = 0; i < 4; i++) {
      gates[i] = q_silu(gates[i]);
      if (p.gate_first != 0) held[i] *= gates[i];
    }
    const float sum =
        norm_fold(held[0] * held[0], held[1] * held[1], held[2] * held[2], held[3] * held[3], 0.0f, 0.0f, 0.0f, 0.0f);
    const float inverse = norm_inverse(simd_sum(sum), p.group, p.eps);
    UNROLL for (int i = 0; i < 4; i++) {
      const int j = at.first + 32 * i;
      const float normed = (held[i] * inverse) * weights[i];
      if (j < p.group) out[j] = to<T>(p.gate_first != 0 ? normed : normed * gates[i]);
    }
  }

  static FN float value(CONSTANT const NormParams& p, float x, float gate) {
    return p.gate_first != 0 ? x * q_silu(gate) : x;
  }
  static FN T result(CONSTANT const NormParams& p, float normed, float gate) {
    return to<T>(p.gate_first != 0 ? normed : normed * q_silu(gate));
  }

  static FN void run(Ctx c, CONSTANT const NormParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* x,
                     DEVICE const T* gate, DEVICE const float* weight) {
    if (sizeof(T) == 2 && p.fours != 0) {
      whole_row(c, p, sm, out, x, gate, weight);
      return;
    }
    NormPlace at;
    if (!norm_place(c, p, at)) return;
    x += at.x;
    gate += at.gate;
    out += at.out;
    weight += at.weight;
    if (p.group <= 128) {
      head(p, at, out, x, gate, weight);
      return;
    }
    // All loads come before the first use.
    float held[kGatedHeld], gates[kGatedHeld], weights[kGatedHeld], squares[kGatedHeld];
    float chain = 0.0f;
    UNROLL for (int i = 0; i < kGatedHeld; i++) {
      const int j = at.first + i * at.step;
      held[i] = j < p.group ? to_f(x[j]) : 0.0f;
      gates[i] = j < p.group ? to_f(gate[j]) : 0.0f;
      weights[i] = j < p.group ? weight[j] : 0.0f;
    }
    UNROLL for (int i = 0; i < kGatedHeld; i++) {
      held[i] = value(p, held[i], gates[i]);
      squares[i] = held[i] * held[i];
      chain = fma(held[i], held[i], chain);
    }
    const int rest = at.first + kGatedHeld * at.step;
    for (int j = rest; j < p.group; j += at.step) {
      const float v = value(p, to_f(x[j]), to_f(gate[j]));
      chain = fma(v, v, chain);
    }
    const float inverse = norm_inverse(norm_add_up(c, p, sm.sums, squares, chain), p.group, p.eps);
    UNROLL for (int i = 0; i < kGatedHeld; i++) {
      const int j = at.first + i * at.step;
      if (j < p.group) out[j] = result(p, (held[i] * inverse) * weights[i], gates[i]);
    }
    for (int j = rest; j < p.group; j += at.step) {
      const float gate_j = to_f(gate[j]);
      out[j] = result(p, (value(p, to_f(x[j]), gate_j) * inverse) * weight[j], gate_j);
    }
  }
};

// The residual stream between two parts of a layer: an optional norm of x, the addition, and an optional norm of the
// sum, each with the bits of its own kernel. A row is a threadgroup's; out may be x.
struct AddNormSmem {
  NormSmem sums;
  float4 row[kAddNormRow / 4];
};

template <typename T>
struct AddNorm {
  enum { kThreads = kNormThreads, kHeld = kAddNormRow / 4 / kNormThreads };
  typedef AddNormSmem Smem;

  // 1 / rms of the row in sm.row, which every thread has written its part of.
  static FN float inverse(Ctx c, CONSTANT const AddNormParams& p, TGROUP Smem& sm) {
    TG_BARRIER();
    TGROUP const float* row = (TGROUP const float*)sm.row;
    float chain = 0.0f;
    for (int j = (int)c.tid; j < p.columns; j += kThreads) chain = fma(row[j], row[j], chain);
    return norm_inverse(norm_sum_of_chains(sm.sums.chains, chain, c), p.columns, p.eps);
  }
  static FN float4 normed(float4 v, float inverse, float4 w) {
    return make_float4((v.x * inverse) * w.x, (v.y * inverse) * w.y, (v.z * inverse) * w.z, (v.w * inverse) * w.w);
  }
  static FN float4 rounded(float4 v) {
    return make_float4(to_f(to<T>(v.x)), to_f(to<T>(v.y)), to_f(to<T>(v.z)), to_f(to<T>(v.w)));
  }

  static FN void run(Ctx c, CONSTANT const AddNormParams& p, TGROUP Smem& sm, DEVICE float* residual, DEVICE T* out,
                     DEVICE const T* x, DEVICE const float* post_weight, DEVICE const float* weight) {
    x += c.tgx * p.x_stride;
    residual += c.tgx * p.residual_stride;
    const int fours = p.columns / 4;
    float4 held[kHeld], sum[kHeld];
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int at = (int)c.tid + i * kThreads;
      if (at < fours) {
        held[i] = load4(x + 4 * at);
        sum[i] = load4(residual + 4 * at);
      }
    }
    if (p.normed_x != 0) {
      UNROLL for (int i = 0; i < kHeld; i++) {
        const int at = (int)c.tid + i * kThreads;
        if (at < fours) sm.row[at] = held[i];
      }
      const float scale = inverse(c, p, sm);
      UNROLL for (int i = 0; i < kHeld; i++) {
        const int at = (int)c.tid + i * kThreads;
        if (at < fours) held[i] = rounded(normed(held[i], scale, load4(post_weight + 4 * at)));
      }
    }
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int at = (int)c.tid + i * kThreads;
      if (at < fours) {
        const float4 v = held[i], r = sum[i];
        sum[i] =
            make_float4(fma(v.x, p.scale, r.x), fma(v.y, p.scale, r.y), fma(v.z, p.scale, r.z), fma(v.w, p.scale, r.w));
        store4(residual + 4 * at, sum[i]);
        sm.row[at] = sum[i];
      }
    }
    if (p.normed_sum == 0) return;
    out += c.tgx * p.out_stride;
    const float scale = inverse(c, p, sm);
    UNROLL for (int i = 0; i < kHeld; i++) {
      const int at = (int)c.tid + i * kThreads;
      if (at < fours) store4(out + 4 * at, normed(sum[i], scale, load4(weight + 4 * at)));
    }
  }
};
KERNEL(add_norm_f16, AddNorm<half>, AddNormParams, float, half, const half, const float, const float)
KERNEL(add_norm_bf16, AddNorm<bfloat>, AddNormParams, float, bfloat, const bfloat, const float, const float)

typedef RmsNorm<float, float> RmsNorm_f32_f32;
typedef RmsNorm<float, half> RmsNorm_f32_f16;
typedef RmsNorm<float, bfloat> RmsNorm_f32_bf16;
typedef RmsNorm<half, half> RmsNorm_f16_f16;
typedef RmsNorm<half, float> RmsNorm_f16_f32;
typedef RmsNorm<bfloat, bfloat> RmsNorm_bf16_bf16;
typedef RmsNorm<bfloat, float> RmsNorm_bf16_f32;
KERNEL(rms_norm_f32_f32, RmsNorm_f32_f32, NormParams, float, const float, const float)
KERNEL(rms_norm_f32_f16, RmsNorm_f32_f16, NormParams, half, const float, const float)
KERNEL(rms_norm_f32_bf16, RmsNorm_f32_bf16, NormParams, bfloat, const float, const float)
KERNEL(rms_norm_f16_f16, RmsNorm_f16_f16, NormParams, half, const half, const float)
KERNEL(rms_norm_f16_f32, RmsNorm_f16_f32, NormParams, float, const half, const float)
KERNEL(rms_norm_bf16_bf16, RmsNorm_bf16_bf16, NormParams, bfloat, const bfloat, const float)
KERNEL(rms_norm_bf16_f32, RmsNorm_bf16_f32, NormParams, float, const bfloat, const float)

typedef LayerNorm<float, float> LayerNorm_f32_f32;
typedef LayerNorm<float, half> LayerNorm_f32_f16;
typedef LayerNorm<float, bfloat> LayerNorm_f32_bf16;
typedef LayerNorm<half, half> LayerNorm_f16_f16;
typedef LayerNorm<half, float> LayerNorm_f16_f32;
typedef LayerNorm<bfloat, bfloat> LayerNorm_bf16_bf16;
typedef LayerNorm<bfloat, float> LayerNorm_bf16_f32;
KERNEL(layer_norm_f32_f32, LayerNorm_f32_f32, NormParams, float, const float, const float, const float)
KERNEL(layer_norm_f32_f16, LayerNorm_f32_f16, NormParams, half, const float, const float, const float)
KERNEL(layer_norm_f32_bf16, LayerNorm_f32_bf16, NormParams, bfloat, const float, const float, const float)
KERNEL(layer_norm_f16_f16, LayerNorm_f16_f16, NormParams, half, const half, const float, const float)
KERNEL(layer_norm_f16_f32, LayerNorm_f16_f32, NormParams, float, const half, const float, const float)
KERNEL(layer_norm_bf16_bf16, LayerNorm_bf16_bf16, NormParams, bfloat, const bfloat, const float, const float)
KERNEL(layer_norm_bf16_f32, LayerNorm_bf16_f32, NormParams, float, const bfloat, const float, const float)

KERNEL(gated_rms_norm_f32, GatedRmsNorm<float>, NormParams, float, const float, const float, const float)
KERNEL(gated_rms_norm_f16, GatedRmsNorm<half>, NormParams, half, const half, const half, const float)
KERNEL(gated_rms_norm_bf16, GatedRmsNorm<bfloat>, NormParams, bfloat, const bfloat, const bfloat, const float)
