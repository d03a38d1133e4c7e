// SPDX-License-Identifier: Apache-2.0
// GET over HTTP and HTTPS with redirects that never carry the token to another host; libcurl behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::cli {

struct HttpRequest {
  std::string url;
  std::string token;        // sent as "Authorization: Bearer ..." to the first host and to it alone
  uint64_t range_from = 0;  // > 0: asks for the bytes from there on
  std::string if_range;     // an ETag: the range only if the file is still that one, else the whole
};

struct HttpReply {
  long status = 0;
  // Names in lower case. A redirect's headers of the kind "x-..." stay (a hub states checksums there), others do not.
  std::map<std::string, std::string> headers;
  const std::string* header(const std::string& lower_name) const;
};

// Gets one URL at a time. Not thread-safe; cheap to make; keeps its connection between calls.
class HttpClient {
 public:
  // Called for each piece of the final reply's body, once status and headers are known; an Error stops the transfer and
  // is what get() returns.
  using BodySink = std::function<Status(const HttpReply&, std::string_view)>;

  // `stall_seconds`: a transfer that moves nothing for that long is given up.
  explicit HttpClient(int stall_seconds);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any status that came is a reply. kUnavailable: the network failed, and another try may help.
  Result<HttpReply> get(const HttpRequest& request, const BodySink& sink);

 private:
  struct Exchange;
  static size_t on_header(char* data, size_t size, size_t count, void* exchange);
  static size_t on_body(char* data, size_t size, size_t count, void* exchange);
  Status perform(Exchange& exchange, const HttpRequest& request, const std::string& url, bool send_token);

  void* curl_;  // CURL*, owned
  int stall_seconds_;
};

// "scheme://host:port" of a URL in lower case with the port spelled out; "" when it is no http(s) URL.
std::string url_origin(const std::string& url);
// `location` as seen from `base`; "" when it cannot be resolved.
std::string url_join(const std::string& base, const std::string& location);
// Percent-encodes everything but unreserved characters; `keep` lists further ones to leave ("/" for paths).
std::string url_encode(std::string_view text, std::string_view keep = "");

}  // namespace quire::cli
