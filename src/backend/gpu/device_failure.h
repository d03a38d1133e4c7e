// SPDX-License-Identifier: Apache-2.0
// What a backend does when its device fails: ops cannot return an error, so the program ends with a message.
#pragma once

#include <utility>

#include "base/result.h"

namespace quire::gpu {

// Prints why the device failed and ends the program. Threads that wait for the device would never return.
[[noreturn]] void exit_on_device_failure(const Error& error);

inline void require(const Status& status) {
  if (!status.ok()) exit_on_device_failure(status.error());
}
template <typename T>
T require(Result<T> result) {
  if (!result.ok()) exit_on_device_failure(result.error());
  return std::move(result).value();
}

}  // namespace quire::gpu
