// SPDX-License-Identifier: Apache-2.0
// make_gpu_backend() of a build whose GPU ops are not all there.
#include "backend/gpu/gpu_backend.h"

namespace quire::gpu {

Result<std::unique_ptr<Backend>> make_gpu_backend(const std::string& device) {
  return unsupported("this build has no GPU backend for '" + device + "'");
}

}  // namespace quire::gpu
