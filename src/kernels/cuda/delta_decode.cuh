// SPDX-License-Identifier: Apache-2.0
// The kernels of delta_decode_body.cuh.
#pragma once

#include "kernels/cuda/delta_decode_body.cuh"

#define HOPPER_DELTA_DECODE(types, T)                                                                                \
  extern "C" __global__ void __launch_bounds__(kHopperDeltaThreads, 2) hopper_delta_decode_##types(                  \
      const __grid_constant__ StateParams p, T* out, const T* x, const T* a, const T* b, const float* weight,        \
      const float* bias, const float* decays, const float* dt_biases, uchar* pages, const int* cu_seqlens,           \
      const int* lengths, const int* source, const int* destination, int* arrivals) {                                \
    extern __shared__ __align__(128) unsigned char delta_memory[];                                                   \
    HopperDeltaDecode<T>::run((int)blockIdx.x, (int)threadIdx.x, *(HopperDeltaDecode<T>::Smem*)delta_memory, p, out, \
                              x, a, b, weight, bias, decays, dt_biases, pages, cu_seqlens, lengths, source,          \
                              destination, arrivals);                                                                \
  }
HOPPER_DELTA_DECODE(bf16, bfloat)
HOPPER_DELTA_DECODE(f16, half)
