// SPDX-License-Identifier: Apache-2.0
// The load client: thousands of streamed HTTP requests from few threads, each one timed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "bench/stream.h"

namespace quire::bench {

// Where a server is: "http://127.0.0.1:8000", "https://host/prefix".
struct Url {
  bool tls = false;
  std::string host;
  std::string port;
  std::string path;  // without a slash at its end
  std::string text() const;
};
Result<Url> parse_url(std::string_view text);

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  int status = 0;
  std::string reason;
  std::string body;
};

// What became of one request. Times are in seconds; `start` counts from the beginning of the run.
struct Outcome {
  bool success = false;
  bool sent = false;          // false: the run was stopped before its turn, or while it was under way
  std::string error;          // when it failed
  int64_t prompt_len = 0;     // the sample's, replaced by what the server counted
  int64_t output_tokens = 0;  // as the server counted; 0: it did not say
  double queue_time = 0;      // waited for a place under max_concurrency
  double start = 0;
  double ttft = 0;
  double latency = 0;
  std::vector<double> itl;  // one less than the messages
  std::string text;
};

// A run's plan. The functions are called on the client's threads, several at once.
struct Load {
  std::string path;  // of the endpoint, with the URL's own in front
  StreamApi api = StreamApi::kCompletions;
  size_t count = 0;
  std::vector<double> arrivals;  // [count], seconds from the start, ascending; empty: all at once
  int64_t max_concurrency = 0;   // 0: no bound
  std::function<std::string(size_t)> body;
  std::function<HeaderList(size_t)> headers;
  double probe_rate = 0;                                    // requests a second beside the run; 0: none
  std::function<bool()> stopped;                            // asked ten times a second; may be empty
  std::function<void(size_t done, size_t total)> progress;  // likewise, and at the end; may be empty
};

struct LoadResult {
  std::vector<Outcome> outcomes;  // [count]
  std::vector<Outcome> probes;
  double duration = 0;  // from the first arrival's clock to the last completion
  bool stopped = false;
  int64_t connections = 0;  // opened
  int64_t messages = 0;     // with choices
};

struct ClientOptions {
  Url url;
  bool insecure = false;  // take any TLS certificate
  int threads = 0;        // 0: one for each four cores, up to four
};

// Owns its threads and connections (kept alive and reused between requests and runs). One run or fetch at a time, from
// one thread. A request whose reused connection turns out to be closed before a byte came is sent once more on a new
// one; any other failure is that request's outcome.
class LoadClient {
 public:
  // Resolves the host; nothing is sent yet.
  static Result<std::unique_ptr<LoadClient>> make(const ClientOptions& options);
  ~LoadClient();

  // One exchange, whole. The Error says what the network did; any status is a reply. `timeout_s` bounds all of it.
  Result<HttpReply> fetch(std::string_view method, const std::string& path, const std::string& body,
                          const HeaderList& headers, double timeout_s = 60);
  LoadResult run(const Load& load);
  int threads() const;

 private:
  class Impl;
  explicit LoadClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Lets the process open as many files as its hard limit allows; the limit that then holds.
int64_t raise_file_limit();

}  // namespace quire::bench
