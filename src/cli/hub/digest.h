// SPDX-License-Identifier: Apache-2.0
// Checksums of files, as a model hub states them.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::cli {

// A hub states large files by the sha256 of their bytes, small ones by their git blob id (sha1 over "blob <size>\0" and
// the bytes). Both are written here with the kind in front: "sha256:<64 hex>" and "git-sha1:<40 hex>".
inline constexpr std::string_view kSha256 = "sha256:";
inline constexpr std::string_view kGitSha1 = "git-sha1:";

// The digest of the kind that hex digits of this length must be: 64 is a sha256, 40 a git blob id, else "".
std::string digest_from_hex(std::string_view hex);

// The file's digest, of the same kind as `like`. `on_bytes` (may be empty) hears of each piece that was read.
Result<std::string> file_digest(const std::filesystem::path& path, std::string_view like,
                                const std::function<void(size_t)>& on_bytes = {});

}  // namespace quire::cli
