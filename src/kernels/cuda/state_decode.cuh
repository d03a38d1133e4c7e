// SPDX-License-Identifier: Apache-2.0
// gated_delta_net and mamba2 for decode: convolution, gates and recurrence in one launch, a threadgroup per sequence
// and head (sm_90a). Equal by memcmp to state_prepare and the recurrence of kernels/recurrent.h, for any number of
// tokens.
//
// The state of a head is one block of memory, which the copy engine brings to shared memory and back. Four threads
// share a column, one per chain of the sums (the order of sums is in kernels/recurrent.h). All loops are short code: a
// launch as small as this one takes about as long as its instructions take to arrive.
//
// Several heads read the same q and k (B and C of Mamba-2), and so the same part of the convolution's tail. The last of
// them to have read it writes the new one; `arrivals` counts them, and is zero before and after.
//
// Grid: (seqs * heads), 4 * C threads. REQUIRES: matrices of 128 rows and C columns, four taps, states on 16 bytes.
#pragma once

#include "kernels/cuda/state_common.cuh"
#include "kernels/params/recurrent.h"

// From shared memory; hopper_stored_bulk() waits until the stores have been made.
HOPPER_FN void hopper_store_bulk(void* to, uint from, uint bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;\ncp.async.bulk.commit_group;" ::
          "l"(to),
      "r"(from), "r"(bytes), "l"(hopper_read_once())
      : "memory");
}
HOPPER_FN void hopper_stored_bulk() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <typename T, int C, bool Delta>
struct HopperStateDecode {
  typedef HopperStateParts<C> Parts;
  enum {
    kRows = kHopperStateRows,
    kThreads = 4 * C,
    kChannels = 2 * kRows + C,  // q, k and v of the head, or C, B and x
    kMine = (kChannels + kThreads - 1) / kThreads,
    kBytes = kRows * C * 4
  };
  struct Smem {
    alignas(128) float state[kRows * C];
    alignas(16) float inputs[kChannels];  // after the convolution: right, left, own
    float sums[2][4][C];
    float decay, step, cross;
    int last;
    unsigned long long landed;
  };
  static_assert(sizeof(Smem) <= hopper_state_memory(C), "as the host counts");

  // Element `row` of this thread's column in shared memory; columns stand in slices of 64.
  HOPPER_FN float& element(Smem& sm, int row, int column) {
    return sm.state[(column >> 6) * (kRows * 64) + row * 64 + (column & 63)];
  }

  HOPPER_FN void gates(const StateParams& p, Smem& sm, float a, float b, float decay, float dt_bias) {
    float dt = q_softplus(a + dt_bias);
    if (Delta) {
      sm.step = q_sigmoid(b);
    } else {
      dt = dt < p.least ? p.least : dt;
      dt = dt > p.most ? p.most : dt;
      sm.step = dt;
    }
    sm.decay = q_exp(dt * decay);
  }

  HOPPER_FN float folded(const float (&chains)[4][C], int column) {
    return (chains[0][column] + chains[1][column]) + (chains[2][column] + chains[3][column]);
  }

  // One token of the delta rule for a quarter of a column; the result is out of the whole column.
  HOPPER_FN float delta(Smem& sm, int part, int column) {
    const float4* q4 = (const float4*)sm.inputs;
    const float4* k4 = q4 + kRows / 4;
    float m = 0.0f, y = 0.0f;
#pragma unroll 2
    for (int r = part; r < kRows / 4; r += 4) {
      const float4 k = k4[r], q = q4[r];
      const float* s = &element(sm, 4 * r, column);
      m = fma(k.x, s[0], m);
      y = fma(q.x, s[0], y);
      m = fma(k.y, s[64], m);
      y = fma(q.y, s[64], y);
      m = fma(k.z, s[128], m);
      y = fma(q.z, s[128], y);
      m = fma(k.w, s[192], m);
      y = fma(q.w, s[192], y);
    }
    sm.sums[0][part][column] = m;
    sm.sums[1][part][column] = y;
    __syncthreads();
    const float g = sm.decay;
    const float d = fma(folded(sm.sums[0], column), -g, sm.inputs[2 * kRows + column]) * sm.step;
#pragma unroll 2
    for (int r = part; r < kRows / 4; r += 4) {
      const float4 k = k4[r];
      float* s = &element(sm, 4 * r, column);
      s[0] = fma(k.x, d, s[0] * g);
      s[64] = fma(k.y, d, s[64] * g);
      s[128] = fma(k.z, d, s[128] * g);
      s[192] = fma(k.w, d, s[192] * g);
    }
    return fma(d, sm.cross, folded(sm.sums[1], column) * g);
  }

  // The same for Mamba-2.
  HOPPER_FN float ssd(Smem& sm, int part, int column, float skip) {
    const float4* c4 = (const float4*)sm.inputs;
    const float4* b4 = c4 + kRows / 4;
    const float g = sm.decay, x = sm.inputs[2 * kRows + column], u = x * sm.step;
    float y = 0.0f;
#pragma unroll 2
    for (int r = part; r < kRows / 4; r += 4) {
      const float4 b = b4[r], q = c4[r];
      float* s = &element(sm, 4 * r, column);
      const float s0 = fma(b.x, u, s[0] * g), s1 = fma(b.y, u, s[64] * g);
      const float s2 = fma(b.z, u, s[128] * g), s3 = fma(b.w, u, s[192] * g);
      y = fma(q.x, s0, y);
      y = fma(q.y, s1, y);
      y = fma(q.z, s2, y);
      y = fma(q.w, s3, y);
      s[0] = s0;
      s[64] = s1;
      s[128] = s2;
      s[192] = s3;
    }
    sm.sums[0][part][column] = y;
    __syncthreads();
    return fma(x, skip, folded(sm.sums[0], column));
  }

  HOPPER_FN void run(const StateParams& p, T* out, const T* x, const T* a, const T* b, const float* weight,
                     const float* bias, const float* decays, const float* dt_biases, const float* skips, float* pages,
                     const int* cu_seqlens, const int* source, const int* destination, int* arrivals) {
    extern __shared__ __align__(128) unsigned char state_memory[];
    Smem& sm = *(Smem*)state_memory;
    ptx_grid_release();
    const int tid = (int)threadIdx.x, part = tid / C, column = tid % C;
    const typename Parts::Place at = Parts::place(p, (int)blockIdx.x, cu_seqlens, source, destination);
    if (at.tokens == 0 && at.source == at.destination) {
      ptx_grid_wait();
      return;
    }
    const bool has_state = at.source >= 0;
    const i64 matrix = (i64)p.channels * 3 + (i64)at.head * (kRows * C);
    const float* from = pages + (has_state ? at.source * p.page : 0);
    float* into = pages + at.destination * p.page;
    const uint landed = ptx_shared_address(&sm.landed);
    if (tid == 0) {
      if (has_state) hopper_prefetch_bulk(from + matrix, kBytes);
      hopper_barrier_init(landed, 1);
      hopper_barrier_init_done();
    }
    // What the preceding launch does not write is loaded before the wait.
    float4 taps[kMine];
    float biases[kMine], window[kMine][4];
    UNROLL for (int n = 0; n < kMine; n++) {
      const int i = tid + n * kThreads;
      if (i >= kChannels) continue;
      const int c = Parts::channel(p, at, i);
      taps[n] = ((const float4*)weight)[c];
      biases[n] = p.biased != 0 ? bias[c] : 0.0f;
    }
    const float decay = decays[at.head], dt_bias = dt_biases[at.head], skip = Delta ? 0.0f : skips[at.head];
    ptx_grid_wait();
    if (tid == 0 && has_state) {
      hopper_barrier_expect(landed, kBytes);
      hopper_copy_bulk(ptx_shared_address(sm.state), from + matrix, kBytes, landed, hopper_read_once());
    }
    if (!has_state) {
#pragma unroll 1
      for (int i = tid; i < kRows * C; i += kThreads) sm.state[i] = 0.0f;
    }
    UNROLL for (int n = 0; n < kMine; n++) {
      const int i = tid + n * kThreads;
      UNROLL for (int j = 0; j < 3; j++) {
        window[n][j + 1] = has_state && i < kChannels ? from[j * p.channels + Parts::channel(p, at, i)] : 0.0f;
      }
    }
#pragma unroll 1
    for (int t = 0; t < at.tokens; t++) {
      const i64 row = at.first + t;
      UNROLL for (int n = 0; n < kMine; n++) {
        const int i = tid + n * kThreads;
        if (i >= kChannels) continue;
        UNROLL for (int j = 0; j < 3; j++) window[n][j] = window[n][j + 1];
        window[n][3] = to_f(x[row * p.x_stride + Parts::channel(p, at, i)]);
        float sum = fma(taps[n].x, window[n][0], biases[n]);
        sum = fma(taps[n].y, window[n][1], sum);
        sum = fma(taps[n].z, window[n][2], sum);
        sum = fma(taps[n].w, window[n][3], sum);
        sm.inputs[i] = q_silu(sum);
      }
      if (tid == kThreads - 1) {
        const float beta = Delta ? to_f(b[row * p.b_stride + at.head]) : 0.0f;
        gates(p, sm, to_f(a[row * p.a_stride + at.head]), beta, decay, dt_bias);
      }
      __syncthreads();
      if (Delta && tid < 32) Parts::unit_lengths(sm, tid);
      if (t == 0 && has_state) hopper_barrier_wait(landed, 0);
      if (Delta) __syncthreads();
      const float y = Delta ? delta(sm, part, column) : ssd(sm, part, column, skip);
      if (part == 0) out[row * p.out_stride + at.head * C + column] = to<T>(y);
      __syncthreads();  // the inputs are free for the next token
    }
    if (at.tokens == 0) {
      __syncthreads();  // no thread waits for the barrier before it was made
      if (has_state) hopper_barrier_wait(landed, 0);
      __syncthreads();
    }
    hopper_fence_async();
    __syncthreads();
    if (tid == 0) {
      hopper_store_bulk(into + matrix, ptx_shared_address(sm.state), kBytes);
      // All threads have read the tail.
      sm.last = Parts::comes_last(p, at, arrivals, Parts::arrive(p, at, arrivals));
    }
    __syncthreads();
    UNROLL for (int n = 0; n < kMine; n++) {
      const int i = tid + n * kThreads;
      if (i >= kChannels || (i < 2 * kRows && !sm.last)) continue;
      UNROLL for (int j = 0; j < 3; j++) into[j * p.channels + Parts::channel(p, at, i)] = window[n][j + 1];
    }
    if (tid == 0) hopper_stored_bulk();
  }
};

#define HOPPER_STATE_DECODE(name, types, T, C, delta, resident)                                                     \
  extern "C" __global__ void __launch_bounds__(4 * C, resident) hopper_##name##_##types##_c##C(                     \
      const __grid_constant__ StateParams p, T* out, const T* x, const T* a, const T* b, const float* weight,       \
      const float* bias, const float* decays, const float* dt_biases, const float* skips, float* pages,             \
      const int* cu_seqlens, const int* source, const int* destination, int* arrivals) {                            \
    HopperStateDecode<T, C, delta>::run(p, out, x, a, b, weight, bias, decays, dt_biases, skips, pages, cu_seqlens, \
                                        source, destination, arrivals);                                             \
  }
#define HOPPER_STATE_DECODES(types, T)                         \
  HOPPER_STATE_DECODE(gated_delta_net, types, T, 128, true, 3) \
  HOPPER_STATE_DECODE(mamba2, types, T, 64, false, 5)
HOPPER_STATE_DECODES(bf16, bfloat)
HOPPER_STATE_DECODES(f16, half)
