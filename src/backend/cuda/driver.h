// SPDX-License-Identifier: Apache-2.0
// Driver: libcuda, found at run time, and the sentences for what its calls answer.
#pragma once

#include <memory>
#include <string>

#include "backend/cuda/driver_api.h"
#include "base/result.h"

namespace quire::cuda {

// A library that was opened with dlopen, closed with its owner.
class SharedLibrary {
 public:
  SharedLibrary() = default;
  explicit SharedLibrary(const std::string& path);
  SharedLibrary(SharedLibrary&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  SharedLibrary& operator=(SharedLibrary&&) = delete;
  ~SharedLibrary();
  explicit operator bool() const { return handle_ != nullptr; }
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
};

// One loaded and initialised libcuda. Shared by what was made through it; immutable, so any thread may use it.
class Driver {
 public:
  // Finds libcuda.so.1 (or what QUIRE_LIBCUDA names) and initialises it.
  static Result<std::shared_ptr<const Driver>> load();

  const DriverApi& api() const { return api_; }
  int version() const { return version_; }  // 13000 for CUDA 13.0
  std::string version_text() const;         // "CUDA 13.0"
  int devices() const { return devices_; }

  // "cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY (out of memory): what to do". `call` is as the driver spells it;
  // its version suffix is left out.
  Error error(std::string_view call, Code code, const std::string& advice = "") const;

 private:
  explicit Driver(SharedLibrary library) : library_(std::move(library)) {}

  SharedLibrary library_;
  DriverApi api_;
  int version_ = 0;
  int devices_ = 0;
};

}  // namespace quire::cuda
