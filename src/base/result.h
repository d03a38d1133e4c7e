// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or an Error that a request or a file caused; our own bugs use QUIRE_CHECK instead.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/message.h"

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

// An error on the heap, which copies share, or nothing. Failures are rare, and every function that can fail has the
// code of its results: so results are small, and what they do with errors is compiled once, in result.cc. E is Error,
// or what another folder has in its place.
template <typename E>
class FailureOf {
 public:
  FailureOf(const E& error);  // NOLINT: implicit on purpose
  FailureOf(E&& error);       // NOLINT: implicit on purpose
  FailureOf(const FailureOf& other) noexcept : shared_(other.shared_) {
    if (shared_ != nullptr) share();
  }
  FailureOf(FailureOf&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  FailureOf& operator=(FailureOf other) noexcept {
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~FailureOf() {
    if (shared_ != nullptr) forget();
  }
  const E& get() const;
  operator const E&() const& { return get(); }  // NOLINT: implicit on purpose
  operator E() const&& { return get(); }        // NOLINT: implicit on purpose; a copy, which outlives this

 private:
  struct Shared;
  template <typename T, typename F>
  friend class ResultOf;
  FailureOf() = default;
  bool none() const { return shared_ == nullptr; }
  void share() noexcept;
  void forget() noexcept;
  [[noreturn]] void no_value() const;
  Shared* shared_ = nullptr;
};
using Failure = FailureOf<Error>;
extern template class FailureOf<Error>;

// Each takes a sentence, or the pieces of one.
Failure invalid_argument(std::string_view message);
Failure invalid_argument(Pieces message);
Failure not_found(std::string_view message);
Failure not_found(Pieces message);
Failure corrupt(std::string_view message);
Failure corrupt(Pieces message);
Failure unsupported(std::string_view message);
Failure unsupported(Pieces message);
Failure exhausted(std::string_view message);
Failure exhausted(Pieces message);
Failure unavailable(std::string_view message);
Failure unavailable(Pieces message);
Failure unsupported(std::string_view message, std::string_view field);
Failure unsupported(Pieces message, std::string_view field);
// A field of a request is wrong. The message is its name and `what`: "top_p" and "must be in (0, 1].".
Failure invalid_field(std::string_view field, std::string_view what);
Failure invalid_field(std::string_view field, Pieces what);

// A value or an error. value() on an error is a bug of ours and aborts with the error's message. A union of our own,
// since std::variant takes several times as long to compile.
template <typename T, typename E>
class [[nodiscard]] ResultOf {
 public:
  using ValueType = T;
  ResultOf(T&& value) { std::construct_at(&value_, std::move(value)); }      // NOLINT: implicit on purpose
  ResultOf(const T& value) { std::construct_at(&value_, value); }            // NOLINT: implicit on purpose
  ResultOf(const E& error) : failure_(error) {}                              // NOLINT: implicit on purpose
  ResultOf(E&& error) : failure_(std::move(error)) {}                        // NOLINT: implicit on purpose
  ResultOf(FailureOf<E> failure) noexcept : failure_(std::move(failure)) {}  // NOLINT: implicit on purpose
  ResultOf(const ResultOf& other) : failure_(other.failure_) {
    if (ok()) std::construct_at(&value_, other.value_);
  }
  ResultOf(ResultOf&& other) noexcept : failure_(std::as_const(other.failure_)) {  // which stays an error if it is one
    if (ok()) std::construct_at(&value_, std::move(other.value_));
  }
  ResultOf& operator=(ResultOf other) noexcept {
    if (ok()) std::destroy_at(&value_);
    failure_ = other.failure_;
    if (ok()) std::construct_at(&value_, std::move(other.value_));
    return *this;
  }
  ~ResultOf() {
    if (ok()) std::destroy_at(&value_);
  }

  bool ok() const { return failure_.none(); }
  explicit operator bool() const { return ok(); }
  T& value() & {
    if (!ok()) [[unlikely]]
      failure_.no_value();
    return value_;
  }
  const T& value() const& {
    if (!ok()) [[unlikely]]
      failure_.no_value();
    return value_;
  }
  T&& value() && {
    if (!ok()) [[unlikely]]
      failure_.no_value();
    return std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const E& error() const { return failure_.get(); }
  const FailureOf<E>& failure() const { return failure_; }

 private:
  FailureOf<E> failure_;
  union {
    T value_;
  };
};

// Success, or an error.
template <typename E>
class [[nodiscard]] ResultOf<void, E> {
 public:
  using ValueType = void;
  ResultOf() = default;
  ResultOf(const E& error) : failure_(error) {}                              // NOLINT: implicit on purpose
  ResultOf(E&& error) : failure_(std::move(error)) {}                        // NOLINT: implicit on purpose
  ResultOf(FailureOf<E> failure) noexcept : failure_(std::move(failure)) {}  // NOLINT: implicit on purpose
  bool ok() const { return failure_.none(); }
  explicit operator bool() const { return ok(); }
  const E& error() const { return failure_.get(); }
  const FailureOf<E>& failure() const { return failure_; }

 private:
  FailureOf<E> failure_;
};

template <typename T>
using Result = ResultOf<T, Error>;
using Status = Result<void>;

}  // namespace quire

#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)

// QUIRE_TRY(expr): returns the error from the enclosing function if expr failed.
#define QUIRE_TRY(expr)                                      \
  do {                                                       \
    auto quire_status_ = (expr);                             \
    if (!quire_status_.ok()) return quire_status_.failure(); \
  } while (0)

// QUIRE_ASSIGN(auto x, expr): x gets the value, or the enclosing function returns the error.
#define QUIRE_ASSIGN(lhs, expr) QUIRE_ASSIGN_IMPL(QUIRE_CONCAT(quire_result_, __LINE__), lhs, expr)
#define QUIRE_ASSIGN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                      \
  if (!tmp.ok()) return tmp.failure();    \
  lhs = std::move(tmp).value()
