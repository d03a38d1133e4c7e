// SPDX-License-Identifier: Apache-2.0
// Turns a connection's bytes into requests; what it refuses it refuses with a status and a sentence.
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

// A request's target, taken apart: "/a%20b?c=d" is the path "/a b" and the query "c=d". Nothing when it is malformed,
// or its path holds a control character or is not UTF-8. `root_path` is taken off the front of the path.
struct Target {
  std::string path;
  std::string query;
};
std::optional<Target> parse_target(std::string_view text, std::string_view root_path);

// Reads one request. Feed it bytes until it says kDone or kBad; between, it says kHead once, when the head is complete
// and before any of the body is read. One connection, one thread; no I/O. Hostile input is the normal case. The limits
// must outlive it.
class RequestReader {
 public:
  explicit RequestReader(const ReadLimits& limits);
  ~RequestReader();
  RequestReader(RequestReader&&) noexcept;
  RequestReader& operator=(RequestReader&&) noexcept;

  enum class Event { kNeedMore, kHead, kDone, kBad };
  // Reads from the front of `bytes`; `consumed` says how many it is done with. The rest must be fed again, with more
  // behind it after kNeedMore.
  Event feed(std::string_view bytes, size_t& consumed);

  bool started() const;  // has seen a byte

  // After kHead, and after kBad if method() is not empty: the request so far, without its body, peer and id. HEAD is
  // told as GET, with head_only().
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
