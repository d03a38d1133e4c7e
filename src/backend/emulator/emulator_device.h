// SPDX-License-Identifier: Apache-2.0
// The emulator as a gpu::Device: host memory, kernels of the host build, all work done when a call returns.
#pragma once

#include <memory>

#include "backend/emulator/emulator.h"
#include "backend/gpu/device.h"

namespace quire::gpu {

// Like open_emulator() of gpu/device.h, which takes all options from the environment.
Result<std::unique_ptr<Device>> open_emulator(const emulator::EmulatorOptions& options);

}  // namespace quire::gpu
