// SPDX-License-Identifier: Apache-2.0
// RequestReader: turns the bytes of a connection into requests, or into a status and a sentence that says what is
// wrong.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/handler.h"

namespace quire::http {

struct ReadLimits {
  size_t max_body_bytes = size_t{32} << 20;
  size_t max_header_bytes = size_t{64} << 10;
  size_t max_headers = 256;
  std::string root_path;
};

// The parts of a request's target: "/a%20b?c=d" is the path "/a b" and the query "c=d". Nothing if the target is
// malformed, or its path has a control character or is not UTF-8. `root_path` is removed from the front of the path.
struct Target {
  std::string path;
  std::string query;
};
std::optional<Target> parse_target(std::string_view text, std::string_view root_path);

// Reads one request. Feed it bytes until it returns kDone or kBad; before that it returns kHead once, when the head is
// complete and nothing of the body has been read. It does no I/O, and expects hostile input. One thread at a time.
// REQUIRES: the limits outlive it.
class RequestReader {
 public:
  explicit RequestReader(const ReadLimits& limits);
  ~RequestReader();
  RequestReader(RequestReader&&) noexcept;
  RequestReader& operator=(RequestReader&&) noexcept;

  enum class Event { kNeedMore, kHead, kDone, kBad };
  // Reads from the front of `bytes` and sets `consumed` to the number that it has used. The rest must be fed again;
  // after kNeedMore, with more bytes appended.
  Event feed(std::string_view bytes, size_t& consumed);

  bool started() const;  // has read a byte

  // After kHead, and after kBad if method() is not empty: the request so far, without its body, peer and id. A HEAD
  // request has the method GET, and head_only() is true.
  api::HttpRequest& request();
  std::string_view method() const;  // as sent
  bool head_only() const;
  bool http10() const;
  bool keep_alive() const;
  bool expects_continue() const;
  bool complete() const;  // there is no body, or it has been read
  // After kBad.
  int bad_status() const;
  const std::string& bad_message() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::http
