// SPDX-License-Identifier: Apache-2.0
// The record that a pull leaves in a model's folder: which files it wants there and which of them are finished.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/result.h"

namespace quire::cli {

inline constexpr const char* kPullRecordName = ".quire-pull.json";

// Written before the first byte is fetched and after each finished file, so that an interrupted pull is known as such
// and a finished file is not fetched again. A plain value; the folder's lock guards the file.
struct PullRecord {
  struct File {
    uint64_t size = 0;
    std::string digest;  // "sha256:..." or "git-sha1:...", or "" when the hub gave none
    bool done = false;
  };
  std::string name;
  std::string revision;  // the commit
  std::map<std::string, File> files;

  // Missing is an empty record; a damaged one too (its files are then checked again by their checksums).
  static PullRecord load(const std::filesystem::path& folder);
  Status save(const std::filesystem::path& folder) const;
  bool complete() const;
};

}  // namespace quire::cli
