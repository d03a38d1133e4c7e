// SPDX-License-Identifier: Apache-2.0
// The recurrent layers: gated delta net, Mamba-2 (SSD) and the short convolution. Each keeps one state a sequence.
//
// Contract. Sequences are rows cu_seqlens_q[s] .. cu_seqlens_q[s+1] of the inputs, and they run token by token, in
// prefill too, so a token's bits depend on its own sequence alone: not on the chunk, the batch or the threads. State is
// float, read from page source[s] (-1: all zeros, a sequence's beginning) before the first token and written to page
// destination[s] after the last; the two may be the same page. A source that is not the destination stays as it is. Two
// sequences may read one page, but a destination is no other sequence's source or destination. A sequence without
// tokens in the step has its state carried over as it is.
//
// A state is conv.tail_floats() floats, [kernel-1][channels] with the oldest input first, and then the recurrent part,
// a matrix S[rows][cols] a head: gated delta net [dk][dv], Mamba-2 [state_size][head_dim]. Inside a head the columns
// are cut in slices of kStateSlice, each [rows][its columns], so that a slice is contiguous (the last may be narrower).
//
// The convolution is causal and depthwise over the last `kernel` inputs x[t-kernel+1 .. t] of a channel, positions
// before the sequence counting as zeros:
//   c = bias (or +0); for j = 0 .. kernel-1: c = fma(weight[channel][j], x[t-kernel+1+j], c)
//
// silu and sigmoid are those of ops/activation.h; "lanes" sums are those of ops/norm.h (16 lanes, then folded);
// softplus(x) = max(x, 0) + log1p(exp(-|x|)), which rounds to x where x > 20, from the project's own polynomials
// (backend/cpu/simd_math.h). Every operation written below is rounded, but for those inside an fma.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "ops/tensor.h"

namespace quire {

constexpr int64_t kMaxStateDim = 256;  // Dk, Dv of a gated delta net; state size and head size of Mamba-2
constexpr int64_t kMaxConvKernel = 8;
constexpr int64_t kStateSlice = 64;

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

// Gated delta net. With c the convolution of qkv: q, k, v = parts of silu(c). For each value head h, with its key head
// h / (value_heads / key_heads), or h % key_heads where `tiled`:
//   q, k : x * (1 / sqrt(sum(x^2) + 1e-6)); q then times (1 / sqrt(dk)); qk = sum(q * k). Sums in lanes.
//   g    : exp(decay[h] * softplus(a[h] + dt_bias[h]));  beta = sigmoid(b[h])
//   m[j] = sum_i k[i] S[i][j];  p[j] = sum_i q[i] S[i][j], both fma chains over i from +0, ascending
//   d[j] = fma(m[j], -g, v[j]) * beta;  out[j] = fma(d[j], qk, p[j] * g);  S[i][j] = fma(k[i], d[j], S[i][j] * g)
// This is the delta rule on the decayed state, with the sums taken before the decay and the update: out is q on the new
// state, because q(gS + k d) = g(qS) + (qk)d. So one pass over S a token is enough: it updates S for one token and sums
// for the next.
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
  StateLayer state;                // conv tail, then [value_heads] matrices [dk][dv]
  StateSequences sequences;
  Tensor out;          // [tokens, value_heads*dv]; must not overlap qkv
  bool tiled = false;  // value heads of a key head stand key_heads apart, as GGUF files have them
};

// Mamba-2. With c the convolution of xbc: x, B, C = parts of silu(c). For each head h, with its group
// h / (heads / groups):
//   dt = clamp(softplus(dt[h] + dt_bias[h]), dt_min, dt_max);  g = exp(dt * decay[h]);  u[p] = x[p] * dt
//   S[n][p] = fma(B[n], u[p], S[n][p] * g);  y[p] = fma(x[p], skip[h], sum_n C[n] S[n][p])
// The sum over n is an fma chain from +0, ascending.
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
  StateLayer state;  // conv tail, then [heads] matrices [state_size][head_dim]
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

// Bytes of one layer's state.
constexpr int64_t gated_delta_net_state_bytes(int64_t key_heads, int64_t value_heads, int64_t dk, int64_t dv,
                                              int64_t kernel) {
  const int64_t channels = 2 * key_heads * dk + value_heads * dv;
  return 4 * (channels * (kernel - 1) + value_heads * dk * dv);
}
constexpr int64_t mamba2_state_bytes(int64_t heads, int64_t head_dim, int64_t groups, int64_t state_size,
                                     int64_t kernel) {
  const int64_t channels = heads * head_dim + 2 * groups * state_size;
  return 4 * (channels * (kernel - 1) + heads * head_dim * state_size);
}
constexpr int64_t short_conv_state_bytes(int64_t channels, int64_t kernel) {
  return 4 * channels * (kernel - 1);
}

// What a model's config may ask for; to be called where it is loaded, because the ops take any other shape for our bug.
namespace recurrent_shape {
inline Status in_range(const char* layer, const char* field, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return {};
  return unsupported(std::string(layer) + ": " + field + " is " + std::to_string(value) + "; quire takes 1 to " +
                     std::to_string(most));
}
inline Status multiple(const char* layer, const char* field, int64_t value, const char* of, int64_t divisor) {
  if (value % divisor == 0) return {};
  return unsupported(std::string(layer) + ": " + field + " (" + std::to_string(value) + ") must be a multiple of " +
                     of + " (" + std::to_string(divisor) + ")");
}
constexpr int64_t kMaxHeads = 1 << 16;
}  // namespace recurrent_shape

inline Status check_gated_delta_net_shape(int64_t key_heads, int64_t value_heads, int64_t dk, int64_t dv,
                                          int64_t kernel) {
  using namespace recurrent_shape;
  const char* layer = "gated delta net";
  QUIRE_TRY(in_range(layer, "the number of key heads", key_heads, kMaxHeads));
  QUIRE_TRY(in_range(layer, "the number of value heads", value_heads, kMaxHeads));
  QUIRE_TRY(multiple(layer, "the number of value heads", value_heads, "that of key heads", key_heads));
  QUIRE_TRY(in_range(layer, "the key head size", dk, kMaxStateDim));
  QUIRE_TRY(in_range(layer, "the value head size", dv, kMaxStateDim));
  return in_range(layer, "the convolution kernel size", kernel, kMaxConvKernel);
}

inline Status check_mamba2_shape(int64_t heads, int64_t head_dim, int64_t groups, int64_t state_size, int64_t kernel) {
  using namespace recurrent_shape;
  const char* layer = "Mamba-2";
  QUIRE_TRY(in_range(layer, "the number of heads", heads, kMaxHeads));
  QUIRE_TRY(in_range(layer, "the number of groups", groups, kMaxHeads));
  QUIRE_TRY(multiple(layer, "the number of heads", heads, "that of groups", groups));
  QUIRE_TRY(in_range(layer, "the head size", head_dim, kMaxStateDim));
  QUIRE_TRY(in_range(layer, "the state size", state_size, kMaxStateDim));
  return in_range(layer, "the convolution kernel size", kernel, kMaxConvKernel);
}

inline Status check_short_conv_shape(int64_t channels, int64_t kernel) {
  using namespace recurrent_shape;
  QUIRE_TRY(in_range("short convolution", "the number of channels", channels, int64_t{1} << 24));
  return in_range("short convolution", "the kernel size", kernel, kMaxConvKernel);
}

}  // namespace quire
