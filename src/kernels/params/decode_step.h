// SPDX-License-Identifier: Apache-2.0
// The program that kernels/cuda/decode_step.cuh (sm_90a) runs: the ops of a decode step of a few sequences, in one
// launch.
#pragma once

#include "kernels/compat/types.h"
#include "kernels/params/hopper.h"
#include "kernels/params/sampling.h"

enum {
  kStepThreads = 288,     // eight warps that compute, and one that loads weights and pages
  kStepWarps = 8,         // warps that compute
  kStepRows = 8,          // most sequences, one token each
  kStepChunk = 1024,      // length, in k, of a chunk of eight rows of W: one slot of the ring
  kStepMostChunk = 1280,  // the same in the general form, for rows that are a little longer
  // A slot may also hold the positions of a unit of K, 64 or with heads of 256 half as many, or 512 positions of 16
  // columns of V.
  kStepSlotBytes = 8 * (2 * kStepChunk + 16),
  kStepSlice = 16,     // columns of V per threadgroup
  kStepMostGroup = 8,  // most query heads per KV head
  kStepMostSlots = 20,
  kStepOpsAhead = 4,       // ops of the program that are in shared memory at a time
  kStepExchanges = 3,      // buffers that successive ops use in turn
  kStepMostStream = 3072,  // columns of the residual stream, where threadgroups keep it
  kStepHeld = 1024,        // columns of a row that is normalised which the threads keep in registers
  kStepMostHeld = 4096     // the same in the general form
};

enum StepKind { kStepLinear = 0, kStepAttention = 1 };

// y[m, n] = x[m, k] W[n, k]^T with an optional norm before it and an epilogue (HopperEpilogue) after it. x is the
// output of the previous op; the first op reads it from memory. kHopperStoreF32 writes to memory only, so it can only
// be the last op of a program.
//
// Where outputs have a norm of their own before they are added to the residual stream, no epilogue can add them. Then
// every threadgroup keeps the whole stream (DecodeStepParams::stream): the first op takes x into it, and an op with a
// post_norm adds to it, stream += add_scale * T(norm of the previous op's output), before it normalises the sum.
struct StepLinearOp {
  const void* x;  // null: the output of the previous op
  void* out;      // null: only the next op reads the output
  const void* w;
  const float* bias;
  const float* norm;
  const float* residual;
  const float* post_norm;  // null: nothing is added to the stream
  float* stream;           // where the stream is written to memory after that, or null
  int n, k;
  short halves;    // groups of eight rows of W in a tile: 1, or 2 (gated: eight of gate, eight of up)
  short lot;       // tiles that a threadgroup has in progress
  int each, rest;  // tiles per threadgroup; the first `rest` have one more
  int x_stride, out_stride, residual_stride;  // elements
  short epilogue, activation;
  short x_by_token, residual_by_token;  // 1: row i is the row of DecodeStepParams::table for the token of sequence i
  short streamed;                       // 1: x becomes, or is, the stream
  int stream_stride;                    // elements
  float eps, scale, limit;
  float post_eps, add_scale;
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
  const i64* slots;  // of this step's positions, which layers of one group have in common
  i64 page_stride;   // bytes
  int block_shift;   // a block has 1 << block_shift positions, at least eight
  int max_blocks;
  int out_stride;
  int rot_dim, interleaved;
  int window;  // of positions that the token sees, or 0: all; ops with a window have the same one
  float eps;   // of the norms
  float c;     // scale * log2(e), or with a cap scale / cap
  float cap;   // soft cap * log2(e), or 0
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
  int chunk;            // for the general form, otherwise kStepChunk: a multiple of 128, at least kStepChunk
  int ring;             // byte offset of the ring in shared memory: step_ring_at()
  int positions;        // length of a row of scores, a multiple of 1024
  int window;           // of the attention ops that have one
  int stream;           // byte offset of the residual stream in shared memory, [rows][stream_columns] floats
  int stream_columns;   // 0: threadgroups do not keep it
  i64 exchanged;        // entries in each of the kStepExchanges buffers
  const void* table;    // rows of T (the embedding), for ops that read a row by token
  const int* tokens;    // [rows]
  i64 table_stride;     // elements
  float table_scale;
  // [rows][threadgroups]: the largest logit of each, if the last op is the LM head; otherwise null.
  SamplePartial* bests;
};

constexpr int step_slot_bytes(int chunk) {
  return 8 * (2 * chunk + 16);
}
// Shared memory, in bytes: HopperStep::Shared, then the rows of x, of queries or of T(p) (one of them at a time), then
// the residual stream, then the ring.
constexpr int step_floats(int head_dim) {
  return kStepWarps * (head_dim > 128 ? head_dim : 128);
}
constexpr int step_rows_at(int head_dim) {
  return 640 + (kStepOpsAhead + 1) * (int)sizeof(StepOp) + step_floats(head_dim) * 4;
}
constexpr int step_stream_at(int head_dim, int rows, int most_k, int group) {
  const int x = rows * (most_k + 8) * 2, p = group * (kHopperSplit + 8) * 2;
  return (step_rows_at(head_dim) + (x > p ? x : p) + 127) / 128 * 128;
}
constexpr int step_ring_at(int stream_at, int rows, int stream_columns) {
  return (stream_at + rows * stream_columns * 4 + 127) / 128 * 128;
}
