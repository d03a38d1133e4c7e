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

}  // namespace quire
