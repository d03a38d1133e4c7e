// SPDX-License-Identifier: Apache-2.0
// Sets up the program's logger.
#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include "base/env.h"
#include "base/log_prefix.h"

namespace quire {

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

}  // namespace quire
