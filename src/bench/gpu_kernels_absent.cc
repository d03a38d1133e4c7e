// SPDX-License-Identifier: Apache-2.0
// gpu_kernels() for builds without the code for GPUs (QUIRE_GPU).
#include "backend/gpu/device.h"
#include "bench/gpu_kernels.h"

namespace quire::bench {

Result<GpuFigures> gpu_kernels(const KernelOptions& options, const KernelProgress& /*progress*/) {
  const auto backend = gpu::make_gpu_backend(options.device);
  return Error(backend.error());
}

json::Value GpuFigures::to_json() const {
  return {};
}

std::string GpuFigures::to_text() const {
  return {};
}

}  // namespace quire::bench
