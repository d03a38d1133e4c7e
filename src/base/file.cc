// SPDX-License-Identifier: Apache-2.0
// File reading and mapping over POSIX calls.
#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace quire {
namespace {

Failure open_error(const std::filesystem::path& path) {
  const std::string why = std::strerror(errno);
  if (errno == ENOENT || errno == ENOTDIR) return not_found({"cannot open '", path.string(), "': ", why});
  return unavailable({"cannot open '", path.string(), "': ", why});
}

// Closes a descriptor at the end of a scope.
struct Descriptor {
  explicit Descriptor(int fd_in) : fd(fd_in) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

}  // namespace

Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) return open_error(path);
  struct stat info {};
  if (::fstat(file.fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    return invalid_argument({"'", path.string(), "' is a folder, not a file"});
  }
  std::string bytes;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(file.fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return unavailable({"cannot read '", path.string(), "': ", std::strerror(errno)});
    if (n == 0) return bytes;
    if (bytes.size() + static_cast<size_t>(n) > max_bytes) {
      return corrupt({"'", path.string(), "' is larger than ", max_bytes, " bytes, the limit for a file of its kind"});
    }
    bytes.append(buffer, static_cast<size_t>(n));
  }
}

Status write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.flush();
  if (!out) return unavailable({"cannot write '", path.string(), "': ", std::strerror(errno)});
  return {};
}

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) return open_error(path);
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return open_error(path);
  if (!S_ISREG(info.st_mode)) return invalid_argument({"'", path.string(), "' is not a regular file"});
  std::shared_ptr<MappedFile> map(new MappedFile());
  map->path_ = path;
  map->size_ = static_cast<size_t>(info.st_size);
  if (map->size_ > 0) {
    void* at = ::mmap(nullptr, map->size_, PROT_READ, MAP_SHARED, file.fd, 0);
    if (at == MAP_FAILED) return exhausted({"cannot map '", path.string(), "': ", std::strerror(errno)});
    map->data_ = static_cast<const std::byte*>(at);
  }
  return std::shared_ptr<const MappedFile>(std::move(map));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(std::span<const std::byte> range) const {
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void MappedFile::read_ahead(std::span<const std::byte> range) const {
  // The file is read ahead in windows, so that its many small tensors cause one system call and not one each.
  constexpr size_t kWindow = size_t{32} << 20;
  if (range.empty()) return;
  const size_t offset = static_cast<size_t>(range.data() + range.size() - data_);
  const size_t next = offset / kWindow * kWindow + kWindow;
  if (next >= size_ || (offset - range.size()) / kWindow == offset / kWindow) return;
  ::madvise(const_cast<std::byte*>(data_) + next, std::min(kWindow, size_ - next), MADV_WILLNEED);
}

}  // namespace quire
