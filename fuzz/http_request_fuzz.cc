// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reading of HTTP requests: the bytes of a connection give the same requests however they are split.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "http/request_reader.h"

namespace {

using namespace quire;
using Event = http::RequestReader::Event;

// Reads one request after the other, `step` more bytes at a time, and records those that are complete. (When an invalid
// request is detected may depend on the split: Beast waits for the end of a header once it had to wait at all.)
std::string read_all(const http::ReadLimits& limits, std::string_view bytes, size_t step) {
  std::string seen;
  std::string head;
  http::RequestReader reader(limits);
  size_t begin = 0;
  size_t end = 0;
  for (;;) {
    size_t consumed = 0;
    const Event event = reader.feed(bytes.substr(begin, end - begin), consumed);
    QUIRE_CHECK(consumed <= end - begin);
    begin += consumed;
    switch (event) {
      case Event::kNeedMore:
        if (end == bytes.size()) return seen;
        QUIRE_CHECK(end - begin <= limits.max_header_bytes + (size_t{16} << 10), "the buffered data must be bounded");
        end = std::min(bytes.size(), end + step);
        break;
      case Event::kHead: {
        const api::HttpRequest& request = reader.request();
        QUIRE_CHECK(request.path == "*" || request.path.starts_with('/'));
        QUIRE_CHECK(request.path.find('\0') == std::string::npos && request.headers.size() <= limits.max_headers);
        head = std::string(reader.method()) + " " + request.path + " " + request.query + "\n";
        for (const auto& [name, value] : request.headers) head += name + ": " + value + "\n";
        break;
      }
      case Event::kDone:
        QUIRE_CHECK(reader.request().body.size() <= limits.max_body_bytes);
        seen += head + "body " + reader.request().body + (reader.keep_alive() ? " keep\n" : " close\n");
        reader = http::RequestReader(limits);
        break;
      case Event::kBad:
        QUIRE_CHECK(reader.bad_status() >= 400 && !reader.bad_message().empty());
        return seen;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  http::ReadLimits limits;
  limits.max_body_bytes = 2000;
  limits.max_header_bytes = 3000;
  limits.max_headers = 20;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string whole = read_all(limits, bytes, size);
  const std::string single = read_all(limits, bytes, 1);
  QUIRE_CHECK(whole == single, "the split must not change the requests");
  QUIRE_CHECK(read_all(limits, bytes, 7) == single, "the split must not change the requests");
  return 0;
}
