// SPDX-License-Identifier: Apache-2.0
// Driver: libcuda, loaded at run time, and error messages for what its calls return.
#pragma once

#include <memory>
#include <string>

#include "backend/cuda/driver_api.h"
#include "base/result.h"
#include "base/shared_library.h"

namespace quire::cuda {

// One loaded and initialised libcuda, shared by everything that was made through it. Immutable, so any thread may use
// it.
class Driver {
 public:
  // Loads libcuda.so.1 (or what QUIRE_LIBCUDA names) and initialises it.
  static Result<std::shared_ptr<const Driver>> load();

  const DriverApi& api() const { return api_; }
  int version() const { return version_; }  // 13000 for CUDA 13.0
  std::string version_text() const;         // "CUDA 13.0"
  int devices() const { return devices_; }

  // "cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY (out of memory): what to do". The version suffix of `call` ("_v2")
  // is left out.
  Failure error(std::string_view call, Code code, const std::string& advice = "") const;

 private:
  explicit Driver(SharedLibrary library) : library_(std::move(library)) {}

  SharedLibrary library_;
  DriverApi api_;
  int version_ = 0;
  int devices_ = 0;
};

}  // namespace quire::cuda
