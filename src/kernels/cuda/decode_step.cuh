// SPDX-License-Identifier: Apache-2.0
// The fused decode step: a decode step of a few sequences in one launch (sm_90a), from the embedding to the logits,
// with the same bits as the separate ops.
//
// With one sequence, a layer is a handful of products that the GPU computes in microseconds; most of the time passes
// between them: one launch ends, the next one starts, a row is written and read. Here one threadgroup per
// multiprocessor stays for all ops of the program:
//  - Weights depend on nothing, so one warp loads them (and the old positions of K and V) op after op, as far ahead as
//    the ring has slots.
//  - The output of an op goes to its readers through an exchange in global memory. Each entry holds the flag of its op
//    beside the value, so a reader polls the entry itself until the flag is there: no barrier, no fence, and no second
//    round trip.
//  - The exchange has three buffers, which successive ops use in turn. An op reads all of the previous op's output,
//    except that attention reads only what belongs to its KV head. Three buffers are enough: a writer of op i + 3 has
//    seen, directly or through op i + 2, the output of all writers of op i + 1, and these had read all of op i. Two are
//    not: a fast KV head could overwrite what a slow threadgroup's projection still waits for.
//  - Where a layer normalises its outputs before it adds them, each threadgroup keeps the residual stream itself and
//    adds to all of it, and only products that have tiles for all threadgroups read it.
//  - A tile is eight or sixteen rows of W, and its chain runs in one warp, as in linear_few.cuh.
//
// Attention has two or three parts. A unit of the first part computes the scores of 64 positions (with heads of 256, of
// 32) of a (sequence, KV head) and writes them to the exchange. A unit of the second part computes 16 columns of p V of
// a (sequence, KV head, split), and computes the softmax of the whole split for itself. If there are several splits, a
// third part merges those of a head. Logits are written to memory, together with each threadgroup's largest logit, for
// sampling.
//
// Flags grow from launch to launch (`epochs` has a counter for each threadgroup) and must not repeat: the host clears
// the exchange and the epochs before 2^24 launches. REQUIRES: all threadgroups run at the same time, one per
// multiprocessor; they wait for each other.
//
// Grid: (multiprocessors), kStepThreads; shared memory: step_ring_at() and the slots. REQUIRES: k is a multiple of 64,
// n of 8, everything on 16-byte boundaries, rows of out have an even number of elements.
#pragma once

#include "kernels/cuda/decode_step_attention.cuh"
#include "kernels/cuda/decode_step_fetch.cuh"
#include "kernels/cuda/decode_step_linear.cuh"

template <typename T, int D, bool General>
struct HopperDecodeStep : HopperStep<T, D, General> {
  typedef HopperStep<T, D, General> Base;
  using Base::divide_attention;
  using Base::empty;
  using Base::full;
  using Base::kOpPieces;
  using Base::kThreads;
  using Base::mine;
  using Base::op_at;
  using Base::sync;
  using typename Base::Shared;

  HOPPER_FN void prepare(const DecodeStepParams& p, const StepOp* program, u64* exchange, u64* scores, u64* partials) {
    Shared& s = mine();
    const int tid = (int)threadIdx.x;
    if (tid < min(p.ops, kStepOpsAhead - 1) * kOpPieces) ((uint4*)s.ahead)[tid] = ((const uint4*)program)[tid];
    if (tid < p.slots) {
      hopper_barrier_init(full(s, tid), 32);
      hopper_barrier_init(empty(s, tid), 1);
      hopper_barrier_init_done();
    }
    if (tid == 0) {
      s.p = p;
      s.program = program;
      s.exchange = exchange;
      s.scores = scores;
      s.partials = partials;
      s.ring = ptx_shared_address((unsigned char*)&s + p.ring);
      s.group = p.heads / max(p.kv_heads, 1);
    }
  }

  // When all warps are done with op i - 1, its place is used for op i + 3. The copy is started here, waited for one op
  // later, and visible to all warps after the next sync().
  HOPPER_FN void look_ahead(Shared& s, int i) {
    const int piece = (int)threadIdx.x - (kThreads - 32), next = i + kStepOpsAhead - 1;
    if (piece < 0) return;
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (piece >= kOpPieces || next >= s.p.ops) return;
    hopper_copy16(ptx_shared_address((uint4*)&s.ahead[next % kStepOpsAhead] + piece),
                  (const uint4*)(s.program + next) + piece);
  }

  HOPPER_FN void compute() {
    Shared& s = mine();
    StepPlace at = {0, 0};
    const int ops = s.p.ops;
#pragma unroll 1
    for (int i = 0; i < ops; i++) {
      sync();  // all warps are done with the previous op, its rows and its shared memory
      look_ahead(s, i);
      if (op_at(s, i).kind == kStepLinear) {
        if (General) HopperStepLinear<T, D, General>::take_normed(i);
        at = HopperStepLinear<T, D, General>::linear(i, at);
      } else {
        at = HopperStepAttention<T, D, General>::keys(i, at);
        at = HopperStepAttention<T, D, General>::values(i, at);
        if (s.p.positions > kHopperSplit) HopperStepAttention<T, D, General>::merge(i);
      }
    }
  }

  HOPPER_FN void run(const DecodeStepParams& p, const StepOp* program, const int* context_lens, const int* positions,
                     u64* exchange, u64* scores, u64* partials, uint* epochs) {
    Shared& s = mine();
    const int tid = (int)threadIdx.x;
    ptx_grid_release();
    prepare(p, program, exchange, scores, partials);
    __syncthreads();
    if (tid >= kThreads)
      return HopperStepFetch<T, D, General>::fetch_all();  // loads weights before the preceding launch has ended
    ptx_grid_wait();
    if (tid < p.rows && p.kv_heads > 0) {
      s.contexts[tid] = context_lens[tid];
      s.positions[tid] = positions[tid];
    }
    if (tid == 0) s.epoch = *(volatile uint*)(epochs + blockIdx.x) + 1;
    sync();
    if (tid == 0 && p.kv_heads > 0) divide_attention(s, s.divisions[0], 0);
    if (General && tid == 32 && p.kv_heads > 0) divide_attention(s, s.divisions[1], p.window);
    sync();
    HopperStepFetch<T, D, General>::signal_begun();
    compute();
    if (tid == 0) epochs[blockIdx.x] = s.epoch;
  }
};

#define HOPPER_DECODE_STEP(name, T, D, general)                                                                    \
  extern "C" __global__ void __launch_bounds__(kStepThreads, 1) hopper_decode_step_##name(                         \
      const __grid_constant__ DecodeStepParams p, const StepOp* program, const int* context_lens,                  \
      const int* positions, u64* exchange, u64* scores, u64* partials, uint* epochs) {                             \
    HopperDecodeStep<T, D, general>::run(p, program, context_lens, positions, exchange, scores, partials, epochs); \
  }
HOPPER_DECODE_STEP(bf16_d64, bfloat, 64, false)
HOPPER_DECODE_STEP(bf16_d128, bfloat, 128, false)
HOPPER_DECODE_STEP(f16_d64, half, 64, false)
HOPPER_DECODE_STEP(f16_d128, half, 128, false)
HOPPER_DECODE_STEP(general_bf16_d64, bfloat, 64, true)
HOPPER_DECODE_STEP(general_bf16_d128, bfloat, 128, true)
HOPPER_DECODE_STEP(general_bf16_d256, bfloat, 256, true)
HOPPER_DECODE_STEP(general_f16_d64, half, 64, true)
HOPPER_DECODE_STEP(general_f16_d128, half, 128, true)
HOPPER_DECODE_STEP(general_f16_d256, half, 256, true)
