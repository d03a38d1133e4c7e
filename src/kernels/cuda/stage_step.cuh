// SPDX-License-Identifier: Apache-2.0
// Copies a step's small arrays from the host's memory, and inserts the tokens that the previous step sampled (sm_90a).
// A copy by the driver would run alone between two launches. Here the arrays are copied while the preceding launch
// still runs, and only the tokens wait for it. So a kernel that follows must not read the arrays before it waits: the
// fused decode step (decode_step.cuh) may follow, but other kernels read them earlier (attention_cache.h).
//
// Grid: (1), kStageStepThreads. The arrays start and end on 16-byte boundaries; `rows` is one of them.
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
