// SPDX-License-Identifier: Apache-2.0
// SharedLibrary: a library that is loaded at run time, where it is present.
#pragma once

#include <span>
#include <string>

namespace quire {

// A symbol of a library, and where its address goes.
struct LibrarySymbol {
  const char* name;
  void** place;
};

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
  // Finds all of them, and returns the name of one that is missing, or null.
  const char* find(std::span<const LibrarySymbol> symbols) const;
  // Leaves the library loaded until the process ends: its symbols stay valid, and it is no longer known here.
  void keep() { handle_ = nullptr; }

 private:
  void* handle_ = nullptr;
};

}  // namespace quire
