// SPDX-License-Identifier: Apache-2.0
// How many cores the GPU has: Metal does not tell, the system's registry of hardware does.
#pragma once

namespace quire::metal {

// 0 when nothing says so. metal_cores_mac.cc asks IOKit; the fake of the tests has none to ask.
int gpu_cores();

}  // namespace quire::metal
