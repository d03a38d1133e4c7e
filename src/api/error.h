// SPDX-License-Identifier: Apache-2.0
// ApiError: what a client is sent when its request fails, in OpenAI's or Anthropic's shape.
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
  std::string param;          // the field that is wrong; "" if the failure is not about one field
  int64_t retry_after_s = 0;  // 0: no Retry-After header

  // OpenAI's shape: {"error":{"message","type","param","code"}}
  std::string body() const;
  // Anthropic's shape: {"type":"error","error":{"type","message"}}
  std::string anthropic_body() const;
  Headers headers() const;
};

ApiError bad_request(std::string message, std::string param = "");
// The message is the field's name and `what`: "messages[0].role" and "must be a string.".
ApiError bad_field(const std::string& field, const std::string& what);
ApiError not_found_error(std::string message, std::string param = "");
// The one place where failures of the layers below become HTTP errors.
ApiError to_api_error(const Error& error);

// A value, or the error to answer with. QUIRE_TRY and QUIRE_ASSIGN work with it, and turn a Result's Error into one.
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
