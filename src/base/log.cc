// SPDX-License-Identifier: Apache-2.0
// Sets up the program's logger, and writes to it.
#include "base/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

#include "base/env.h"
#include "base/log_prefix.h"
#include "base/printable.h"

namespace quire {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

namespace {

std::string& log_prefix() {
  static std::string prefix;
  return prefix;
}

void set_pattern(spdlog::logger& logger) {
  logger.set_pattern("%^%L%$ %m-%d %H:%M:%S.%e " + log_prefix() + "%v");
}

// Standard error may be a pipe or a socket whose other end is not read any more. A line that finds no room there is
// lost, because whoever logs must go on: after kPatience for the first one, at once for those after it.
class Outlet {
 public:
  // Finds out what standard error is.
  void inspect() {
    struct stat status = {};
    const std::scoped_lock lock(mutex_);
    may_be_full_ = ::fstat(STDERR_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
  }

  void write(spdlog::level::level_enum level, const std::string& line) {
    const std::scoped_lock lock(mutex_);
    const auto put = [](spdlog::level::level_enum at, const std::string& text) {
      spdlog::default_logger_raw()->log(at, spdlog::string_view_t(text));
    };
    if (may_be_full_ && !waits_for_room(line.size())) {
      lost_++;
      return;
    }
    if (lost_ > 0) {
      put(spdlog::level::warn, fmt::format("{} lines of the log were lost because nobody read them", lost_));
      lost_ = 0;
      if (!waits_for_room(line.size())) {
        lost_++;
        return;
      }
    }
    put(level, line);
  }

 private:
  static constexpr std::chrono::milliseconds kPatience{1000};
  static constexpr size_t kPiece = 4096;   // a pipe that can be written to has room for so much
  static constexpr size_t kPrefix = 1024;  // more than is written in front of a line

  // Whether a pipe that can be written to has room for so many bytes, or will never have more.
  static bool has_room(size_t bytes) {
#ifdef F_GETPIPE_SZ
    int unread = 0;
    const int size = ::fcntl(STDERR_FILENO, F_GETPIPE_SZ);
    if (bytes > kPiece && size > 0 && ::ioctl(STDERR_FILENO, FIONREAD, &unread) == 0) {
      return unread == 0 || static_cast<size_t>(size - unread) >= bytes + kPiece;
    }
#endif
    return true;
  }
  bool waits_for_room(size_t bytes) const {
    const auto until = std::chrono::steady_clock::now() + (lost_ > 0 ? std::chrono::milliseconds(0) : kPatience);
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      pollfd entry{STDERR_FILENO, POLLOUT, 0};
      if (::poll(&entry, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) == 1 && has_room(bytes + kPrefix)) {
        return true;
      }
      if (std::chrono::steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::mutex mutex_;
  bool may_be_full_ = false;
  int64_t lost_ = 0;
};
Outlet& outlet() {
  static Outlet* const one = new Outlet;  // threads may log while the process ends
  return *one;
}

}  // namespace

void set_log_prefix(const std::string& prefix) {
  std::string escaped;
  for (const char c : prefix) escaped += c == '%' ? "%%" : std::string(1, c);
  log_prefix() = escaped + " ";
  set_pattern(*spdlog::default_logger());
}

void init_logging(const char* level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  if (env("NO_COLOR")) sink->set_color_mode(spdlog::color_mode::never);  // otherwise coloured on a terminal
  auto logger = std::make_shared<spdlog::logger>("quire", std::move(sink));
  set_pattern(*logger);
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
  outlet().inspect();
}

void flush_log() {
  spdlog::default_logger_raw()->flush();
}

bool logs(LogLevel level) {
  return spdlog::default_logger_raw()->should_log(spdlog_level(level));
}

void write_log(LogLevel level, fmt::string_view format, fmt::format_args values) {
  const spdlog::level::level_enum at = spdlog_level(level);
  if (spdlog::default_logger_raw()->should_log(at)) outlet().write(at, printable(fmt::vformat(format, values)));
}

}  // namespace quire
