// SPDX-License-Identifier: Apache-2.0
// QUIRE_CHECK: for our own bugs. A failed check prints where and why and aborts, in every build type.
#pragma once

namespace quire {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* why);

}  // namespace quire

// QUIRE_CHECK(condition) or QUIRE_CHECK(condition, "why it must hold").
#define QUIRE_CHECK(condition, ...)                                                           \
  do {                                                                                        \
    if (!(condition)) [[unlikely]] {                                                          \
      ::quire::check_failed(__FILE__, __LINE__, #condition, ::quire::check_why(__VA_ARGS__)); \
    }                                                                                         \
  } while (0)

namespace quire {
inline const char* check_why(const char* why = "") {
  return why;
}
}  // namespace quire
