// SPDX-License-Identifier: Apache-2.0
// Copies of 16 bytes from device to threadgroup memory that overlap with the arithmetic: cp.async on CUDA, plain copies
// elsewhere.
//
// copy16_async() starts a copy, copy_commit() closes a group of them, copy_wait<N>() waits until at most N groups of
// this thread are still in flight. After that a barrier makes the data visible to the other threads. The emulator
// completes copies as late as this contract allows, so that a missing wait shows.
#pragma once

#include "kernels/compat/dialect.h"

#if defined(__METAL_VERSION__) || defined(__OPENCL_CPP_VERSION__)

FN void copy16_async(TGROUP void* to, DEVICE const void* from) {
  *(TGROUP uint4*)to = *(DEVICE const uint4*)from;
}
FN void copy_commit() {}
template <int N>
FN void copy_wait() {}

#elif defined(__CUDACC__) || defined(QUIRE_CUDA_SHIM)

FN void copy16_async(void* to, const void* from) {
  ptx_copy16(to, from);
}
FN void copy_commit() {
  ptx_copy_commit();
}
template <int N>
FN void copy_wait() {
  ptx_copy_wait<N>();
}

#else

FN void copy16_async(void* to, const void* from, QUIRE_SITE("copy16_async")) {
  quire::emulator::copy_begin(to, from, site);
}
FN void copy_commit() {
  quire::emulator::copy_commit();
}
template <int N>
FN void copy_wait() {
  quire::emulator::copy_wait(N);
}

#endif
