// SPDX-License-Identifier: Apache-2.0
// The file that saves the messages typed in quire chat for later conversations.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace quire::cli {

// In QUIRE_HOME, else XDG_STATE_HOME/quire, else ~/.local/state/quire. Nothing if none of these is set.
std::optional<std::filesystem::path> chat_history_file();

// One JSON string per line, so that a message of several lines is one entry. Each message is appended when it is sent,
// so that concurrent conversations do not overwrite each other. Only the owner may read the file. A file that cannot be
// read or written is ignored, since the history is only a convenience.
class ChatHistory {
 public:
  // Without a file nothing is saved.
  explicit ChatHistory(std::optional<std::filesystem::path> file) : file_(std::move(file)) {}

  // The last messages, oldest first. Shortens the file if it is too long.
  std::vector<std::string> load() const;
  void append(const std::string& message) const;

 private:
  std::optional<std::filesystem::path> file_;
};

}  // namespace quire::cli
