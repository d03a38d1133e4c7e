// SPDX-License-Identifier: Apache-2.0
// SharedLibrary: a library that is loaded at run time, where it is present.
#pragma once

#include <string>

namespace quire {

// A library that was opened with dlopen and is closed with its owner.
class SharedLibrary {
 public:
  SharedLibrary() = default;
  explicit SharedLibrary(const std::string& path);  // false if it cannot be loaded
  SharedLibrary(SharedLibrary&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  SharedLibrary& operator=(SharedLibrary&&) = delete;
  ~SharedLibrary();
  explicit operator bool() const { return handle_ != nullptr; }
  void* symbol(const char* name) const;
  // Leaves the library loaded until the process ends: its symbols stay valid, and it is no longer known here.
  void keep() { handle_ = nullptr; }

 private:
  void* handle_ = nullptr;
};

}  // namespace quire
