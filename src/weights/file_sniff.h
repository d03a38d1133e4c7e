// SPDX-License-Identifier: Apache-2.0
// Words for messages about model files: what a wrong file is instead, and names made safe to print.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::weights {

// Files that people have where a model should be: a Git LFS pointer, a web page, an error reply, an archive. A sentence
// that goes after the file's name, with what to do; nothing when the beginning looks like none of them.
std::optional<std::string> recognise_wrong_file(std::span<const std::byte> head);

// 'name' with quotes; control characters and ill-formed UTF-8 escaped, cut when it is long: the file chose it.
std::string in_quotes(std::string_view name);

// "'model.gguf': " + what, as a kCorrupt Error.
Error corrupt_file(std::string_view file, const std::string& what);

}  // namespace quire::weights
