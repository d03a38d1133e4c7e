// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/recurrent.h, and how they divide their work.
#pragma once

#include "kernels/compat/types.h"

enum {
  kStatePrepareThreads = 256,  // eight tasks, one simdgroup each
  kStateRows = 4,              // rows of a sequence that a task of a prefill takes together
  kStatePlain = 128,           // channels of a task that only applies the convolution
  kStateColumns = 32,          // columns of a state's matrix per threadgroup
  kStateBlock = 8,             // tokens whose inputs are in threadgroup memory at a time
  kStateThreads = 128,         // four threads per column
  kStateMostTaps = 8,          // of a convolution (kMaxConvKernel of ops/recurrent.h)
  kDeltaChunk = 64,      // tokens between two states of a gated delta net in chunks (kStateChunk of ops/recurrent.h)
  kDeltaRows = 16,       // tokens of a chunk that are computed together
  kDeltaColumns = 32,    // columns of a state's matrix per threadgroup
  kDeltaMostRows = 128,  // rows of such a matrix
  kDeltaThreads = 128,
  kDeltaKeyLd = kDeltaMostRows + 8,  // elements from row to row in threadgroup memory: no bank conflicts
  kDeltaTokenLd = kDeltaChunk + 8,
  kDeltaTile = kDeltaRows * kDeltaTokenLd,  // a matrix of weights
  kDeltaSumLd = kDeltaColumns + 4,
  kDeltaInnerLd = kDeltaRows + 1,
  kShortConvThreads = 128,  // one channel each
  kShortConvBlock = 8       // successive tokens per thread; at least as many as the convolution's tail has rows
};

// kernels/cuda/state_decode.cuh: rows of a matrix, and the shared memory for one of so many columns.
enum { kHopperStateRows = 128 };
constexpr int hopper_state_memory(int columns) {
  return 4 * (kHopperStateRows * columns + 2 * kHopperStateRows + 9 * columns) + 128;
}

// kernels/cuda/delta_decode.cuh.
enum { kHopperDeltaThreads = 512, kHopperDeltaMemory = 110 << 10 };

enum { kStateF32 = 0, kStateF16 = 1, kStateBF16 = 2 };

// Parameters of gated_delta_net and mamba2. A row of scratch has: the outputs of convolution and silu [channels] (q and
// k of a delta net normalised to unit length); q * k [pairs]; decay [heads]; beta or dt [heads]. Grid of state_prepare:
// (tasks * blocks of rows / 8, rounded up); of the recurrence: (seqs * heads * blocks).
struct StateParams {
  i64 x_stride, a_stride, b_stride, out_stride;  // elements from row to row
  i64 page;                                      // floats from page to page
  i64 scratch;                                   // floats from row to row
  int type;                                      // element type of x and out
  int rows, seqs;
  int row_block;  // rows of a task of state_prepare: kStateRows or 1
  int channels, taps, biased;
  int delta;   // 1: gated delta net, 0: Mamba-2
  int pairs;   // key heads, each with a q and a k; 0 for Mamba-2
  int tasks;   // tasks per row
  int heads;   // value heads
  int shared;  // key heads, or Mamba-2's groups: what several value heads share
  int tiled;   // value head h uses key head h % shared, otherwise h / (heads / shared)
  int matrix_rows, matrix_cols;
  int left, right, own;  // first channels of k, q and v, or of B, C and x
  int blocks;            // blocks of columns per head
  int keeps_rows;        // 1: there are row destinations
  float least, most;     // range of Mamba-2's dt
  // States in chunks (kernels/delta_chunks.h). Scratch then has q and k (C and B) as the type of x, logarithms of
  // decays, no q * k, and behind the rest the products of keys and queries with keys [shared][2][64].
  int chunked;
  i64 scores;                                               // floats from the start of a row of scratch
  i64 chunk_state, chunk_values, chunk_keys, chunk_decays;  // bytes from the start of a page
};

// Grid: (channels / kShortConvThreads rounded up, seqs, parts).
struct ShortConvParams {
  i64 x_stride, out_stride;
  i64 page;  // floats from page to page
  int seqs, channels, taps, biased;
  int parts;       // threadgroups that take a sequence's blocks of tokens in turn
  int keeps_rows;  // 1: there are row destinations
};
