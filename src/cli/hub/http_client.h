// SPDX-License-Identifier: Apache-2.0
// HTTP and HTTPS GET with libcurl; redirects never send the token to another host.
#pragma once

#include <atomic>
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
  std::string token;        // sent as "Authorization: Bearer ...", only to the first host
  uint64_t range_from = 0;  // > 0: requests the bytes from this offset on
  std::string if_range;     // an ETag: the range only if the file is unchanged, else the whole file
};

struct HttpReply {
  long status = 0;
  // Names in lower case. Headers "x-..." of redirects are kept (a hub sends checksums in them), others are not.
  std::map<std::string, std::string> headers;
  const std::string* header(const std::string& lower_name) const;
};

// Gets one URL at a time. Not thread-safe. Keeps its connection between calls.
class HttpClient {
 public:
  // Called for each piece of the final reply's body, once status and headers are known. An Error stops the transfer,
  // and get() returns it.
  using BodySink = std::function<Status(const HttpReply&, std::string_view)>;

  // A transfer without data for `stall_seconds` is aborted. Once `cancelled` is true, one ends with kCancelled.
  explicit HttpClient(int stall_seconds, const std::atomic<bool>* cancelled = nullptr);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any status is a reply. kUnavailable: the network failed, and another try may help.
  Result<HttpReply> get(const HttpRequest& request, const BodySink& sink);

 private:
  struct Exchange;
  static size_t on_header(char* data, size_t size, size_t count, void* exchange);
  static size_t on_body(char* data, size_t size, size_t count, void* exchange);
  Status perform(Exchange& exchange, const HttpRequest& request, const std::string& url, bool send_token);

  void* curl_;  // CURL*, owned
  int stall_seconds_;
  const std::atomic<bool>* cancelled_;
};

// "scheme://host:port" of a URL in lower case with an explicit port; "" if it is not an http(s) URL.
std::string url_origin(const std::string& url);
// Resolves `location` against `base`; "" if that fails.
std::string url_join(const std::string& base, const std::string& location);
// Percent-encodes everything except unreserved characters and those in `keep` ("/" for paths).
std::string url_encode(std::string_view text, std::string_view keep = "");

}  // namespace quire::cli
