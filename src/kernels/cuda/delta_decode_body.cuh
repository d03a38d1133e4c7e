// SPDX-License-Identifier: Apache-2.0
// Decode of a gated delta net in chunks on Hopper: one launch, one threadgroup per sequence and head. It gives the bits
// of kernels/delta_chunks.h, because each sum is the same chain of matrix products; a token is a row of a tile whose
// other rows are zeros. The state is read and, unless a chunk ends or the page changes, not written.
//
// Rows of the small operands: 0 belongs to the new value (the key, the weights of earlier tokens for it), 1 to the
// output (the query, its weights), and 2, which stands for all others, is zero.
//
// Several heads read the same keys and the same part of the convolution's tail. The last of them to have read them
// writes the new ones; `arrivals` counts them, and is zero before and after.
//
// delta_decode.cuh has the kernels; tests/kernels runs this body on the emulator. Grid: (seqs * heads),
// kHopperDeltaThreads. REQUIRES: matrices of 128 x 128, four taps, states on 16 bytes.
#pragma once

#include "kernels/compat/tile.h"
#include "kernels/cuda/state_common.cuh"
#include "kernels/recurrent_parts.h"

template <typename T>
struct HopperDeltaDecode {
  typedef HopperStateParts<128> Parts;
  static constexpr int kRows = 128, kColumns = 128, kChannels = 2 * kRows + kColumns;
  static constexpr int kThreads = kHopperDeltaThreads;
  static constexpr int kWarpOfColumns = 8;  // warps 8 to 15 have 16 columns each
  static constexpr int kArriver = 160;      // a thread of a warp that has little else to do
  static_assert(kThreads >= kChannels, "a thread has one channel");
  struct Smem {
    alignas(128) T state[2][kColumns * kDeltaKeyLd];  // rounded, and what is missing: [column][row]
    T keys[kDeltaChunk * kDeltaKeyLd], values[kDeltaChunk * kDeltaKeyLd];
    T pair[3 * kDeltaKeyLd];
    T weights[2][3 * kDeltaTokenLd];
    alignas(16) float inputs[kChannels];
    float read[2][kColumns];  // the state, read with key and query
    float earlier[kColumns];  // the sum of earlier values
    float scores[2][kDeltaChunk];
    float decays[kDeltaChunk];
    float inner[kDeltaRows];
    float decay, step;
    int last;
  };
  static_assert(sizeof(Smem) <= kHopperDeltaMemory, "as the host counts");

  // Rows 0 and 1 of an operand, and 14 times row 2.
  HOPPER_FN void load_rows(FragA<T>& a, const T* p, int ld, int lane) {
    ptx_ldmatrix(a.r, p + min(lane & 15, 2) * ld + (lane >> 4) * 8);
  }
  // A tile that stands transposed in memory.
  HOPPER_FN void load_transposed(FragA<T>& a, const T* p, int ld, int lane) {
    ptx_ldmatrix_trans(a.r, p + ((lane & 7) + (lane >> 4) * 8) * ld + ((lane >> 3) & 1) * 8);
  }

  HOPPER_FN void add_values(Smem& sm, int block, int column, int lane, Acc16& acc) {
    FragA<T> a;
    FragB<T> v;
    frag_load_b(v, sm.values + block * 16 * kDeltaKeyLd + column, kDeltaKeyLd, (uint)lane);
    load_rows(a, sm.weights[0] + block * 16, kDeltaTokenLd, lane);
    acc_mma(acc, a, v);
    load_rows(a, sm.weights[1] + block * 16, kDeltaTokenLd, lane);
    acc_mma(acc, a, v);
  }

  // q and k of unit length, q times 1 / sqrt(rows), rounded: one warp each.
  HOPPER_FN void unit_length(Smem& sm, int j, int warp, int lane) {
    float v[4];
    UNROLL for (int i = 0; i < 4; i++) v[i] = sm.inputs[(1 - warp) * kRows + lane + 32 * i];
    const float sum = simd_sum(norm_fold(v[0] * v[0], v[1] * v[1], v[2] * v[2], v[3] * v[3], 0, 0, 0, 0));
    const float inverse = 1.0f / sqrt(sum + 1e-6f), scale = 1.0f / sqrt((float)kRows);
    UNROLL for (int i = 0; i < 4; i++) {
      const T y = to<T>(warp == 0 ? v[i] * inverse : (v[i] * inverse) * scale);
      sm.pair[warp * kDeltaKeyLd + lane + 32 * i] = y;
      if (warp == 0) sm.keys[j * kDeltaKeyLd + lane + 32 * i] = y;
    }
  }

  // One token at position j of the chunk. The result is out, in lanes 4 to 7 of the warps that have columns.
  HOPPER_FN void token(Smem& sm, int j, int tid, T* out) {
    const int warp = tid / 32, lane = tid % 32, block = j / 16, before = block * 16;
    const int column = (warp - kWarpOfColumns) * 16;
    Acc16 acc;
    acc_zero(acc);
    if (warp >= kWarpOfColumns) {
      Acc16 low;
      acc_zero(low);
      UNROLL for (int i = 0; i < kRows; i += 16) {
        FragA<T> a;
        FragB<T> s;
        load_rows(a, sm.pair + i, kDeltaKeyLd, lane);
        frag_load_b_trans(s, sm.state[0] + column * kDeltaKeyLd + i, kDeltaKeyLd, (uint)lane);
        acc_mma(acc, a, s);
        frag_load_b_trans(s, sm.state[1] + column * kDeltaKeyLd + i, kDeltaKeyLd, (uint)lane);
        acc_mma(low, a, s);
      }
      UNROLL for (int i = 0; i < 4; i++) {
        if (lane < 8) sm.read[lane >> 2][column + acc_col(i, (uint)lane)] = acc_get(acc, i) + acc_get(low, i);
      }
      acc_zero(acc);
    } else if (warp <= block) {
      UNROLL for (int i = 0; i < kRows; i += 16) {
        FragA<T> a;
        FragB<T> k;
        load_rows(a, sm.pair + i, kDeltaKeyLd, lane);
        frag_load_b_trans(k, sm.keys + warp * 16 * kDeltaKeyLd + i, kDeltaKeyLd, (uint)lane);
        acc_mma(acc, a, k);
      }
      UNROLL for (int i = 0; i < 4; i++) {
        if (lane < 8) sm.scores[lane >> 2][warp * 16 + acc_col(i, (uint)lane)] = acc_get(acc, i);
      }
    }
    __syncthreads();
    if (tid < 2 * kDeltaChunk) {
      const int which = tid / kDeltaChunk, l = tid % kDeltaChunk;
      float w = 0.0f;
      if (l < j + which) w = q_exp(sm.decays[j] - sm.decays[l]) * sm.scores[which][l];
      if (which == 0 && l >= before) {
        if (l < before + 16) sm.inner[l - before] = w;
        w = 0.0f;
      }
      delta_split(w, sm.weights[0] + which * kDeltaTokenLd + l, sm.weights[1] + which * kDeltaTokenLd + l);
    }
    __syncthreads();
    if (warp >= kWarpOfColumns) {
      ROLLED for (int n = 0; n < block; n++) add_values(sm, n, column, lane, acc);
      UNROLL for (int i = 0; i < 4; i++) {
        if (lane < 4) sm.earlier[column + acc_col(i, (uint)lane)] = acc_get(acc, i);
      }
      __syncwarp();
      const float g = q_exp(sm.decays[j]);
      if (lane < 16) {
        const int n = column + lane;
        float y = fma(-g, sm.read[0][n], sm.inputs[2 * kRows + n]) - sm.earlier[n];
#pragma unroll 4
        for (int l = before; l < j; l++) y = fma(-sm.inner[l - before], to_f(sm.values[l * kDeltaKeyLd + n]), y);
        sm.values[j * kDeltaKeyLd + n] = to<T>(delta_bounded(sm.step * y, T()));
      }
      __syncwarp();
      add_values(sm, block, column, lane, acc);
      UNROLL for (int i = 0; i < 4; i++) {
        const int n = column + acc_col(i, (uint)lane);
        if (lane >= 4 && lane < 8) out[n] = to<T>(fma(g, sm.read[1][n], acc_get(acc, i)));
      }
    }
    __syncthreads();
  }

  // The state after the chunk. The low parts of the decayed values take the place of keys that have been loaded.
  HOPPER_FN void end_chunk(Smem& sm, int tid) {
    const int warp = tid / 32, lane = tid % 32, tile = warp & 7, first = (warp >> 3) * 4;
    const float whole = sm.decays[kDeltaChunk - 1];
    Acc16 acc[4];
    UNROLL for (int n = 0; n < 4; n++) acc_zero(acc[n]);
    ROLLED for (int l = 0; l < kDeltaChunk; l += 16) {
      FragB<T> k[4];
      UNROLL for (int n = 0; n < 4; n++)
          frag_load_b(k[n], sm.keys + l * kDeltaKeyLd + (first + n) * 16, kDeltaKeyLd, (uint)lane);
      __syncthreads();
      for (int e = tid; e < 16 * kColumns; e += kThreads) {
        const int i = (l + e / kColumns) * kDeltaKeyLd + e % kColumns;
        const float decayed = q_exp(whole - sm.decays[l + e / kColumns]) * to_f(sm.values[i]);
        delta_split(decayed, sm.values + i, sm.keys + i);
      }
      __syncthreads();
      FragA<T> high, low;
      load_transposed(high, sm.values + l * kDeltaKeyLd + tile * 16, kDeltaKeyLd, lane);
      load_transposed(low, sm.keys + l * kDeltaKeyLd + tile * 16, kDeltaKeyLd, lane);
      UNROLL for (int n = 0; n < 4; n++) {
        acc_mma(acc[n], high, k[n]);
        acc_mma(acc[n], low, k[n]);
      }
    }
    const float g = q_exp(whole);
    UNROLL for (int n = 0; n < 4; n++) {
      UNROLL for (int i = 0; i < 8; i++) {
        const int at = (tile * 16 + acc_row(i, (uint)lane)) * kDeltaKeyLd + (first + n) * 16 + acc_col(i, (uint)lane);
        const float s = to_f(sm.state[0][at]) + to_f(sm.state[1][at]);
        delta_split(fma(g, s, acc_get(acc[n], i)), sm.state[0] + at, sm.state[1] + at);
      }
    }
    __syncthreads();
    for (int e = tid; e < kDeltaChunk * kDeltaKeyLd; e += kThreads) sm.values[e] = sm.keys[e] = to<T>(0.0f);
    __syncthreads();
  }

  // Where a piece of 16 bytes of the state is in shared memory; a page has [part][high, low][32 columns][rows].
  HOPPER_FN T* state_piece(Smem& sm, int e) {
    const int row = e / 16, column = row / 64 * 32 + row % 32;
    return sm.state[row / 32 % 2] + column * kDeltaKeyLd + e % 16 * 8;
  }
  HOPPER_FN void copy_rows(Smem& sm, T* to, const T* from, int begin, int end, int tid) {
    for (int e = begin * 16 + tid; e < end * 16; e += kThreads) {
      ((uint4*)to)[e] = *(const uint4*)(from + e / 16 * kDeltaKeyLd + e % 16 * 8);
    }
  }

  // What a thread needs of token t, if there is one.
  struct Inputs {
    float x, a, b;
  };
  HOPPER_FN Inputs inputs_of(const StateParams& p, const typename Parts::Place& at, int t, const T* x, const T* a,
                             const T* b, int c, int tid) {
    Inputs in = {0.0f, 0.0f, 0.0f};
    if (t >= at.tokens) return in;
    const i64 row = at.first + t;
    if (tid < kChannels) in.x = to_f(x[row * p.x_stride + c]);
    if (tid == kThreads - 1) {
      in.a = to_f(a[row * p.a_stride + at.head]);
      in.b = to_f(b[row * p.b_stride + at.head]);
    }
    return in;
  }

  HOPPER_FN void run(int group, int tid, Smem& sm, const StateParams& p, T* out, const T* x, const T* a, const T* b,
                     const float* weight, const float* bias, const float* decays, const float* dt_biases, uchar* pages,
                     const int* cu_seqlens, const int* lengths, const int* source, const int* destination,
                     int* arrivals) {
    ptx_grid_release();
    const typename Parts::Place at = Parts::place(p, group, cu_seqlens, source, destination);
    if (at.tokens == 0 && at.source == at.destination) {
      ptx_grid_wait();
      return;
    }
    const int start = lengths[at.sequence] - at.tokens, kept = start % kDeltaChunk;
    const bool has_state = at.source >= 0;
    uchar* const from = pages + (has_state ? at.source * p.page * 4 : 0);
    uchar* const into = pages + at.destination * p.page * 4;
    const i64 matrix = p.chunk_state + (i64)at.head * kRows * kColumns * 4;
    const i64 values = p.chunk_values + (i64)at.head * kDeltaChunk * kColumns * 2;
    const i64 keys = p.chunk_keys + (i64)at.key * kDeltaChunk * kRows * 2;
    const i64 decay_sums = p.chunk_decays + (i64)at.head * (kColumns / kDeltaColumns) * kDeltaChunk * 4;
    if (tid == 0 && has_state) hopper_prefetch_bulk(from + matrix, kRows * kColumns * 4);
    // What the preceding launch does not write is loaded before the wait.
    const int c = tid < kChannels ? Parts::channel(p, at, tid) : 0;
    const float4 taps = ((const float4*)weight)[c];
    const float start_sum = p.biased != 0 ? bias[c] : 0.0f;
    const float decay = decays[at.head], dt_bias = dt_biases[at.head];
    ptx_grid_wait();
    // The inputs are requested before the state, and so do not have to wait for all of it.
    const int old = has_state ? kept : 0;
    float window[4];
    UNROLL for (int j = 0; j < 3; j++) {
      window[j + 1] = has_state && tid < kChannels ? ((const float*)from)[j * p.channels + c] : 0.0f;
    }
    const float sum_of_decays = tid < old ? ((const float*)(from + decay_sums))[tid] : 0.0f;
    Inputs next = inputs_of(p, at, 0, x, a, b, c, tid);
    const unsigned long long policy = hopper_read_once();
    for (int e = tid; e < 2 * kColumns * 16; e += kThreads) {
      if (has_state) {
        hopper_copy16(state_piece(sm, e), from + matrix + (i64)e * 16, policy);
      } else {
        *(uint4*)state_piece(sm, e) = make_uint4(0u, 0u, 0u, 0u);
      }
    }
    for (int e = tid; e < kDeltaChunk * 16; e += kThreads) {
      T* const key = sm.keys + e / 16 * kDeltaKeyLd + e % 16 * 8;
      T* const value = sm.values + e / 16 * kDeltaKeyLd + e % 16 * 8;
      if (e / 16 < old) {
        hopper_copy16(key, from + keys + (i64)e * 16, policy);
        hopper_copy16(value, from + values + (i64)e * 16, policy);
      } else {
        *(uint4*)key = *(uint4*)value = make_uint4(0u, 0u, 0u, 0u);
      }
    }
    ptx_copy_commit();
    if (tid < kDeltaChunk) sm.decays[tid] = sum_of_decays;
    if (tid < kDeltaKeyLd) sm.pair[2 * kDeltaKeyLd + tid] = to<T>(0.0f);
    if (tid < kDeltaTokenLd)
      sm.weights[0][2 * kDeltaTokenLd + tid] = sm.weights[1][2 * kDeltaTokenLd + tid] = to<T>(0.0f);
    bool changed = false;
    int arrived = 0;
    ROLLED for (int t = 0; t < at.tokens; t++) {
      const i64 row = at.first + t;
      const int j = (start + t) % kDeltaChunk;
      if (tid < kChannels) {
        UNROLL for (int i = 0; i < 3; i++) window[i] = window[i + 1];
        window[3] = next.x;
        float sum = fma(taps.x, window[0], start_sum);
        sum = fma(taps.y, window[1], sum);
        sum = fma(taps.z, window[2], sum);
        sum = fma(taps.w, window[3], sum);
        sm.inputs[tid] = q_silu(sum);
      }
      if (tid == kThreads - 1) {
        sm.step = q_sigmoid(next.b);
        sm.decay = q_softplus(next.a + dt_bias) * decay;
      }
      next = inputs_of(p, at, t + 1, x, a, b, c, tid);
      __syncthreads();
      if (tid < 64) unit_length(sm, j, tid / 32, tid % 32);
      if (tid == 64) sm.decays[j] = (j > 0 ? sm.decays[j - 1] : 0.0f) + sm.decay;
      if (t == 0) ptx_copy_wait<0>();
      __syncthreads();
      if (t == 0 && tid == kArriver) arrived = Parts::arrive(p, at, arrivals);
      token(sm, j, tid, out + row * p.out_stride + at.head * kColumns);
      if (j == kDeltaChunk - 1) {
        end_chunk(sm, tid);
        changed = true;
      }
    }
    if (at.tokens == 0) {
      ptx_copy_wait<0>();
      __syncthreads();
      if (tid == kArriver) arrived = Parts::arrive(p, at, arrivals);
    }
    const bool same = at.source == at.destination && !changed;
    const int begin = same ? kept : 0, end = (start + at.tokens) % kDeltaChunk;
    if (!same) {
      for (int e = tid; e < 2 * kColumns * 16; e += kThreads) {
        ((uint4*)(into + matrix))[e] = *(const uint4*)state_piece(sm, e);
      }
    }
    copy_rows(sm, (T*)(into + values), sm.values, begin, end, tid);
    const int part = tid / kDeltaChunk, l = tid % kDeltaChunk;
    if (part < kColumns / kDeltaColumns && l >= begin && l < end) {
      ((float*)(into + decay_sums))[tid] = sm.decays[l];
    }
    if (tid == kArriver) sm.last = Parts::comes_last(p, at, arrivals, arrived);
    __syncthreads();
    if (sm.last) copy_rows(sm, (T*)(into + keys), sm.keys, begin, end, tid);
    if (tid >= kChannels || (tid < 2 * kRows && !sm.last)) return;
    UNROLL for (int j = 0; j < 3; j++)((float*)into)[j * p.channels + c] = window[j + 1];
  }
};
