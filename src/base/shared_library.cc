// SPDX-License-Identifier: Apache-2.0
// Loading libraries with dlopen.
#include "base/shared_library.h"

#include <dlfcn.h>

namespace quire {

SharedLibrary::SharedLibrary(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {}

SharedLibrary::~SharedLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

void* SharedLibrary::symbol(const char* name) const {
  return dlsym(handle_, name);
}

const char* SharedLibrary::find(std::span<const LibrarySymbol> symbols) const {
  const char* missing = nullptr;
  for (const LibrarySymbol& wanted : symbols) {
    *wanted.place = symbol(wanted.name);
    if (*wanted.place == nullptr) missing = wanted.name;
  }
  return missing;
}

}  // namespace quire
