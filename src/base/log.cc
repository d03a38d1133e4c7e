// SPDX-License-Identifier: Apache-2.0
// Sets up the program's logger, and writes to it.
#include "base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

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
}

void flush_log() {
  spdlog::default_logger_raw()->flush();
}

bool logs(LogLevel level) {
  return spdlog::default_logger_raw()->should_log(spdlog_level(level));
}

void write_log(LogLevel level, fmt::string_view format, fmt::format_args values) {
  spdlog::default_logger_raw()->log(spdlog_level(level),
                                    spdlog::string_view_t(printable(fmt::vformat(format, values))));
}

}  // namespace quire
