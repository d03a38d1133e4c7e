// SPDX-License-Identifier: Apache-2.0
// ApiError: what is sent when a request fails, in OpenAI's shape.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "api/handler.h"
#include "base/result.h"

namespace quire::api {

// One failure as a client sees it.
struct ApiError {
  int status = 400;
  std::string type = "BadRequestError";
  std::string message;
  std::string param;          // the field; "" when it is about none
  int64_t retry_after_s = 0;  // 0: no Retry-After header

  // {"error":{"message","type","param","code"}}
  std::string body() const;
  Headers headers() const;
  // Anthropic's: {"type":"error","error":{"type","message"}}
  std::string anthropic_body() const;
};

// A field is wrong: the message should begin with its name.
ApiError bad_request(std::string message, std::string param = "");
ApiError not_found_error(std::string message, std::string param = "");
// The one place where failures from the layers below become HTTP errors; `param` is the error's field.
ApiError to_api_error(const Error& error);

// A value, or what to answer instead.
template <typename T>
class [[nodiscard]] ApiResult {
 public:
  using ValueType = T;
  ApiResult(T value) : state_(std::in_place_index<0>, std::move(value)) {}                // NOLINT: implicit on purpose
  ApiResult(ApiError error) : state_(std::in_place_index<1>, std::move(error)) {}         // NOLINT
  ApiResult(const Error& error) : state_(std::in_place_index<1>, to_api_error(error)) {}  // NOLINT
  bool ok() const { return state_.index() == 0; }
  T& value() & { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  T* operator->() { return &value(); }
  const ApiError& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, ApiError> state_;
};
struct Ok {};
using ApiStatus = ApiResult<Ok>;

}  // namespace quire::api
