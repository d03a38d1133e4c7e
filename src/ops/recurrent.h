// SPDX-License-Identifier: Apache-2.0
// The recurrent layers: gated delta net, Mamba-2 (SSD) and the short convolution. Each keeps one state per sequence.
//
// Contract. Sequence s is rows cu_seqlens_q[s] .. cu_seqlens_q[s+1] of the inputs. It runs token by token, also in
// prefill, so the bits of a token depend only on its own sequence: not on the chunk, the batch or the threads. The
// state is float. It is read from page source[s] (-1: all zeros, the beginning of a sequence) before the first token
// and written to page destination[s] after the last; the two may be the same page. A source that is not the destination
// does not change. Two sequences may read the same page, but a destination must not be another sequence's source or
// destination. The state of a sequence without tokens in the step is copied. If there are row destinations, the state
// after token t is also written to page row_destination[t], unless that is -1: drafts that turn out to be wrong are
// taken back by going on from such a page. They are pages of their own, except that the first one of a sequence may be
// its source. The last token of a sequence has none, and the destination of a sequence with some is not its source.
//
// A state is conv.tail_floats() floats, [kernel-1][channels] with the oldest input first, and then a matrix
// S[rows][cols] per head: [dk][dv] for gated delta net, [state_size][head_dim] for Mamba-2. Inside a head the columns
// are stored in slices of kStateSlice, each [rows][its columns], so that a slice is contiguous (the last may be
// narrower).
//
// A state in chunks (`chunked` of GatedDeltaNetArgs and Mamba2Args) is what DeltaChunkLayout says instead.
//
// The convolution is causal and depthwise over the last `kernel` inputs x[t-kernel+1 .. t] of a channel, with zeros
// for positions before the sequence:
//   c = bias (or +0); for j = 0 .. kernel-1: c = fma(weight[channel][j], x[t-kernel+1+j], c)
//
// silu and sigmoid are those of ops/activation.h; sums "in lanes" are those of ops/norm.h (16 lanes, then folded);
// softplus(x) = max(x, 0) + log1p(exp(-|x|)), which rounds to x where x > 20, uses the project's own polynomials
// (backend/cpu/simd_math.h). Every operation written below is rounded, except inside an fma.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "ops/tensor.h"

namespace quire {

constexpr int64_t kMaxStateDim = 256;  // dk and dv of a gated delta net; state size and head size of Mamba-2
constexpr int64_t kMaxConvKernel = 8;
constexpr int64_t kStateSlice = 64;
constexpr int64_t kStateChunk = 64;           // tokens of a chunk
constexpr int64_t kStateChunkColumns = 32;    // columns of a matrix that are stored together
constexpr int64_t kMostStateChunkRows = 128;  // dk of a gated delta net in chunks, or Mamba-2's state size

// The states of one layer: page p begins at pages + p * page_stride.
struct StateLayer {
  void* pages = nullptr;
  int64_t page_stride = 0;  // bytes
  int64_t num_pages = 0;
};

// The sequences of a step, for one state group.
struct StateSequences {
  std::span<const int32_t> cu_seqlens_q;          // [seqs+1]
  std::span<const int32_t> source;                // [seqs]
  std::span<const int32_t> destination;           // [seqs]
  std::span<const int32_t> row_destination = {};  // [tokens], or empty: no states but the last are written
  std::span<const int32_t> lengths =
      {};  // [seqs]: the sequence's tokens after the step; only read for states in chunks
};

// A causal depthwise convolution: its weights, and the size of the tail of inputs that the state keeps.
struct CausalConv {
  int64_t channels = 0;
  int64_t kernel = 0;             // at least 1
  const float* weight = nullptr;  // [channels, kernel]; the last column is for the newest input
  const float* bias = nullptr;    // [channels] or null
  constexpr int64_t tail_floats() const { return channels * (kernel - 1); }
};

// Gated delta net (Yang et al., "Gated Delta Networks", 2024). With c the convolution of qkv: q, k, v = parts of
// silu(c). For each value head h, with its key head h / (value_heads / key_heads), or h % key_heads if `tiled`:
//   q, k : x * (1 / sqrt(sum(x^2) + 1e-6)); q then times (1 / sqrt(dk)); qk = sum(q * k). Sums in lanes.
//   g    : exp(decay[h] * softplus(a[h] + dt_bias[h]));  beta = sigmoid(b[h])
//   m[j] = sum_i k[i] S[i][j];  p[j] = sum_i q[i] S[i][j], both fma chains over i from +0, ascending
//   d[j] = fma(m[j], -g, v[j]) * beta;  out[j] = fma(d[j], qk, p[j] * g);  S[i][j] = fma(k[i], d[j], S[i][j] * g)
// This is the delta rule on the decayed state, with the sums taken before the decay and the update. out is q times the
// new state, because q(gS + k d) = g(qS) + (qk)d. So one pass over S per token is enough: it updates S for one token
// and computes the sums for the next.
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
  Tensor out;            // [tokens, value_heads*dv]; must not overlap qkv
  bool tiled = false;    // the value heads of a key head are key_heads apart, as in GGUF files
  bool chunked = false;  // as follows; only if Backend::chunks_delta_net() says so
};
// The same recurrence in chunks, for which 64 tokens are a few small matrix products. A chunk is 64 absolute positions.
// The state keeps S at the chunk's beginning and, for each token l since, its key k[l], its value u[l] (the d of above)
// and c[l], the sum of decay[h] * softplus(...) over the chunk's tokens up to l. With T the type of qkv, q, k and u
// rounded to T, and w(j, l) = exp(c[j] - c[l]):
//   u[j] = beta[j] (v[j] - exp(c[j]) k[j] S - sum_{l<j} w(j, l) (k[j] k[l]) u[l])
//   out[j] = exp(c[j]) q[j] S + sum_{l<=j} w(j, l) (q[j] k[l]) u[l]
//   S after the chunk = exp(c[63]) S + sum_l w(63, l) k[l] u[l], rounded to the sum of two numbers of type T
// Sums are chains over blocks of 16, ascending; within a token's own block of 16 positions those of u are fma chains.
// So the bits depend on positions alone, and a token reads S but does not write it, unless it ends a chunk.

void check(const GatedDeltaNetArgs& args);

// Mamba-2 (Dao and Gu, "Transformers are SSMs", 2024). With c the convolution of xbc: x, B, C = parts of silu(c). For
// each head h, with its group h / (heads / groups):
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
  Tensor out;            // [tokens, heads*head_dim]; must not overlap xbc
  bool chunked = false;  // as follows; only if Backend::chunks_mamba2() says so
};
// The same in chunks: as a gated delta net with k = B, q = C, u = x dt and c the sums of dt * decay[h], but u needs no
// other tokens. With T the type of xbc, and B, C and u rounded to T:
//   y[j] = exp(c[j]) C[j] S + sum_{l<=j} w(j, l) (C[j] B[l]) u[l], and then fma(x[j], skip[h], y[j])
// The state is DeltaChunkLayout(groups, heads, state_size, head_dim, kernel), with S and sums as there.
void check(const Mamba2Args& args);

// The convolution layer of LFM2: bcx has B, C and x side by side; out = C * conv(B * x), each product rounded.
struct ShortConvArgs {
  Tensor bcx;       // [tokens, 3*channels]
  CausalConv conv;  // no activation
  StateLayer state;
  StateSequences sequences;
  Tensor out;  // [tokens, channels]; must not overlap bcx
};
void check(const ShortConvArgs& args);

// Bytes of the state of one layer.
constexpr int64_t gated_delta_net_state_bytes(int64_t key_heads, int64_t value_heads, int64_t dk, int64_t dv,
                                              int64_t kernel) {
  const int64_t channels = 2 * key_heads * dk + value_heads * dv;
  return 4 * (channels * (kernel - 1) + value_heads * dk * dv);
}
// Where a state in chunks keeps what, in bytes. The convolution's tail is as above; then S, for each head and each 32
// columns as [2][32][dk] of type T, the rounded numbers and what they lack; u as [value_heads][64][dv] and k as
// [key_heads][64][dk] of type T; and c as [value_heads][dv/32][64] floats. Tokens of a chunk that are not there yet are
// undefined.
struct DeltaChunkLayout {
  constexpr DeltaChunkLayout(int64_t key_heads, int64_t value_heads, int64_t dk, int64_t dv, int64_t kernel)
      : state(4 * (2 * key_heads * dk + value_heads * dv) * (kernel - 1)),
        values(state + 4 * value_heads * dk * dv),
        keys(values + 2 * kStateChunk * value_heads * dv),
        decays(keys + 2 * kStateChunk * key_heads * dk),
        bytes(decays + 4 * kStateChunk * value_heads * (dv / kStateChunkColumns)) {}
  int64_t state, values, keys, decays, bytes;
};
// Whether chunks have a layout for these sizes.
constexpr bool fits_delta_chunks(int64_t dk, int64_t dv) {
  return dk % 16 == 0 && dk <= kMostStateChunkRows && dv % kStateChunkColumns == 0;
}
constexpr int64_t mamba2_state_bytes(int64_t heads, int64_t head_dim, int64_t groups, int64_t state_size,
                                     int64_t kernel) {
  const int64_t channels = heads * head_dim + 2 * groups * state_size;
  return 4 * (channels * (kernel - 1) + heads * head_dim * state_size);
}
constexpr int64_t short_conv_state_bytes(int64_t channels, int64_t kernel) {
  return 4 * channels * (kernel - 1);
}

// What a model's config may ask for: an error names the field. Called when the model is loaded, because check(args)
// treats any other shape as a bug.
Status check_gated_delta_net_shape(int64_t key_heads, int64_t value_heads, int64_t dk, int64_t dv, int64_t kernel);
Status check_mamba2_shape(int64_t heads, int64_t head_dim, int64_t groups, int64_t state_size, int64_t kernel);
Status check_short_conv_shape(int64_t channels, int64_t kernel);

// REQUIRES: arrays that the host can read, and check() of the op's arguments.
void check_indices(const StateSequences& sequences, const StateLayer& state, int64_t rows);

}  // namespace quire
