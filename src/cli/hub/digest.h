// SPDX-License-Identifier: Apache-2.0
// Checksums of files in the forms that model hubs use.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::cli {

// A hub identifies large files by the sha256 of their bytes and small ones by their git blob id (sha1 over "blob
// <size>\0" and the bytes). Both are written here after their kind: "sha256:<64 hex>" and "git-sha1:<40 hex>".
inline constexpr std::string_view kSha256 = "sha256:";
inline constexpr std::string_view kGitSha1 = "git-sha1:";

// The digest for hex digits of this length: 64 is a sha256, 40 a git blob id, else "".
std::string digest_from_hex(std::string_view hex);

// The digest of the file, of the same kind as `like`. `on_bytes` (may be empty) gets the size of each piece read.
Result<std::string> file_digest(const std::filesystem::path& path, std::string_view like,
                                const std::function<void(size_t)>& on_bytes = {});

}  // namespace quire::cli
