// SPDX-License-Identifier: Apache-2.0
// gated_delta_net, mamba2 and short_conv; the contract is in ops/recurrent.h, except for the order of two sums.
//
// The recurrences (the gated delta rule of Yang et al. 2024, and Mamba-2's SSD of Dao and Gu 2024) take two launches.
// state_prepare computes all rows at once: convolution and silu, the unit lengths of q and k, and the gates, into
// scratch. In the second launch a threadgroup computes 32 columns of one head's matrix over all tokens of one sequence:
// it reads the state once, keeps it in registers, and writes it once. The second launch also writes the convolution's
// new tail, because rows of the first launch read the old one.
//
// Order of sums. Squared lengths and q * k: as norm_sum.h adds up a group. Sums over the rows of a matrix: row i
// belongs to chain (i / 4) % 4, ascending from +0, and then (c0 + c1) + (c2 + c3). Four neighbouring lanes share a
// column, one chain each, so that a token waits for only a quarter of the additions.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/compat/float_math.h"
#include "kernels/norm_sum.h"
#include "kernels/params/recurrent.h"
#include "kernels/recurrent_parts.h"

// The sequence that a row belongs to, which is the number of sequences that end at or before it. REQUIRES: all lanes of
// a simdgroup call it; all get the result.
FN int state_sequence(DEVICE const int* cu_seqlens, int seqs, int row, uint lane) {
  int before = 0;
  for (int i = (int)lane + 1; i <= seqs; i += 32) before += cu_seqlens[i] <= row ? 1 : 0;
  return simd_sum(before);
}

// The inputs of a convolution at one row: the last `taps` values of a channel, newest last.
template <typename T>
struct ConvWindow {
  DEVICE const T* x;         // the row, at channel 0
  DEVICE const float* tail;  // the sequence's tail; not read if has_tail is false
  i64 x_stride;
  int channels, taps;
  int token;  // index in its sequence
  bool has_tail;
};
template <typename T>
FN float conv_input(THREAD const ConvWindow<T>& w, int channel, int j) {
  const int back = w.taps - 1 - j;
  if (back <= w.token) return to_f(w.x[channel - back * w.x_stride]);
  return w.has_tail ? w.tail[(i64)(w.token + j) * w.channels + channel] : 0.0f;
}
template <typename T>
FN float conv_silu(THREAD const ConvWindow<T>& w, int channel, DEVICE const float* weight, DEVICE const float* bias,
                   int biased) {
  float sum = biased != 0 ? bias[channel] : 0.0f;
  for (int j = 0; j < w.taps; j++) sum = fma(weight[(i64)channel * w.taps + j], conv_input(w, channel, j), sum);
  return q_silu(sum);
}

// The same for channels first, first + 32, ... before `end`. The usual size of four taps has no loop over them: all
// loads of a group of channels come before the first use, so that they are in flight together.
template <typename T, int kCount>
FN void conv_silu_group(THREAD const ConvWindow<T>& w, int first, int end, DEVICE const float* weight,
                        DEVICE const float* bias, int biased, THREAD float* out) {
  if (w.taps != 4) {
    UNROLL for (int i = 0; i < kCount; i++) {
      const int channel = first + 32 * i;
      out[i] = channel < end ? conv_silu(w, channel, weight, bias, biased) : 0.0f;
    }
    return;
  }
  float x[kCount][4], y[kCount][4];
  UNROLL for (int i = 0; i < kCount; i++) {
    const int channel = min(first + 32 * i, end - 1);
    UNROLL for (int j = 0; j < 4; j++) {
      x[i][j] = conv_input(w, channel, j);
      y[i][j] = weight[(i64)channel * 4 + j];
    }
    out[i] = biased != 0 ? bias[channel] : 0.0f;
  }
  UNROLL for (int i = 0; i < kCount; i++) {
    UNROLL for (int j = 0; j < 4; j++) out[i] = fma(y[i][j], x[i][j], out[i]);
    out[i] = first + 32 * i < end ? q_silu(out[i]) : 0.0f;
  }
}

// The same with four taps for kStateRows rows of a sequence, of which `w` is the first: weights are loaded once for all
// of them, and each input once.
template <typename T, int kCount>
struct ConvRows {
  float of[kStateRows][kCount];
  FN void load(THREAD const ConvWindow<T>& w, int first, int end, DEVICE const float* weight, DEVICE const float* bias,
               int biased) {
    UNROLL for (int i = 0; i < kCount; i++) {
      const int channel = min(first + 32 * i, end - 1);
      float x[kStateRows + 3], y[4];
      UNROLL for (int j = 0; j < 4; j++) y[j] = weight[(i64)channel * 4 + j];
      UNROLL for (int j = 0; j < kStateRows + 3; j++) {
        if (w.token + j >= 3) {
          x[j] = to_f(w.x[channel + (j - 3) * w.x_stride]);
        } else {
          x[j] = w.has_tail ? w.tail[(i64)(w.token + j) * w.channels + channel] : 0.0f;
        }
      }
      const float start = biased != 0 ? bias[channel] : 0.0f;
      UNROLL for (int r = 0; r < kStateRows; r++) {
        float sum = start;
        UNROLL for (int j = 0; j < 4; j++) sum = fma(y[j], x[r + j], sum);
        of[r][i] = first + 32 * i < end ? q_silu(sum) : 0.0f;
      }
    }
  }
};

template <typename T>
struct StatePrepare {
  enum { kThreads = kStatePrepareThreads, kResident = 3 };
  typedef NoSmem Smem;

  // q and k of a key head: both normalised to unit length, q then times 1 / sqrt(dk), and their product q * k.
  static FN void pair(CONSTANT const StateParams& p, THREAD const ConvWindow<T>& w, int head, uint lane,
                      DEVICE float* to_row, DEVICE const float* weight, DEVICE const float* bias) {
    const int n = p.matrix_rows;
    float q[8], k[8];
    const int right = p.right + head * n, left = p.left + head * n;
    UNROLL for (int i = 0; i < 8; i += 4) {
      if (32 * i < n) {
        conv_silu_group<T, 4>(w, right + 32 * i + (int)lane, right + n, weight, bias, p.biased, q + i);
        conv_silu_group<T, 4>(w, left + 32 * i + (int)lane, left + n, weight, bias, p.biased, k + i);
      } else {
        UNROLL for (int j = 0; j < 4; j++) q[i + j] = k[i + j] = 0.0f;
      }
    }
    finish_pair(p, q, k, head, lane, to_row);
  }
  static FN void finish_pair(CONSTANT const StateParams& p, THREAD float* q, THREAD float* k, int head, uint lane,
                             DEVICE float* to_row) {
    const int n = p.matrix_rows;
    const float q_inverse = 1.0f / sqrt(norm_sum_of_squares(q) + 1e-6f);
    const float k_inverse = 1.0f / sqrt(norm_sum_of_squares(k) + 1e-6f);
    const float scale = 1.0f / sqrt((float)n);
    UNROLL for (int i = 0; i < 8; i++) {
      const int c = (int)lane + 32 * i;
      q[i] = (q[i] * q_inverse) * scale;
      k[i] = k[i] * k_inverse;
      if (c >= n) continue;
      if (p.chunked != 0) {  // the products of chunks take them as T
        ((DEVICE T*)(to_row + p.right))[head * n + c] = to<T>(q[i]);
        ((DEVICE T*)(to_row + p.left))[head * n + c] = to<T>(k[i]);
      } else {
        to_row[p.right + head * n + c] = q[i];
        to_row[p.left + head * n + c] = k[i];
      }
    }
    const float qk = simd_sum(norm_fold(q[0] * k[0], q[1] * k[1], q[2] * k[2], q[3] * k[3], q[4] * k[4], q[5] * k[5],
                                        q[6] * k[6], q[7] * k[7]));
    if (lane == 0) to_row[p.channels + head] = qk;
  }

  static FN void gates(CONSTANT const StateParams& p, int row, uint lane, DEVICE float* to_row, DEVICE const T* a,
                       DEVICE const T* b, DEVICE const float* decay, DEVICE const float* dt_bias) {
    DEVICE float* g = to_row + p.channels + p.pairs;
    DEVICE float* step = g + p.heads;
    for (int h = (int)lane; h < p.heads; h += 32) {
      float dt = q_softplus(to_f(a[row * p.a_stride + h]) + dt_bias[h]);
      if (p.delta != 0) {
        step[h] = q_sigmoid(to_f(b[row * p.b_stride + h]));
      } else {
        dt = dt < p.least ? p.least : dt;
        dt = dt > p.most ? p.most : dt;
        step[h] = dt;
      }
      g[h] = p.chunked != 0 ? dt * decay[h] : q_exp(dt * decay[h]);
    }
  }

  // A channel that only the convolution changes. The products of chunks take Mamba-2's B and C as T.
  static FN void put_plain(CONSTANT const StateParams& p, DEVICE float* to_row, int channel, float v) {
    if (p.chunked == 0 || p.delta != 0 || channel < p.left) {
      to_row[channel] = v;
    } else {
      const int first = channel < p.right ? p.left : p.right;
      ((DEVICE T*)(to_row + first))[channel - first] = to<T>(v);
    }
  }

  // A task for kStateRows rows of one sequence.
  static FN void several_rows(CONSTANT const StateParams& p, THREAD const ConvWindow<T>& w, int task, uint lane,
                              DEVICE float* to_row, DEVICE const float* weight, DEVICE const float* bias) {
    if (task < p.pairs) {
      const int n = p.matrix_rows, right = p.right + task * n, left = p.left + task * n;
      ConvRows<T, 4> q, k;
      q.load(w, right + (int)lane, right + n, weight, bias, p.biased);
      k.load(w, left + (int)lane, left + n, weight, bias, p.biased);
      UNROLL for (int r = 0; r < kStateRows; r++) {
        float of_q[8], of_k[8];
        UNROLL for (int i = 0; i < 8; i++) {
          of_q[i] = i < 4 ? q.of[r][i & 3] : 0.0f;
          of_k[i] = i < 4 ? k.of[r][i & 3] : 0.0f;
        }
        finish_pair(p, of_q, of_k, task, lane, to_row + r * p.scratch);
      }
      return;
    }
    const int begin = 2 * p.pairs * p.matrix_rows + (task - p.pairs) * kStatePlain;
    ConvRows<T, kStatePlain / 32> y;
    y.load(w, begin + (int)lane, p.channels, weight, bias, p.biased);
    UNROLL for (int r = 0; r < kStateRows; r++) {
      UNROLL for (int i = 0; i < kStatePlain / 32; i++) {
        const int channel = begin + (int)lane + 32 * i;
        if (channel < p.channels) put_plain(p, to_row + r * p.scratch, channel, y.of[r][i]);
      }
    }
  }

  static FN void run(Ctx c, CONSTANT const StateParams& p, TGROUP Smem& sm, DEVICE float* scratch, DEVICE const T* x,
                     DEVICE const T* a, DEVICE const T* b, DEVICE const float* weight, DEVICE const float* bias,
                     DEVICE const float* decay, DEVICE const float* dt_bias, DEVICE const float* pages,
                     DEVICE const int* cu_seqlens, DEVICE const int* source) {
    const uint index = c.tgx * (uint)(kThreads / 32) + c.sg;  // the host checks that it fits
    const uint blocks = (uint)((p.rows + p.row_block - 1) / p.row_block);
    const int task = (int)(index / blocks), first = (int)(index % blocks) * p.row_block;
    if (task >= p.tasks) return;
    const int last = min(first + p.row_block, p.rows);
    for (int row = first; row < last; row++) {
      DEVICE float* to_row = scratch + row * p.scratch;
      if (task == p.tasks - 1) {
        gates(p, row, c.lane, to_row, a, b, decay, dt_bias);
        continue;
      }
      const int s = state_sequence(cu_seqlens, p.seqs, row, c.lane);
      const int page = source[s];
      ConvWindow<T> w;
      w.x = x + row * p.x_stride;
      w.tail = pages + (page < 0 ? 0 : page * p.page);
      w.x_stride = p.x_stride;
      w.channels = p.channels;
      w.taps = p.taps;
      w.token = row - cu_seqlens[s];
      w.has_tail = page >= 0;
      if (row == first && p.row_block == kStateRows && first + kStateRows <= cu_seqlens[s + 1]) {
        several_rows(p, w, task, c.lane, to_row, weight, bias);
        return;
      }
      one_row(p, w, task, c.lane, to_row, weight, bias);
    }
  }

  static FN void one_row(CONSTANT const StateParams& p, THREAD const ConvWindow<T>& w, int task, uint lane,
                         DEVICE float* to_row, DEVICE const float* weight, DEVICE const float* bias) {
    if (task < p.pairs) {
      pair(p, w, task, lane, to_row, weight, bias);
      return;
    }
    const int begin = 2 * p.pairs * p.matrix_rows + (task - p.pairs) * kStatePlain;
    float y[kStatePlain / 32];
    conv_silu_group<T, kStatePlain / 32>(w, begin + (int)lane, p.channels, weight, bias, p.biased, y);
    UNROLL for (int i = 0; i < kStatePlain / 32; i++) {
      const int channel = begin + (int)lane + 32 * i;
      if (channel < p.channels) put_plain(p, to_row, channel, y[i]);
    }
  }
};

KERNEL(state_prepare_f32, StatePrepare<float>, StateParams, float, const float, const float, const float, const float,
       const float, const float, const float, const float, const int, const int)
KERNEL(state_prepare_f16, StatePrepare<half>, StateParams, float, const half, const half, const half, const float,
       const float, const float, const float, const float, const int, const int)
KERNEL(state_prepare_bf16, StatePrepare<bfloat>, StateParams, float, const bfloat, const bfloat, const bfloat,
       const float, const float, const float, const float, const float, const int, const int)

// The recurrence. kRows is at least the number of rows of the matrix; further rows are zeros. kBlock is the number of
// tokens whose inputs are in threadgroup memory at a time: several for prefill; one for decode, which leaves registers
// for more threadgroups on a multiprocessor.
template <int kRows, int kBlock>
struct StateSmem {
  float4 left[kBlock][kRows / 4], right[kBlock][kRows / 4];
  float own[kBlock][kStateColumns];
  float decay[kBlock], step[kBlock], cross[kBlock];
};

// The inputs of a block of tokens, between scratch and threadgroup memory.
template <int kRows, int kBlock>
struct StateInputs {
  enum {
    kShared = 2 * kBlock * kRows / kStateThreads,
    kOwn = (kBlock * kStateColumns + kStateThreads - 1) / kStateThreads
  };
  float shared[kShared];
  float own[kOwn];
  float decay, step, cross;
};

// The work of a threadgroup.
struct StatePlace {
  int sequence, head, key, column;  // column: the first of the threadgroup's columns
  int first, tokens;                // the sequence's first row, and its number of rows
};

template <int kRows, int kBlock>
FN void state_load(Ctx c, CONSTANT const StateParams& p, StatePlace at, DEVICE const float* scratch, int begin,
                   THREAD StateInputs<kRows, kBlock>& in) {
  DEVICE const float* rows = scratch + (at.first + begin) * p.scratch;
  const int tokens = at.tokens - begin;
  UNROLL for (int n = 0; n < StateInputs<kRows, kBlock>::kShared; n++) {
    const int e = (int)c.tid + n * kStateThreads;
    const int i = e % kRows, t = e / kRows % kBlock, which = e / (kRows * kBlock);
    const int from = (which == 0 ? p.left : p.right) + at.key * p.matrix_rows + i;
    in.shared[n] = t < tokens && i < p.matrix_rows ? rows[t * p.scratch + from] : 0.0f;
  }
  UNROLL for (int n = 0; n < StateInputs<kRows, kBlock>::kOwn; n++) {
    const int e = (int)c.tid + n * kStateThreads;
    const int column = at.column + e % kStateColumns, t = e / kStateColumns;
    const bool there = t < tokens && column < p.matrix_cols;
    in.own[n] = there ? rows[t * p.scratch + p.own + at.head * p.matrix_cols + column] : 0.0f;
  }
  in.decay = in.step = in.cross = 0.0f;
  if (c.tid < kBlock && (int)c.tid < tokens) {
    DEVICE const float* scalars = rows + c.tid * p.scratch + p.channels;
    in.decay = scalars[p.pairs + at.head];
    in.step = scalars[p.pairs + p.heads + at.head];
    if (p.delta != 0) in.cross = scalars[at.key];
  }
}

template <int kRows, int kBlock>
FN void state_store(Ctx c, TGROUP StateSmem<kRows, kBlock>& sm, THREAD const StateInputs<kRows, kBlock>& in) {
  UNROLL for (int n = 0; n < StateInputs<kRows, kBlock>::kShared; n++) {
    const int e = (int)c.tid + n * kStateThreads;
    const int i = e % kRows, t = e / kRows % kBlock;
    TGROUP float* row = e / (kRows * kBlock) == 0 ? (TGROUP float*)sm.left[t] : (TGROUP float*)sm.right[t];
    row[i] = in.shared[n];
  }
  UNROLL for (int n = 0; n < StateInputs<kRows, kBlock>::kOwn; n++) {
    const int e = (int)c.tid + n * kStateThreads;
    if (e < kBlock * kStateColumns) sm.own[e / kStateColumns][e % kStateColumns] = in.own[n];
  }
  if (c.tid < kBlock) {
    sm.decay[c.tid] = in.decay;
    sm.step[c.tid] = in.step;
    sm.cross[c.tid] = in.cross;
  }
}

FN float state_fold(float chain) {
  chain += simd_shuffle_xor(chain, 1u);
  return chain + simd_shuffle_xor(chain, 2u);
}

// One token of the gated delta rule on a thread's quarter of a column; s[4r + e] is row 16r + 4 * part + e. With S' = g
// S:  d = beta (v - S'^T k),  S = S' + k d^T,  y = S^T q.
template <int kRows, int kBlock>
struct DeltaStep {
  static FN float run(TGROUP const StateSmem<kRows, kBlock>& sm, int t, int part, float v, float skip,
                      THREAD float* s) {
    float m = 0.0f, y = 0.0f;
    UNROLL for (int r = 0; r < kRows / 16; r++) {
      const float4 k = sm.left[t][4 * r + part];
      const float4 q = sm.right[t][4 * r + part];
      m = fma(k.x, s[4 * r], m);
      y = fma(q.x, s[4 * r], y);
      m = fma(k.y, s[4 * r + 1], m);
      y = fma(q.y, s[4 * r + 1], y);
      m = fma(k.z, s[4 * r + 2], m);
      y = fma(q.z, s[4 * r + 2], y);
      m = fma(k.w, s[4 * r + 3], m);
      y = fma(q.w, s[4 * r + 3], y);
    }
    const float g = sm.decay[t];
    m = state_fold(m);
    y = state_fold(y);
    const float d = fma(m, -g, v) * sm.step[t];
    UNROLL for (int r = 0; r < kRows / 16; r++) {
      const float4 k = sm.left[t][4 * r + part];
      s[4 * r] = fma(k.x, d, s[4 * r] * g);
      s[4 * r + 1] = fma(k.y, d, s[4 * r + 1] * g);
      s[4 * r + 2] = fma(k.z, d, s[4 * r + 2] * g);
      s[4 * r + 3] = fma(k.w, d, s[4 * r + 3] * g);
    }
    return fma(d, sm.cross[t], y * g);
  }
};

template <int kRows, int kBlock>
struct SsdStep {
  static FN float run(TGROUP const StateSmem<kRows, kBlock>& sm, int t, int part, float x, float skip,
                      THREAD float* s) {
    const float g = sm.decay[t], u = x * sm.step[t];
    float y = 0.0f;
    UNROLL for (int r = 0; r < kRows / 16; r++) {
      const float4 b = sm.left[t][4 * r + part];
      const float4 q = sm.right[t][4 * r + part];
      s[4 * r] = fma(b.x, u, s[4 * r] * g);
      y = fma(q.x, s[4 * r], y);
      s[4 * r + 1] = fma(b.y, u, s[4 * r + 1] * g);
      y = fma(q.y, s[4 * r + 1], y);
      s[4 * r + 2] = fma(b.z, u, s[4 * r + 2] * g);
      y = fma(q.z, s[4 * r + 2], y);
      s[4 * r + 3] = fma(b.w, u, s[4 * r + 3] * g);
      y = fma(q.w, s[4 * r + 3], y);
    }
    return fma(x, skip, state_fold(y));
  }
};

template <typename Step, int kRows, int kBlock>
struct Recurrence {
  // Decode waits for memory, so many threadgroups should wait at a time.
  enum { kThreads = kStateThreads, kResident = kBlock == 1 && kRows <= 128 ? 5 : 1 };
  typedef StateSmem<kRows, kBlock> Smem;

  static FN StatePlace place(Ctx c, CONSTANT const StateParams& p, DEVICE const int* cu_seqlens) {
    StatePlace at;
    const int block = (int)c.tgx % p.blocks, rest = (int)c.tgx / p.blocks;
    at.head = rest % p.heads;
    at.sequence = rest / p.heads;
    at.key = p.tiled != 0 ? at.head % p.shared : at.head / (p.heads / p.shared);
    at.column = block * kStateColumns;
    at.first = cu_seqlens[at.sequence];
    at.tokens = cu_seqlens[at.sequence + 1] - at.first;
    return at;
  }

  // Writes a thread's part of a column.
  static FN void put(DEVICE float* to, int own_rows, int width, THREAD const float* s) {
    UNROLL for (int r = 0; r < kRows / 4; r++) {
      const int i = (r / 4) * 16 + r % 4;
      if (i < own_rows) to[i * width] = s[r];
    }
  }

  // Each channel's tail is written by one thread: a head's own channels by the threadgroup of the columns, shared
  // channels by the first head that uses them.
  static FN void tails(Ctx c, CONSTANT const StateParams& p, StatePlace at, DEVICE const uchar* x,
                       DEVICE const float* from, DEVICE float* into, bool has_tail) {
    const int column = at.column + (int)c.tid;
    if (c.tid < kStateColumns && column < p.matrix_cols) {
      state_tail(p, at.first, at.tokens, x, from, into, has_tail, p.own + at.head * p.matrix_cols + column);
    }
    const int first_head = p.tiled != 0 ? at.key : at.key * (p.heads / p.shared);
    if (at.column != 0 || at.head != first_head) return;
    for (int i = (int)c.tid; i < p.matrix_rows; i += kThreads) {
      state_tail(p, at.first, at.tokens, x, from, into, has_tail, p.left + at.key * p.matrix_rows + i);
      state_tail(p, at.first, at.tokens, x, from, into, has_tail, p.right + at.key * p.matrix_rows + i);
    }
  }

  static FN void run(Ctx c, CONSTANT const StateParams& p, TGROUP Smem& sm, DEVICE uchar* out, DEVICE const uchar* x,
                     DEVICE const float* scratch, DEVICE const float* skip, DEVICE float* pages,
                     DEVICE const int* cu_seqlens, DEVICE const int* source, DEVICE const int* destination,
                     DEVICE const int* row_destination) {
    const StatePlace at = place(c, p, cu_seqlens);
    const int source_page = source[at.sequence], destination_page = destination[at.sequence];
    if (at.tokens == 0 && source_page == destination_page) return;
    const bool has_state = source_page >= 0;
    DEVICE const float* from = pages + (has_state ? source_page * p.page : 0);
    DEVICE float* into = pages + destination_page * p.page;

    // Within a head, columns are stored in slices of 64 (ops/recurrent.h).
    const int part = (int)(c.lane & 3), mine = (int)(c.sg * 8 + (c.lane >> 2)), column = at.column + mine;
    const int slice = column / 64 * 64, width = min(64, p.matrix_cols - slice);
    const bool inside = column < p.matrix_cols;
    const i64 matrix = (i64)p.channels * (p.taps - 1) + (i64)at.head * p.matrix_rows * p.matrix_cols +
                       (i64)p.matrix_rows * slice + (column - slice);
    float s[kRows / 4];
    const int own_rows = inside ? p.matrix_rows - 4 * part : 0;  // from the thread's first row on
    DEVICE const float* old = from + matrix + 4 * part * width;
    UNROLL for (int r = 0; r < kRows / 4; r++) {
      const int i = (r / 4) * 16 + r % 4;
      s[r] = has_state && i < own_rows ? old[i * width] : 0.0f;
    }

    StateInputs<kRows, kBlock> in;
    const float d = p.delta != 0 ? 0.0f : skip[at.head];
    if (at.tokens > 0) state_load<kRows, kBlock>(c, p, at, scratch, 0, in);
    for (int begin = 0; begin < at.tokens; begin += kBlock) {
      TG_BARRIER();
      state_store<kRows, kBlock>(c, sm, in);
      TG_BARRIER();
      const int count = min(kBlock, at.tokens - begin);
      if (begin + count < at.tokens) state_load<kRows, kBlock>(c, p, at, scratch, begin + count, in);
      for (int t = 0; t < count; t++) {
        const float y = Step::run(sm, t, part, sm.own[t][mine], d, s);
        if (inside && part == 0) {
          typed_store(out, (at.first + begin + t) * p.out_stride + at.head * p.matrix_cols + column, p.type, y);
        }
        const int page = p.keeps_rows != 0 ? row_destination[at.first + begin + t] : -1;
        if (page >= 0) put(pages + page * p.page + matrix + 4 * part * width, own_rows, width, s);
      }
    }

    put(into + matrix + 4 * part * width, own_rows, width, s);
    tails(c, p, at, x, from, into, has_state);
    if (p.keeps_rows == 0) return;
    // The last row comes first, because the page of the first one may be the source.
    for (int t = at.tokens - 1; t > 0; t--) {
      const int page = row_destination[at.first + t - 1];
      StatePlace before = at;
      before.tokens = t;
      if (page >= 0) tails(c, p, before, x, from, pages + page * p.page, has_state);
    }
  }
};

typedef Recurrence<DeltaStep<128, kStateBlock>, 128, kStateBlock> GatedDeltaNet_r128;
typedef Recurrence<DeltaStep<256, kStateBlock>, 256, kStateBlock> GatedDeltaNet_r256;
typedef Recurrence<SsdStep<128, kStateBlock>, 128, kStateBlock> Mamba2_r128;
typedef Recurrence<SsdStep<256, kStateBlock>, 256, kStateBlock> Mamba2_r256;
typedef Recurrence<DeltaStep<128, 1>, 128, 1> GatedDeltaNet_r128_one;
typedef Recurrence<DeltaStep<256, 1>, 256, 1> GatedDeltaNet_r256_one;
typedef Recurrence<SsdStep<128, 1>, 128, 1> Mamba2_r128_one;
typedef Recurrence<SsdStep<256, 1>, 256, 1> Mamba2_r256_one;
#define STATE_KERNEL(name, Body)                                                                             \
  KERNEL(name, Body, StateParams, uchar, const uchar, const float, const float, float, const int, const int, \
         const int, const int)
STATE_KERNEL(gated_delta_net_r128, GatedDeltaNet_r128)
STATE_KERNEL(gated_delta_net_r256, GatedDeltaNet_r256)
STATE_KERNEL(mamba2_r128, Mamba2_r128)
STATE_KERNEL(mamba2_r256, Mamba2_r256)
STATE_KERNEL(gated_delta_net_r128_one, GatedDeltaNet_r128_one)
STATE_KERNEL(gated_delta_net_r256_one, GatedDeltaNet_r256_one)
STATE_KERNEL(mamba2_r128_one, Mamba2_r128_one)
STATE_KERNEL(mamba2_r256_one, Mamba2_r256_one)

// LFM2's short convolution, in one launch. A thread has one channel, takes blocks of a sequence's tokens and computes
// each token from its inputs. The threads of part 0 have the first block, the only one that reads the old tail; so they
// can write the new one.
template <typename T>
struct ShortConv {
  enum { kThreads = kShortConvThreads };
  typedef NoSmem Smem;

  // B * x of one token of the sequence.
  static FN float product(CONSTANT const ShortConvParams& p, DEVICE const T* first, int token, int channel) {
    DEVICE const T* row = first + token * p.x_stride + channel;
    return to_f(row[0]) * to_f(row[2 * p.channels]);
  }
  static FN float input(CONSTANT const ShortConvParams& p, DEVICE const T* first, DEVICE const float* tail,
                        bool has_tail, int token, int channel) {
    if (token >= 0) return product(p, first, token, channel);
    return has_tail ? tail[(i64)(p.taps - 1 + token) * p.channels + channel] : 0.0f;
  }

  // The tail after so many tokens. It may replace the old one: a value is read before one that is written in its place.
  static FN void write_tail(CONSTANT const ShortConvParams& p, DEVICE const T* first, DEVICE const float* tail,
                            bool has_tail, int tokens, int channel, DEVICE float* into) {
    for (int j = 0; j < p.taps - 1; j++) {
      into[(i64)j * p.channels + channel] = input(p, first, tail, has_tail, tokens - p.taps + 1 + j, channel);
    }
  }

  static FN void run(Ctx c, CONSTANT const ShortConvParams& p, TGROUP Smem& sm, DEVICE T* out, DEVICE const T* bcx,
                     DEVICE const float* weight, DEVICE const float* bias, DEVICE float* pages,
                     DEVICE const int* cu_seqlens, DEVICE const int* source, DEVICE const int* destination,
                     DEVICE const int* row_destination) {
    const int channel = (int)(c.tgx * kThreads + c.tid), s = (int)c.tgy, part = (int)c.tgz;
    if (channel >= p.channels) return;
    const int begin = cu_seqlens[s], tokens = cu_seqlens[s + 1] - begin;
    const bool has_tail = source[s] >= 0;
    DEVICE const float* tail = pages + (has_tail ? source[s] * p.page : 0);
    DEVICE const T* first = bcx + begin * p.x_stride;
    for (int block = part * kShortConvBlock; block < tokens; block += p.parts * kShortConvBlock) {
      const int end = min(tokens, block + (int)kShortConvBlock);
      for (int t = block; t < end; t++) {
        float sum = p.biased != 0 ? bias[channel] : 0.0f;
        for (int j = 0; j < p.taps; j++) {
          const float v = input(p, first, tail, has_tail, t - p.taps + 1 + j, channel);
          sum = fma(weight[(i64)channel * p.taps + j], v, sum);
        }
        const float gate = to_f(first[t * p.x_stride + p.channels + channel]);
        out[(begin + t) * p.out_stride + channel] = to<T>(gate * sum);
      }
    }
    if (part != 0) return;
    write_tail(p, first, tail, has_tail, tokens, channel, pages + destination[s] * p.page);
    if (p.keeps_rows == 0) return;
    // The last row comes first, because the page of the first one may be the source.
    for (int t = tokens - 1; t > 0; t--) {
      const int page = row_destination[begin + t - 1];
      if (page >= 0) write_tail(p, first, tail, has_tail, t, channel, pages + page * p.page);
    }
  }
};
KERNEL(short_conv_f32, ShortConv<float>, ShortConvParams, float, const float, const float, const float, float,
       const int, const int, const int, const int)
KERNEL(short_conv_f16, ShortConv<half>, ShortConvParams, half, const half, const float, const float, float, const int,
       const int, const int, const int)
KERNEL(short_conv_bf16, ShortConv<bfloat>, ShortConvParams, bfloat, const bfloat, const float, const float, float,
       const int, const int, const int, const int)
