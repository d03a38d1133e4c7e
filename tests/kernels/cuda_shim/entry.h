// SPDX-License-Identifier: Apache-2.0
// The dialect's CUDA branch with the emulator's entry points: included inside the namespace of the branch.
#include "kernels/compat/dialect.h"

[[maybe_unused]] static const quire::emulator::KernelRecord* quire_kernels_of_this_file = nullptr;

// A __global__ function of CUDA has its own shared memory and built-in indices; here both are the emulator's.
#undef QUIRE_ARGUMENT
#undef QUIRE_ENTRY
#define QUIRE_ARGUMENT(A, i) static_cast<A*>(buffers[i - 1])
#define QUIRE_ENTRY(name, Body, Params, start, parameters, arguments, count)                               \
  static void name(const void* params, void* const* buffers, void* memory) {                               \
    const quire::emulator::Position at = quire::emulator::position();                                      \
    ptx_grid_release();                                                                                    \
    start;                                                                                                 \
    Body::run(Ctx{at.tgx, at.tgy, at.tgz, at.tid, at.sg, at.lane}, *static_cast<const Params*>(params),    \
              *static_cast<Body::Smem*>(memory), QUIRE_UNWRAP arguments);                                  \
  }                                                                                                        \
  static quire::emulator::KernelRecord name##_record = {                                                   \
      #name, name, sizeof(Params), sizeof(Body::Smem), count, Body::kThreads, quire_kernels_of_this_file}; \
  [[maybe_unused]] static const bool name##_listed = (quire_kernels_of_this_file = &name##_record, true);
