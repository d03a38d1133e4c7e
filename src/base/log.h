// SPDX-License-Identifier: Apache-2.0
// The program's logger: lines on standard error. A message whose level is off costs nothing. Only log.cc sees spdlog,
// whose headers and templates would take two seconds of each file that logs.
#pragma once

#include <fmt/core.h>

namespace quire {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets pattern and level, once at start. `level` is debug, info, warning or error (as --log-level takes them).
void init_logging(const char* level);
void flush_log();

bool logs(LogLevel level);
void write_log(LogLevel level, fmt::string_view format, fmt::format_args values);

// log_info("Loaded {} in {:.1f} s", name, seconds): one line, in fmt's format, which is checked when this is compiled.
template <typename... T>
void log_debug(fmt::format_string<T...> format, T&&... values) {
  if (logs(LogLevel::kDebug)) write_log(LogLevel::kDebug, format, fmt::make_format_args(values...));
}
template <typename... T>
void log_info(fmt::format_string<T...> format, T&&... values) {
  if (logs(LogLevel::kInfo)) write_log(LogLevel::kInfo, format, fmt::make_format_args(values...));
}
template <typename... T>
void log_warn(fmt::format_string<T...> format, T&&... values) {
  if (logs(LogLevel::kWarning)) write_log(LogLevel::kWarning, format, fmt::make_format_args(values...));
}
template <typename... T>
void log_error(fmt::format_string<T...> format, T&&... values) {
  if (logs(LogLevel::kError)) write_log(LogLevel::kError, format, fmt::make_format_args(values...));
}

}  // namespace quire
