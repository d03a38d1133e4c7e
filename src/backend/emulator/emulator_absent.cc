// SPDX-License-Identifier: Apache-2.0
// open_emulator() for builds without the emulator.
#include "backend/gpu/device.h"

namespace quire::gpu {

Result<std::unique_ptr<Device>> open_emulator() {
  return unsupported("this build has no emulator; configure it with -DQUIRE_EMULATOR=ON");
}

}  // namespace quire::gpu
