// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/delta_decode_body.cuh through CUDA's branch of the dialect, on the emulator.
#include "tests/kernels/cuda_shim/cuda_shim.h"

namespace cuda_branch {
#include "tests/kernels/cuda_shim/entry.h"
//
#include "kernels/cuda/delta_decode_body.cuh"

typedef HopperDeltaDecode<bfloat> DeltaDecode;

static void run_delta_decode(const void* params, void* const* b, void* memory) {
  const quire::emulator::Position at = quire::emulator::position();
  const auto bf16 = [&](int i) { return static_cast<bfloat*>(b[i]); };
  const auto floats = [&](int i) { return static_cast<const float*>(b[i]); };
  const auto ints = [&](int i) { return static_cast<int*>(b[i]); };
  DeltaDecode::run(static_cast<int>(at.tgx), static_cast<int>(at.tid), *static_cast<DeltaDecode::Smem*>(memory),
                   *static_cast<const StateParams*>(params), bf16(0), bf16(1), bf16(2), bf16(3), floats(4), floats(5),
                   floats(6), floats(7), static_cast<uchar*>(b[8]), ints(9), ints(10), ints(11), ints(12), ints(13));
}
static const quire::emulator::KernelRecord delta_decode_record = {
    "hopper_delta_decode_bf16", run_delta_decode, sizeof(StateParams), sizeof(DeltaDecode::Smem), 14,
    kHopperDeltaThreads, nullptr};
}  // namespace cuda_branch

namespace quire::emulator {
const KernelRecord& delta_decode_on_host();
const KernelRecord& delta_decode_on_host() {
  return cuda_branch::delta_decode_record;
}
}  // namespace quire::emulator
