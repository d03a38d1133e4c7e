// SPDX-License-Identifier: Apache-2.0
// The program of kernels/cuda/decode_step.cuh (sm_90a): the ops of a decode step of few sequences in one launch.
#pragma once

#include "kernels/compat/types.h"
#include "kernels/params/hopper.h"
#include "kernels/params/sampling.h"

enum {
  kStepThreads = 288,                    // eight warps that compute, one that brings weights and pages in
  kStepWarps = 8,                        // that compute
  kStepRows = 8,                         // sequences at most: one token each
  kStepChunk = 1024,                     // k of eight rows of W in a slot of the ring
  kStepSlotBytes = 8 * (2 * 1024 + 16),  // also 64 positions of K (heads of 128), or 512 of 16 columns of V
  kStepSlice = 16,                       // columns of V that a threadgroup takes
  kStepMostGroup = 8,                    // query heads of a kv head
  kStepMostSlots = 32,
  kStepOpsAhead = 4,  // of the program, in shared memory
  kStepExchanges = 3  // buffers that ops take in turn
};

enum StepKind { kStepLinear = 0, kStepAttention = 1 };

// y[m, n] = x[m, k] W[n, k]^T with its norm and its epilogue (HopperEpilogue). x is what the op before gave, or in the
// first op lies in memory. What kHopperStoreF32 has goes to memory alone, so it is the last op of a program.
struct StepLinearOp {
  const void* x;  // null: from the op before
  void* out;      // null: for the op after alone
  const void* w;
  const float* bias;
  const float* norm;
  const float* residual;
  int n, k;
  short halves;    // eights of W's rows in a tile: one, or two (gated: eight of the gate and their eight of the up)
  short lot;       // tiles that a threadgroup has in progress
  int each, rest;  // tiles of a threadgroup; the first `rest` have one more
  int x_stride, out_stride, residual_stride;  // elements
  short epilogue, activation;
  short x_by_token, residual_by_token;  // 1: a row is that of DecodeStepParams::table which the token names
  float eps, scale, limit;
  float inverse_k;  // exact, or 0
};

// Norm, rope and page write of this step's q, k and v, and attention over the pages. One token a sequence.
struct StepAttentionOp {
  void* out;  // null: for the op after alone
  char* pages;
  const float* q_norm;  // or null
  const float* k_norm;
  const float* cosines;
  const float* sines;
  const int* block_tables;
  i64 page_stride;  // bytes
  int block_shift;  // a block has 1 << block_shift positions, eight at least
  int max_blocks;
  int out_stride;
  int rot_dim, interleaved;
  float eps, c;  // of the norms; scale * log2(e)
};

struct alignas(16) StepOp {
  int kind;
  int padding;
  union {
    StepLinearOp linear;
    StepAttentionOp attention;
  };
};

struct DecodeStepParams {
  int rows;             // sequences
  int ops;              // of the program
  int heads, kv_heads;  // of all attention in it
  int slots;            // of the ring
  int ring;             // where it begins: step_ring_at()
  int positions;        // of a row of scores: a multiple of 1024
  i64 exchanged;        // entries of one of the kStepExchanges buffers
  const void* table;    // rows of T, where an op takes them by token
  const int* tokens;    // of each sequence
  i64 table_stride;     // elements
  float table_scale;
  SamplePartial* bests;  // [rows][threadgroups]: each one's largest logit, where the last op is the head; or null
};

// Bytes: what a threadgroup keeps (HopperStep::Shared); then x or T(p), which take turns; then the ring.
constexpr int step_rows_at(int head_dim) {
  return 1024 + (kStepOpsAhead + 1) * (int)sizeof(StepOp) + 4096 + kStepMostGroup * (head_dim + 8) * 2;
}
constexpr int step_ring_at(int head_dim, int rows, int most_k, int group) {
  const int x = rows * (most_k + 8) * 2, p = group * (kHopperSplit + 8) * 2;
  return (step_rows_at(head_dim) + (x > p ? x : p) + 127) / 128 * 128;
}
