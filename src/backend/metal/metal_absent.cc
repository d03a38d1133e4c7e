// SPDX-License-Identifier: Apache-2.0
// open_metal() of a build without Metal.
//
// This file is a member of its own in quire_backend's archive. A linker takes a member out of an archive only for a
// symbol that is still missing: a program that brings open_metal() in its own objects (the tests on the fake of Metal
// do) never sees this one.
#include "backend/gpu/device.h"

namespace quire::gpu {

Result<std::unique_ptr<Device>> open_metal(int /*index*/) {
  return unsupported("this build has no Metal; it needs macOS on Apple silicon");
}

}  // namespace quire::gpu
