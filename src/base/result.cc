// SPDX-License-Identifier: Apache-2.0
// What results do with errors, out of line: see FailureOf.
#include "base/result.h"

#include "base/failure.h"

namespace quire {

template class FailureOf<Error>;

Failure invalid_argument(std::string_view message) {
  return Error{ErrorCode::kInvalidArgument, std::string(message)};
}
Failure invalid_argument(Pieces message) {
  return Error{ErrorCode::kInvalidArgument, joined(message)};
}
Failure not_found(std::string_view message) {
  return Error{ErrorCode::kNotFound, std::string(message)};
}
Failure not_found(Pieces message) {
  return Error{ErrorCode::kNotFound, joined(message)};
}
Failure corrupt(std::string_view message) {
  return Error{ErrorCode::kCorrupt, std::string(message)};
}
Failure corrupt(Pieces message) {
  return Error{ErrorCode::kCorrupt, joined(message)};
}
Failure unsupported(std::string_view message) {
  return Error{ErrorCode::kUnsupported, std::string(message)};
}
Failure unsupported(Pieces message) {
  return Error{ErrorCode::kUnsupported, joined(message)};
}
Failure exhausted(std::string_view message) {
  return Error{ErrorCode::kExhausted, std::string(message)};
}
Failure exhausted(Pieces message) {
  return Error{ErrorCode::kExhausted, joined(message)};
}
Failure unavailable(std::string_view message) {
  return Error{ErrorCode::kUnavailable, std::string(message)};
}
Failure unavailable(Pieces message) {
  return Error{ErrorCode::kUnavailable, joined(message)};
}
Failure unsupported(std::string_view message, std::string_view field) {
  return Error{ErrorCode::kUnsupported, std::string(message), std::string(field)};
}
Failure unsupported(Pieces message, std::string_view field) {
  return unsupported(joined(message), field);
}
Failure invalid_field(std::string_view field, std::string_view what) {
  return Error{ErrorCode::kInvalidArgument, joined({field, " ", what}), std::string(field)};
}
Failure invalid_field(std::string_view field, Pieces what) {
  return invalid_field(field, joined(what));
}

}  // namespace quire
