// SPDX-License-Identifier: Apache-2.0
// A decode step of few sequences in one launch (sm_90a), from the embedding to the logits, with the bits of the ops one
// by one.
//
// With one sequence a layer is a handful of products that a chip does in microseconds, and what takes time is what
// stands between them: a launch that ends, one that begins, a row that travels. Here one threadgroup a multiprocessor
// stays for all ops of the program:
//  - Weights do not depend on anything, so a warp brings them in (and old positions of K and V), op after op, as far
//    ahead as the ring has slots.
//  - What an op gives goes to its readers through an exchange in memory: each entry carries the flag of its op beside
//    the value, so a reader asks for the entry itself until the flag is there. No barrier, no fence, no second trip.
//    An op reads all that the op before gave, but attention only what belongs to a kv head. So three exchange buffers
//    in turn are needed, and enough: what a writer of op i + 3 has seen, itself or through those of op i + 2, comes
//    from all writers of op i + 1, and they had read all of op i. With two, the heads of a quick kv head would take the
//    place of what a slow threadgroup's projection still waits for.
//  - A tile is eight or sixteen rows of W, its chain one warp's, as in linear_few.cuh.
// Attention: a unit of the first part is 64 positions of a (sequence, kv head), its scores go to the exchange; a unit
// of the second is 16 columns of V of a (sequence, kv head, split), which makes the softmax of all its positions again;
// if there are several splits, a third part merges a head's.
// Logits go to memory; beside them each threadgroup leaves the largest of its own for sampling.
//
// Flags count up from launch to launch (`epochs`, one for each threadgroup, each its own) and must not return: the host
// clears exchange and epochs before 2^24 launches. All threadgroups must run at once: one a multiprocessor, no more.
//
// Grid: (multiprocessors), kStepThreads, memory: step_ring_at() and the slots. Needs: k a multiple of 64, n of 8, all
// on 16-byte boundaries, out rows of an even number of elements.
#pragma once

#include "kernels/cuda/decode_step_attention.cuh"
#include "kernels/cuda/decode_step_loader.cuh"
#include "kernels/cuda/decode_step_linear.cuh"

template <typename T, int D>
struct HopperDecodeStep : HopperStep<T, D> {
  typedef HopperStep<T, D> Base;
  using Base::cut_attention;
  using Base::empty;
  using Base::full;
  using Base::kOpPieces;
  using Base::kThreads;
  using Base::meet;
  using Base::mine;
  using Base::op_at;
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

  // Once all are through with op i - 1, its place takes op i + 3: asked for here, awaited an op later, and seen by all
  // when they have met once more.
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
      meet();  // all are through with the op before, its rows and what stood in shared memory for it
      look_ahead(s, i);
      if (op_at(s, i).kind == kStepLinear) {
        at = HopperStepLinear<T, D>::linear(i, at);
      } else {
        at = HopperStepAttention<T, D>::keys(i, at);
        at = HopperStepAttention<T, D>::values(i, at);
        if (s.p.positions > kHopperSplit) HopperStepAttention<T, D>::merge(i);
      }
    }
  }

  HOPPER_FN void run(const DecodeStepParams& p, const StepOp* program, const int* context_lens, const int* positions,
                     const i64* slots, u64* exchange, u64* scores, u64* partials, uint* epochs) {
    Shared& s = mine();
    const int tid = (int)threadIdx.x;
    ptx_grid_release();
    prepare(p, program, exchange, scores, partials);
    __syncthreads();
    if (tid >= kThreads) return HopperStepBring<T, D>::bring();  // weights are there before the launch before has ended
    ptx_grid_wait();
    if (tid < p.rows && p.kv_heads > 0) {
      s.contexts[tid] = context_lens[tid];
      s.positions[tid] = positions[tid];
      s.slots[tid] = slots[tid];
    }
    if (tid == 0) s.epoch = *(volatile uint*)(epochs + blockIdx.x) + 1;
    meet();
    if (tid == 0 && p.kv_heads > 0) cut_attention(s);
    meet();
    HopperStepBring<T, D>::tell_begun();
    compute();
    if (tid == 0) epochs[blockIdx.x] = s.epoch;
  }
};

#define HOPPER_DECODE_STEP(types, T, D)                                                                          \
  extern "C" __global__ void __launch_bounds__(kStepThreads, 1) hopper_decode_step_##types##_d##D(               \
      const __grid_constant__ DecodeStepParams p, const StepOp* program, const int* context_lens,                \
      const int* positions, const i64* slots, u64* exchange, u64* scores, u64* partials, uint* epochs) {         \
    HopperDecodeStep<T, D>::run(p, program, context_lens, positions, slots, exchange, scores, partials, epochs); \
  }
HOPPER_DECODE_STEP(bf16, bfloat, 64)
HOPPER_DECODE_STEP(bf16, bfloat, 128)
HOPPER_DECODE_STEP(f16, half, 64)
HOPPER_DECODE_STEP(f16, half, 128)
