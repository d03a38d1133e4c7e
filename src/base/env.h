// SPDX-License-Identifier: Apache-2.0
// Environment variables, and the cache folder that they choose.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace quire {

// The variable's value; nothing when it is unset or empty.
std::optional<std::string> env(const char* name);
// The folder for downloaded models and for files compiled or tuned for a GPU: QUIRE_HOME, else ~/.cache/quire.
std::filesystem::path home_folder();

}  // namespace quire
