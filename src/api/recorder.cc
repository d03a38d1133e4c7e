// SPDX-License-Identifier: Apache-2.0
// Appends each line with one write, so that a reader never sees half of one unless the disk is full.
#include "api/recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/log.h"

namespace quire::api {

Result<std::shared_ptr<Recorder>> Recorder::open(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) {
    return invalid_argument({"--record-requests: '", path.string(), "' cannot be written: ", std::strerror(errno)});
  }
  return std::shared_ptr<Recorder>(new Recorder(file, path));
}

Recorder::~Recorder() {
  ::close(file_);
}

void Recorder::add(std::string line) {
  line += '\n';
  const std::lock_guard lock(mutex_);
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t written = ::write(file_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      if (!failed_) log_error("--record-requests: '{}' cannot be written: {}", path_.string(), std::strerror(errno));
      failed_ = true;
      return;
    }
    left.remove_prefix(static_cast<size_t>(written));
  }
  failed_ = false;
}

}  // namespace quire::api
