// SPDX-License-Identifier: Apache-2.0
// open_metal() for builds without Metal.
//
// This file is a member of its own in quire_backend's archive. A linker takes a member from an archive only to resolve
// a symbol that is still missing: a program that defines open_metal() in its own objects (the tests on the fake of
// Metal do) never links this one.
#include "backend/gpu/device.h"

namespace quire::gpu {

Result<std::unique_ptr<Device>> open_metal(int /*index*/) {
  return unsupported("this build has no Metal; it needs macOS on Apple silicon");
}

}  // namespace quire::gpu
