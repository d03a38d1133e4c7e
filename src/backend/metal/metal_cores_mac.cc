// SPDX-License-Identifier: Apache-2.0
// The number of GPU cores, from IOKit: the property "gpu-core-count" of the accelerator's registry entry.
#include <CoreFoundation/CoreFoundation.h>
#include <IOKit/IOKitLib.h>

#include "backend/metal/metal_cores.h"

namespace quire::metal {

int gpu_cores() {
  // The call consumes the matching dictionary. Port 0 is the default port, under its old and its new name.
  const io_service_t service = IOServiceGetMatchingService(0, IOServiceMatching("AGXAccelerator"));
  if (service == 0) return 0;
  int cores = 0;
  const CFTypeRef value = IORegistryEntryCreateCFProperty(service, CFSTR("gpu-core-count"), kCFAllocatorDefault, 0);
  if (value != nullptr) {
    if (CFGetTypeID(value) == CFNumberGetTypeID()) {
      CFNumberGetValue(static_cast<CFNumberRef>(value), kCFNumberIntType, &cores);
    }
    CFRelease(value);
  }
  IOObjectRelease(service);
  return cores;
}

}  // namespace quire::metal
