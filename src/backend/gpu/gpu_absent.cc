// SPDX-License-Identifier: Apache-2.0
// What other folders call of the code for GPUs, for builds without it (QUIRE_GPU).
#include "backend/backend.h"
#include "backend/gpu/device.h"
#include "backend/gpu/selftest.h"

namespace quire::gpu {
namespace {

Failure absent() {
  return unsupported(
      "this build has no code for GPUs; configure it with -DQUIRE_GPU=ON, as scripts/quickstart --cuda does");
}

}  // namespace

Result<std::unique_ptr<Device>> open_cuda(int /*index*/) {
  return absent();
}

Result<std::unique_ptr<Device>> open_metal(int /*index*/) {
  return absent();
}

Result<std::unique_ptr<Device>> open_emulator() {
  return absent();
}

Result<int> count_cuda() {
  return absent();
}

Result<std::unique_ptr<Backend>> make_gpu_backend(const std::string& /*device*/, int /*index*/) {
  return absent();
}

Result<SelftestReport> run_selftest(std::unique_ptr<Device> /*device*/,
                                    const std::function<void(const SelftestCheck&)>& /*done*/) {
  return absent();
}

}  // namespace quire::gpu
