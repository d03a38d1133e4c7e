// SPDX-License-Identifier: Apache-2.0
// Parts of messages about model files: what a wrong file really is, and names made safe to print.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::weights {

// Recognises what people have instead of a model: a Git LFS pointer, a web page, a server's error message, an archive.
// Returns the rest of a sentence that begins with the file's name and says what to do; nothing if the file looks like
// none of these.
std::optional<std::string> recognise_wrong_file(std::span<const std::byte> head);

// The name in quotes, truncated if it is long, with control characters and ill-formed UTF-8 escaped.
std::string in_quotes(std::string_view name);

// What to do about a file that is too short.
inline constexpr const char* kFetchAgain = "the download is incomplete or the file is damaged; fetch it again";

// "'model.gguf': " + what, as a kCorrupt Error.
Failure corrupt_file(std::string_view file, const std::string& what);

}  // namespace quire::weights
