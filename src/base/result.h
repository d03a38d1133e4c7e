// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or an Error that a request or a file caused; our own bugs use QUIRE_CHECK instead.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

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

Error invalid_argument(std::string message);
// A field of a request is wrong. The message is its name and `what`: "top_p" and "must be in (0, 1].".
Error invalid_field(std::string field, const std::string& what);
Error not_found(std::string message);
Error corrupt(std::string message);
Error unsupported(std::string message, std::string field = {});
Error exhausted(std::string message);
Error unavailable(std::string message);

// An error on the heap, or nothing. Failures are rare, and every function that can fail has the code of its results:
// so results are small, and what they do with errors is compiled once, in result.cc.
class Failure {
 public:
  Failure() = default;
  explicit Failure(const Error& error);
  Failure(const Failure& other);  // a moved-from result keeps its error, so there is no move
  Failure& operator=(const Failure& other);
  ~Failure() {
    if (error_ != nullptr) forget();
  }
  bool none() const { return error_ == nullptr; }
  const Error& get() const {
    QUIRE_CHECK(error_ != nullptr, "a result without an error was asked for its error");
    return *error_;
  }

 private:
  void forget();
  Error* error_ = nullptr;
};

// A value or an Error. value() on an error is a bug of ours and aborts with the error's message. A union of our own,
// since std::variant takes several times as long to compile.
template <typename T>
class [[nodiscard]] Result {
 public:
  using ValueType = T;
  Result(T value) { std::construct_at(&value_, std::move(value)); }  // NOLINT: implicit on purpose
  Result(const Error& error) : failure_(error) {}                    // NOLINT: implicit on purpose
  Result(const Result& other) : failure_(other.failure_) {
    if (ok()) std::construct_at(&value_, other.value_);
  }
  Result(Result&& other) noexcept : failure_(other.failure_) {
    if (ok()) std::construct_at(&value_, std::move(other.value_));
  }
  Result& operator=(Result other) noexcept {
    if (ok()) std::destroy_at(&value_);
    failure_ = other.failure_;
    if (ok()) std::construct_at(&value_, std::move(other.value_));
    return *this;
  }
  ~Result() {
    if (ok()) std::destroy_at(&value_);
  }

  bool ok() const { return failure_.none(); }
  explicit operator bool() const { return ok(); }
  T& value() & {
    QUIRE_CHECK(ok(), error().message.c_str());
    return value_;
  }
  const T& value() const& {
    QUIRE_CHECK(ok(), error().message.c_str());
    return value_;
  }
  T&& value() && {
    QUIRE_CHECK(ok(), error().message.c_str());
    return std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return failure_.get(); }

 private:
  Failure failure_;
  union {
    T value_;
  };
};

// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  using ValueType = void;
  Result() = default;
  Result(const Error& error) : failure_(error) {}  // NOLINT: implicit on purpose
  bool ok() const { return failure_.none(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return failure_.get(); }

 private:
  Failure failure_;
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
