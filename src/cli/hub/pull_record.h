// SPDX-License-Identifier: Apache-2.0
// The record of a pull in the model's folder: which files it downloads, and which of them are finished.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/result.h"

namespace quire::cli {

inline constexpr const char* kPullRecordName = ".quire-pull.json";

// Written before the first download and after each finished file, so that an interrupted pull is recognised and
// finished files are not downloaded again. A plain value; the folder's lock guards the file.
struct PullRecord {
  struct File {
    uint64_t size = 0;
    std::string digest;  // "sha256:..." or "git-sha1:...", or "" if the hub has none
    bool done = false;
  };
  std::string name;
  std::string revision;  // the commit
  std::map<std::string, File> files;

  // A missing or damaged record is an empty one (then the files are checked by their checksums).
  static PullRecord load(const std::filesystem::path& folder);
  Status save(const std::filesystem::path& folder) const;
  bool complete() const;
};

}  // namespace quire::cli
