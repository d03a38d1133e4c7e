// SPDX-License-Identifier: Apache-2.0
// The program that kernels/cuda/decode_step.cuh (sm_90a) runs: the ops of a decode step of a few sequences, in one
// launch.
#pragma once

#include "kernels/compat/types.h"
#include "kernels/params/hopper.h"
#include "kernels/params/sampling.h"

enum {
  kStepThreads = 288,  // eight warps that compute, and one that loads weights and pages
  kStepWarps = 8,      // warps that compute
  kStepRows = 8,       // most sequences, one token each
  kStepChunk = 1024,   // length, in k, of a chunk of eight rows of W: one slot of the ring
  // A slot may also hold 64 positions of K (head size 128), or 512 positions of 16 columns of V.
  kStepSlotBytes = 8 * (2 * 1024 + 16),
  kStepSlice = 16,     // columns of V per threadgroup
  kStepMostGroup = 8,  // most query heads per KV head
  kStepMostSlots = 32,
  kStepOpsAhead = 4,  // ops of the program that are in shared memory at a time
  kStepExchanges = 3  // buffers that successive ops use in turn
};

enum StepKind { kStepLinear = 0, kStepAttention = 1 };

// y[m, n] = x[m, k] W[n, k]^T with an optional norm before it and an epilogue (HopperEpilogue) after it. x is the
// output of the previous op; the first op reads it from memory. kHopperStoreF32 writes to memory only, so it can only
// be the last op of a program.
struct StepLinearOp {
  const void* x;  // null: the output of the previous op
  void* out;      // null: only the next op reads the output
  const void* w;
  const float* bias;
  const float* norm;
  const float* residual;
  int n, k;
  short halves;    // groups of eight rows of W in a tile: 1, or 2 (gated: eight of gate, eight of up)
  short lot;       // tiles that a threadgroup has in progress
  int each, rest;  // tiles per threadgroup; the first `rest` have one more
  int x_stride, out_stride, residual_stride;  // elements
  short epilogue, activation;
  short x_by_token, residual_by_token;  // 1: row i is the row of DecodeStepParams::table for the token of sequence i
  float eps, scale, limit;
  float inverse_k;  // 1 / k where that is exact (k is a power of two), otherwise 0
};

// Norm, rope and page write of this step's q, k and v, and attention over the pages. One token per sequence.
struct StepAttentionOp {
  void* out;  // null: only the next op reads the output
  char* pages;
  const float* q_norm;  // or null
  const float* k_norm;
  const float* cosines;
  const float* sines;
  const int* block_tables;
  i64 page_stride;  // bytes
  int block_shift;  // a block has 1 << block_shift positions, at least eight
  int max_blocks;
  int out_stride;
  int rot_dim, interleaved;
  float eps, c;  // eps of the norms; c = scale * log2(e)
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
  int ops;              // length of the program
  int heads, kv_heads;  // the same for all attention ops of the program
  int slots;            // slots of the ring
  int ring;             // byte offset of the ring in shared memory: step_ring_at()
  int positions;        // length of a row of scores, a multiple of 1024
  i64 exchanged;        // entries in each of the kStepExchanges buffers
  const void* table;    // rows of T (the embedding), for ops that read a row by token
  const int* tokens;    // [rows]
  i64 table_stride;     // elements
  float table_scale;
  // [rows][threadgroups]: the largest logit of each, if the last op is the LM head; otherwise null.
  SamplePartial* bests;
};

// Shared memory, in bytes: HopperStep::Shared, then x or T(p) (never both at a time), then the ring.
constexpr int step_rows_at(int head_dim) {
  return 1024 + (kStepOpsAhead + 1) * (int)sizeof(StepOp) + 4096 + kStepMostGroup * (head_dim + 8) * 2;
}
constexpr int step_ring_at(int head_dim, int rows, int most_k, int group) {
  const int x = rows * (most_k + 8) * 2, p = group * (kHopperSplit + 8) * 2;
  return (step_rows_at(head_dim) + (x > p ? x : p) + 127) / 128 * 128;
}
