// SPDX-License-Identifier: Apache-2.0
// Reads whole small files and maps large ones read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace quire {

// The file's bytes; an Error that names the path when it cannot be read or is larger than `max_bytes`.
Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes = size_t{256} << 20);
Status write_file(const std::filesystem::path& path, std::string_view bytes);

// The error with the file's name in front of its message.
inline Failure in_file(const std::filesystem::path& file, const Error& error) {
  return Error{error.code, "'" + file.string() + "': " + error.message};
}

// A read-only map of a whole file, unmapped when the last owner lets go. Immutable, so any thread may read it. If
// another process truncates the file while it is mapped, reading past the new end is a bus error: model files must not
// be rewritten in place.
class MappedFile {
 public:
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Tells the kernel that these bytes are no longer needed in memory (they were repacked). Best effort.
  void drop(std::span<const std::byte> range) const;
  // Asks the kernel to start reading what follows `range`, which is probably needed next. Best effort.
  void read_ahead(std::span<const std::byte> range) const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace quire
