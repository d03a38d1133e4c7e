// SPDX-License-Identifier: Apache-2.0
// The JSON of errors, and the HTTP status of each kind of failure.
#include "api/error.h"

#include "api/json_writer.h"
#include "base/failure.h"
#include "base/utf8.h"

template class quire::FailureOf<quire::api::ApiError>;

namespace quire::api {
namespace {

// Messages may quote headers, paths and model files, which need not be UTF-8; the answer must be.
std::string valid(std::string_view text) {
  std::string out;
  utf8::append_valid(out, text);
  return out;
}

}  // namespace

std::string ApiError::body() const {
  JsonWriter w;
  w.open_object().key("error").open_object().member("message", valid(message)).member("type", type);
  w.key("param").value_or_null(!param.empty(), [&] { w.string(valid(param)); });
  w.member_int("code", status).close_object().close_object();
  return w.take();
}

std::string ApiError::anthropic_body() const {
  const char* name = status == 401   ? "authentication_error"
                     : status == 403 ? "permission_error"
                     : status == 404 ? "not_found_error"
                     : status == 413 ? "request_too_large"
                     : status == 429 ? "rate_limit_error"
                     : status == 503 ? "overloaded_error"
                     : status >= 500 ? "api_error"
                                     : "invalid_request_error";
  JsonWriter w;
  w.open_object().member("type", "error").key("error").open_object();
  w.member("type", name).member("message", valid(message)).close_object().close_object();
  return w.take();
}

Headers ApiError::headers() const {
  if (retry_after_s == 0) return {};
  return {{"Retry-After", std::to_string(retry_after_s)}};
}

ApiFailure bad_request(std::string_view message, std::string_view param) {
  return ApiError{400, "BadRequestError", std::string(message), std::string(param)};
}

ApiFailure bad_request(Pieces message, std::string_view param) {
  return bad_request(joined(message), param);
}

ApiFailure bad_field(std::string_view field, std::string_view what) {
  return bad_request({field, " ", what}, field);
}

ApiFailure bad_field(std::string_view field, Pieces what) {
  return bad_field(field, joined(what));
}

ApiFailure at_place(ApiError error, const std::string& place) {
  error.message = place + ": " + error.message;
  if (error.param.empty()) error.param = place;
  return error;
}

ApiFailure not_found_error(std::string_view message, std::string_view param) {
  return ApiError{404, "NotFoundError", std::string(message), std::string(param)};
}

ApiFailure to_api_error(const Error& error) {
  // Some layers quote what they were given, such as a pattern of 200 KB.
  const std::string message = utf8::without_middle(error.message, 1000);
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kCorrupt:
      return bad_request(message, error.field);
    case ErrorCode::kNotFound:
      return not_found_error(message, error.field);
    case ErrorCode::kExhausted:
    case ErrorCode::kUnavailable:
      return ApiError{503, "Service Unavailable", message, ""};
    case ErrorCode::kCancelled:
      return ApiError{499, "Cancelled", message, ""};
    case ErrorCode::kInternal:
      break;
  }
  return ApiError{500, "InternalServerError", message, ""};
}

}  // namespace quire::api
