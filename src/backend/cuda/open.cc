// SPDX-License-Identifier: Apache-2.0
// gpu::open_cuda: a device with the kernels that are embedded in the build.
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/driver.h"
#include "base/env.h"
#include "kernels/embedded.h"

namespace quire::gpu {

Result<std::unique_ptr<Device>> open_cuda(int index) {
  std::vector<cuda::Image> images;
  for (const kernels::EmbeddedBinary& binary : kernels::cuda_binaries()) {
    images.push_back({binary.name, binary.bytes.data()});
  }
  return cuda::open_device(index, images, home_folder() / "cuda");
}

Result<int> count_cuda() {
  QUIRE_ASSIGN(const std::shared_ptr<const cuda::Driver> driver, cuda::Driver::load());
  return driver->devices();
}

}  // namespace quire::gpu
