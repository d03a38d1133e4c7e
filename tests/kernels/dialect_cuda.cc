// SPDX-License-Identifier: Apache-2.0
// dialect_kernels.h through CUDA's branch of the dialect, on the emulator; in a namespace, as its types are its own.
#include "tests/kernels/cuda_shim/cuda_shim.h"

namespace cuda_branch {
#include "tests/kernels/cuda_shim/entry.h"
//
#include "tests/kernels/dialect_kernels.h"
}  // namespace cuda_branch

namespace quire::emulator {
const KernelRecord* kernels_of_dialect_cuda();
const KernelRecord* kernels_of_dialect_cuda() {
  return cuda_branch::quire_kernels_of_this_file;
}
}  // namespace quire::emulator
