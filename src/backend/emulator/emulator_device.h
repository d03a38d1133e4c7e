// SPDX-License-Identifier: Apache-2.0
// The emulator as a gpu::Device: host memory, kernels of the host build, everything done when the call returns.
#pragma once

#include <memory>

#include "backend/emulator/emulator.h"
#include "backend/gpu/device.h"

namespace quire::gpu {

// As open_emulator() of gpu/device.h, which leaves all options to the environment.
Result<std::unique_ptr<Device>> open_emulator(const emulator::EmulatorOptions& options);

}  // namespace quire::gpu
