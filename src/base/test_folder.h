// SPDX-License-Identifier: Apache-2.0
// For tests: a temporary folder that is removed at the end of the scope.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/file.h"

namespace quire {

// A new folder in the system's temporary folder, removed with its contents at the end of the scope.
class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> next{0};
    path_ = std::filesystem::temp_directory_path() /
            ("quire_test_" + std::to_string(::getpid()) + "_" + std::to_string(next++));
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Creates missing parent folders.
  std::filesystem::path write(const std::filesystem::path& name, std::string_view bytes) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    QUIRE_CHECK(write_file(file, bytes).ok());
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace quire
