// SPDX-License-Identifier: Apache-2.0
// The recurrent layers: gated delta net, Mamba-2 (SSD) and the short convolution. Each keeps one state a sequence.
//
// Contract. Sequences are rows cu_seqlens_q[s] .. cu_seqlens_q[s+1] of the inputs, and they run token by token, in
// prefill too, so a token's bits depend on its own sequence alone: not on the chunk, the batch or the threads. State is
// float, read from page source[s] (-1: all zeros, a sequence's beginning) before the first token and written to page
// destination[s] after the last; the two may be the same page. A source that is not the destination stays as it is.
//
// A state is conv_tail(), then the recurrent part. The convolution is causal and depthwise over the last `kernel`
// inputs x[t-kernel+1 .. t] of a channel, positions before the sequence counting as zeros:
//   c = bias (or +0); for j = 0 .. kernel-1: c = fma(weight[channel][j], x[t-kernel+1+j], c)
#pragma once

#include <cstdint>
#include <span>

#include "ops/tensor.h"

namespace quire {

constexpr int64_t kMaxStateDim = 256;  // Dk, Dv of a gated delta net; state size and head size of Mamba-2

// Where the states of one layer are: page p begins at pages + p * page_stride.
struct StateLayer {
  void* pages = nullptr;
  int64_t page_stride = 0;  // bytes
  int64_t num_pages = 0;
};

// The sequences of a step, for one state group.
struct StateSequences {
  std::span<const int32_t> cu_seqlens_q;  // [seqs+1]
  std::span<const int32_t> source;        // [seqs]
  std::span<const int32_t> destination;   // [seqs]
};

// A causal depthwise convolution: its weights, and the tail of inputs that the state holds.
struct CausalConv {
  int64_t channels = 0;
  int64_t kernel = 0;             // at least 1
  const float* weight = nullptr;  // [channels, kernel], the last one for the newest input
  const float* bias = nullptr;    // [channels] or null
  constexpr int64_t tail_floats() const { return channels * (kernel - 1); }
};

// Gated delta net. With c the convolution of qkv and silu: q, k, v = parts of silu(c). For each value head h, with its
// key head h / (value_heads / key_heads):
//   q, k : x * (1 / sqrt(sum(x^2) + 1e-6)); q then times 1/sqrt(Dk)
//   g    : exp(decay[h] * softplus(a[h] + dt_bias[h]));  beta = sigmoid(b[h])
//   S[i][j] = S[i][j] * g;  m[j] = sum_i k[i] S[i][j];  d[j] = (v[j] - m[j]) * beta
//   S[i][j] = fma(k[i], d[j], S[i][j]);  out[j] = sum_i q[i] S[i][j]
// The sums over i are fma chains from +0, ascending.
struct GatedDeltaNetArgs {
  Tensor qkv;  // [tokens, 2*key_heads*dk + value_heads*dv], before the convolution
  Tensor a;    // [tokens, value_heads]
  Tensor b;    // [tokens, value_heads]
  int64_t key_heads = 0;
  int64_t value_heads = 0;  // a multiple of key_heads
  int64_t dk = 0;
  int64_t dv = 0;
  CausalConv conv;                 // over the columns of qkv
  const float* decay = nullptr;    // [value_heads]: -exp(A_log)
  const float* dt_bias = nullptr;  // [value_heads]
  StateLayer state;                // conv tail, then [value_heads][dk][dv]
  StateSequences sequences;
  Tensor out;  // [tokens, value_heads*dv]; must not overlap qkv
};

// Mamba-2. With c the convolution of xbc and silu: x, B, C = parts of silu(c). For each head h, with its group
// h / (heads / groups):
//   dt = clamp(softplus(dt[h] + dt_bias[h]), dt_min, dt_max);  g = exp(dt * decay[h])
//   S[p][n] = fma(dt * x[p], B[n], S[p][n] * g);  y[p] = fma(skip[h], x[p], sum_n C[n] S[p][n])
// The sum over n runs as backend/cpu's 16 lanes fold it (ops/norm.h).
struct Mamba2Args {
  Tensor xbc;  // [tokens, heads*head_dim + 2*groups*state_size], before the convolution
  Tensor dt;   // [tokens, heads]
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t groups = 0;
  int64_t state_size = 0;
  CausalConv conv;
  const float* decay = nullptr;    // [heads]: -exp(A_log)
  const float* skip = nullptr;     // [heads]: D
  const float* dt_bias = nullptr;  // [heads]
  float dt_min = 0;
  float dt_max = 0;  // may be infinite
  StateLayer state;  // conv tail, then [heads][head_dim][state_size]
  StateSequences sequences;
  Tensor out;  // [tokens, heads*head_dim]; must not overlap xbc
};

// LFM2's layer: bcx holds B, C and x side by side; out = C * conv(B * x), each product rounded.
struct ShortConvArgs {
  Tensor bcx;       // [tokens, 3*channels]
  CausalConv conv;  // no activation
  StateLayer state;
  StateSequences sequences;
  Tensor out;  // [tokens, channels]; must not overlap bcx
};

}  // namespace quire
