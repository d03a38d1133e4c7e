// SPDX-License-Identifier: Apache-2.0
// Reads the chat history and appends to it.
#include "cli/chat_history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "base/env.h"
#include "base/file.h"
#include "base/json.h"

namespace quire::cli {
namespace fs = std::filesystem;
namespace {

constexpr size_t kKept = 1000;                         // messages
constexpr size_t kLongFileBytes = size_t{4} << 20;     // a longer file is shortened
constexpr size_t kMaxFileBytes = size_t{16} << 20;     // a larger file is not a history
constexpr size_t kMaxMessageBytes = size_t{64} << 10;  // longer messages are not saved

// Writes with one call, so that lines of two processes do not mix.
bool write_lines(const fs::path& file, const std::string& lines, int mode) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | mode, 0600);
  if (descriptor < 0) return false;
  const bool whole = ::write(descriptor, lines.data(), lines.size()) == static_cast<ssize_t>(lines.size());
  ::close(descriptor);
  return whole;
}

std::string line_of(const std::string& message) {
  std::string line;
  json::append_quoted(line, message);
  return line + "\n";
}

}  // namespace

std::optional<fs::path> chat_history_file() {
  constexpr const char* kName = "chat_history.jsonl";
  if (const auto home = env("QUIRE_HOME")) return fs::path(*home) / kName;
  if (const auto state = env("XDG_STATE_HOME")) return fs::path(*state) / "quire" / kName;
  if (const auto home = env("HOME")) return fs::path(*home) / ".local" / "state" / "quire" / kName;
  return std::nullopt;
}

std::vector<std::string> ChatHistory::load() const {
  std::vector<std::string> messages;
  if (!file_) return messages;
  const auto text = read_file(*file_, kMaxFileBytes);
  if (!text.ok()) return messages;
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    const auto line = json::parse(std::string_view(*text).substr(at, end - at));
    if (line.ok() && line->is_string() && !line->as_string().empty()) messages.push_back(line->as_string());
    at = end + 1;
  }
  if (messages.size() <= 2 * kKept && text->size() <= kLongFileBytes) return messages;
  size_t first = messages.size();  // keeps the newest messages within both limits
  for (size_t bytes = 0; first > 0 && messages.size() - first < kKept; --first) {
    bytes += messages[first - 1].size();
    if (bytes > kLongFileBytes / 2) break;
  }
  messages.erase(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(first));
  std::string lines;
  for (const std::string& message : messages) lines += line_of(message);
  const fs::path fresh = file_->string() + "." + std::to_string(::getpid());
  std::error_code ignored;
  if (write_lines(fresh, lines, O_TRUNC)) fs::rename(fresh, *file_, ignored);
  fs::remove(fresh, ignored);
  return messages;
}

void ChatHistory::append(const std::string& message) const {
  if (!file_ || message.empty() || message.size() > kMaxMessageBytes) return;
  std::error_code ignored;
  fs::create_directories(file_->parent_path(), ignored);
  const uintmax_t size = fs::file_size(*file_, ignored);
  if (!ignored && size > kMaxFileBytes / 2) return;  // load() shortens it at the next start
  write_lines(*file_, line_of(message), O_APPEND);
}

}  // namespace quire::cli
