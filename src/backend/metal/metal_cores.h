// SPDX-License-Identifier: Apache-2.0
// The number of GPU cores, which Metal does not report, but the system's hardware registry does.
#pragma once

namespace quire::metal {

// Returns 0 if it is unknown. metal_cores_mac.cc asks IOKit; the tests' fake of Metal has no registry.
int gpu_cores();

}  // namespace quire::metal
