// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/recurrent.h, and how they cut their work.
#pragma once

#include "kernels/compat/types.h"

enum {
  kStatePrepareThreads = 256,  // eight tasks, a simdgroup each
  kStatePlain = 128,           // channels of a task that only convolves
  kStateColumns = 32,          // of a state's matrix, in one threadgroup
  kStateBlock = 8,             // tokens whose inputs lie in threadgroup memory at a time
  kStateThreads = 128,         // four to a column
  kShortConvThreads = 128,     // a channel each
  kShortConvBlock = 8          // tokens that a thread takes one after another; at least as many as a tail has rows
};

enum { kStateF32 = 0, kStateF16 = 1, kStateBF16 = 2 };

// Of gated_delta_net and mamba2. A row of scratch: what the convolution and silu gave (q and k of a delta net to their
// lengths), [channels]; q * k, [pairs]; decay, [heads]; beta or dt, [heads].
// Prepare's grid: (tasks * rows / 8, rounded up); the recurrence's: (seqs * heads * blocks).
struct StateParams {
  i64 x_stride, a_stride, b_stride, out_stride;  // elements from row to row
  i64 page;                                      // floats from page to page
  i64 scratch;                                   // floats from row to row
  int type;                                      // of x and out
  int rows, seqs;
  int channels, taps, biased;
  int delta;   // a gated delta net
  int pairs;   // key heads, each with its q and its k; 0: Mamba-2
  int tasks;   // of a row
  int heads;   // value heads
  int shared;  // key heads, or Mamba-2's groups
  int tiled;   // head h belongs to h % shared, else to h / (heads / shared)
  int matrix_rows, matrix_cols;
  int left, right, own;  // first channels of k and q and v, or of B and C and x
  int blocks;            // of columns, in a head
  float least, most;     // Mamba-2's dt
};

// Grid: (channels / kShortConvThreads rounded up, seqs, parts).
struct ShortConvParams {
  i64 x_stride, out_stride;
  i64 page;  // floats from page to page
  int seqs, channels, taps, biased;
  int parts;  // threadgroups that take blocks of tokens in turn
};
