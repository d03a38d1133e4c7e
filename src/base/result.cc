// SPDX-License-Identifier: Apache-2.0
// What results do with errors, out of line: see Failure.
#include "base/result.h"

namespace quire {

Error invalid_argument(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}
Error invalid_field(std::string field, const std::string& what) {
  std::string message = field + " " + what;
  return {ErrorCode::kInvalidArgument, std::move(message), std::move(field)};
}
Error not_found(std::string message) {
  return {ErrorCode::kNotFound, std::move(message)};
}
Error corrupt(std::string message) {
  return {ErrorCode::kCorrupt, std::move(message)};
}
Error unsupported(std::string message, std::string field) {
  return {ErrorCode::kUnsupported, std::move(message), std::move(field)};
}
Error exhausted(std::string message) {
  return {ErrorCode::kExhausted, std::move(message)};
}
Error unavailable(std::string message) {
  return {ErrorCode::kUnavailable, std::move(message)};
}

Failure::Failure(const Error& error) : error_(new Error(error)) {}
Failure::Failure(const Failure& other) : error_(other.error_ == nullptr ? nullptr : new Error(*other.error_)) {}
Failure& Failure::operator=(const Failure& other) {
  Error* copy = other.error_ == nullptr ? nullptr : new Error(*other.error_);
  delete error_;
  error_ = copy;
  return *this;
}
void Failure::forget() {
  delete error_;
}

}  // namespace quire
