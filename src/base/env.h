// SPDX-License-Identifier: Apache-2.0
// Environment look-ups and the folders that follow from them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace quire {

// The variable's value; nothing when it is unset or empty.
std::optional<std::string> env(const char* name);
// Where models and what was compiled or chosen for a GPU are kept: QUIRE_HOME, else ~/.cache/quire.
std::filesystem::path home_folder();

}  // namespace quire
