// SPDX-License-Identifier: Apache-2.0
// Reads environment variables.
#include "base/env.h"

#include <cstdlib>

namespace quire {

std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::filesystem::path home_folder() {
  if (const auto own = env("QUIRE_HOME")) return *own;
  return std::filesystem::path(env("HOME").value_or(".")) / ".cache" / "quire";
}

}  // namespace quire
