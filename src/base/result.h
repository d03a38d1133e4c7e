// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or an Error that a request or a file caused; our own bugs use QUIRE_CHECK instead.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace quire {

// The kind of failure. The server maps it to an HTTP status and the CLI to an exit code, each in one function.
enum class ErrorCode {
  kInvalidArgument,  // a flag, field or value is wrong: the caller can fix it (400, exit 2)
  kNotFound,         // no such file, model or route (404, exit 1)
  kCorrupt,          // a file contradicts itself or is truncated (exit 1)
  kUnsupported,      // well formed, but not supported by quire (400, exit 1)
  kExhausted,        // memory, pages or time ran out (503, exit 1)
  kUnavailable,      // the network, a device or a peer did not answer (503, exit 1)
  kCancelled,        // the client disconnected or asked to stop
  kInternal,         // anything else; should be rare
};

// One failure: a kind, one sentence that says what was wrong and what to do, and the field of the request, if one is
// to blame.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string field = {};  // "temperature"; "" if the failure is not about one field
};

inline Error invalid_argument(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}
// A field of a request is wrong. The message is its name and `what`: "top_p" and "must be in (0, 1].".
inline Error invalid_field(std::string field, const std::string& what) {
  std::string message = field + " " + what;
  return {ErrorCode::kInvalidArgument, std::move(message), std::move(field)};
}
inline Error not_found(std::string message) {
  return {ErrorCode::kNotFound, std::move(message)};
}
inline Error corrupt(std::string message) {
  return {ErrorCode::kCorrupt, std::move(message)};
}
inline Error unsupported(std::string message, std::string field = {}) {
  return {ErrorCode::kUnsupported, std::move(message), std::move(field)};
}
inline Error exhausted(std::string message) {
  return {ErrorCode::kExhausted, std::move(message)};
}
inline Error unavailable(std::string message) {
  return {ErrorCode::kUnavailable, std::move(message)};
}

// A value or an Error. value() on an error is a bug of ours and aborts with the error's message.
template <typename T>
class [[nodiscard]] Result {
 public:
  using ValueType = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    QUIRE_CHECK(ok(), error().message.c_str());
    return std::get<0>(state_);
  }
  const T& value() const& {
    QUIRE_CHECK(ok(), error().message.c_str());
    return std::get<0>(state_);
  }
  T&& value() && {
    QUIRE_CHECK(ok(), error().message.c_str());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  using ValueType = void;
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose
  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace quire

#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)

// QUIRE_TRY(expr): returns the error from the enclosing function if expr failed.
#define QUIRE_TRY(expr)                                    \
  do {                                                     \
    auto quire_status_ = (expr);                           \
    if (!quire_status_.ok()) return quire_status_.error(); \
  } while (0)

// QUIRE_ASSIGN(auto x, expr): x gets the value, or the enclosing function returns the error.
#define QUIRE_ASSIGN(lhs, expr) QUIRE_ASSIGN_IMPL(QUIRE_CONCAT(quire_result_, __LINE__), lhs, expr)
#define QUIRE_ASSIGN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                      \
  if (!tmp.ok()) return tmp.error();      \
  lhs = std::move(tmp).value()
