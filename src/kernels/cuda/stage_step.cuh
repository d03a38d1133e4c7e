// SPDX-License-Identifier: Apache-2.0
// Brings a step's small arrays in from the host's memory, and puts the tokens that the step before sampled among them
// (sm_90a). A copy by the driver would stand alone between two launches; here the arrays travel while the launch before
// still works, and only the tokens wait for it. What comes after it may not read the arrays before it waits: joined
// steps (decode_step.cuh) do not, others do (attention_cache.h).
//
// Grid: (1), kStageStepThreads. The arrays begin and end on 16 bytes; `rows` lies among them.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/params/sampling.h"

extern "C" __global__ void __launch_bounds__(kStageStepThreads)
    hopper_stage_step(const __grid_constant__ StageStepParams p, uint4* to, const uint4* from, int* tokens,
                      const int* rows, const SampleResult* results) {
  ptx_grid_release();
  const int tid = (int)threadIdx.x;
#pragma unroll 4
  for (int i = tid; i < p.pieces; i += kStageStepThreads) to[i] = __ldcv(from + i);
  __syncthreads();
  ptx_grid_wait();
  for (int i = tid; i < p.count; i += kStageStepThreads) {
    const int row = *(const volatile int*)(rows + i);
    if (row >= 0) tokens[i] = results[row].token;
  }
}
