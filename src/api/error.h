// SPDX-License-Identifier: Apache-2.0
// ApiError: what a client is sent when its request fails, in OpenAI's or Anthropic's shape.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "api/handler.h"
#include "base/result.h"

namespace quire::api {

// One failure as a client sees it.
struct ApiError {
  int status = 400;
  std::string type = "BadRequestError";
  std::string message;
  std::string param;          // the field that is wrong; "" if the failure is not about one field
  int64_t retry_after_s = 0;  // 0: no Retry-After header

  // OpenAI's shape: {"error":{"message","type","param","code"}}
  std::string body() const;
  // Anthropic's shape: {"type":"error","error":{"type","message"}}
  std::string anthropic_body() const;
  Headers headers() const;
};

using ApiFailure = FailureOf<ApiError>;
}  // namespace quire::api

extern template class quire::FailureOf<quire::api::ApiError>;

namespace quire::api {

ApiFailure bad_request(std::string_view message, std::string_view param = "");
ApiFailure bad_request(Pieces message, std::string_view param = "");
// The message is the field's name and `what`: "messages[0].role" and "must be a string.".
ApiFailure bad_field(std::string_view field, std::string_view what);
ApiFailure bad_field(std::string_view field, Pieces what);
// Says which of several texts of a request the failure is about: "input[3]: the prompt is empty".
ApiFailure at_place(ApiError error, const std::string& place);
ApiFailure not_found_error(std::string_view message, std::string_view param = "");
// The one place where failures of the layers below become HTTP errors.
ApiFailure to_api_error(const Error& error);

// A value, or the error to answer with. QUIRE_TRY and QUIRE_ASSIGN work with it, and turn a Result's Error into one.
template <typename T>
class [[nodiscard]] ApiResult : public ResultOf<T, ApiError> {
 public:
  using ResultOf<T, ApiError>::ResultOf;
  ApiResult(const Error& error) : ResultOf<T, ApiError>(to_api_error(error)) {}        // NOLINT: implicit on purpose
  ApiResult(const Failure& failure) : ResultOf<T, ApiError>(to_api_error(failure)) {}  // NOLINT: implicit on purpose
};
struct Ok {};
using ApiStatus = ApiResult<Ok>;

}  // namespace quire::api
