// SPDX-License-Identifier: Apache-2.0
// The file that keeps what was typed in quire chat from one conversation to the next.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace quire::cli {

// Where it is: QUIRE_HOME, else XDG_STATE_HOME/quire, else ~/.local/state/quire. Nothing when none of these is known.
std::optional<std::filesystem::path> chat_history_file();

// One JSON string per line, so that a message of several lines is one entry. Each message is appended as it is sent, so
// several conversations at once do not overwrite each other. Only its owner may read the file. It is a convenience: a
// file that cannot be read or written is ignored.
class ChatHistory {
 public:
  // Without a file nothing is kept.
  explicit ChatHistory(std::optional<std::filesystem::path> file) : file_(std::move(file)) {}

  // The last messages, oldest first. Shortens the file when it has grown long.
  std::vector<std::string> load() const;
  void append(const std::string& message) const;

 private:
  std::optional<std::filesystem::path> file_;
};

}  // namespace quire::cli
