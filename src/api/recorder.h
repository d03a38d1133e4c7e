// SPDX-License-Identifier: Apache-2.0
// Recorder: a file with the receipts of all answers of a server, for quire replay.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"

namespace quire::api {

// Appends lines to a file that only its owner may read, since receipts hold prompts and answers as token ids. Any
// thread. When a line cannot be written (the disk is full), the server goes on and the log says so once.
class Recorder {
 public:
  static Result<std::shared_ptr<Recorder>> open(const std::filesystem::path& path);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void add(std::string line);  // without the end of the line

 private:
  Recorder(int file, std::filesystem::path path) : file_(file), path_(std::move(path)) {}

  std::mutex mutex_;
  const int file_;
  const std::filesystem::path path_;
  bool failed_ = false;  // the last line could not be written
};

}  // namespace quire::api
