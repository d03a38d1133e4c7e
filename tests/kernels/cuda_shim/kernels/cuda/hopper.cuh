// SPDX-License-Identifier: Apache-2.0
// Stands in for src/kernels/cuda/hopper.cuh: as much of it as kernels need that tests run on the emulator.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/compat/float_math.h"

#define HOPPER_FN static inline

HOPPER_FN void hopper_prefetch_bulk(const void*, uint) {}
HOPPER_FN unsigned long long hopper_read_once() {
  return 0;
}
HOPPER_FN void hopper_copy16(void* to, const void* from, unsigned long long, QUIRE_CUDA_SITE("cp.async")) {
  ptx_copy16(to, from, site);
}
HOPPER_FN void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
HOPPER_FN int atomicAdd(int* at, int value) {
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
