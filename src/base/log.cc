// SPDX-License-Identifier: Apache-2.0
// Sets up the program's logger.
#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include "base/env.h"

namespace quire {

void init_logging(const char* level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  if (env("NO_COLOR")) sink->set_color_mode(spdlog::color_mode::never);  // otherwise coloured on a terminal
  auto logger = std::make_shared<spdlog::logger>("quire", std::move(sink));
  logger->set_pattern("%^%L%$ %m-%d %H:%M:%S.%e %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace quire
