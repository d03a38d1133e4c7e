// SPDX-License-Identifier: Apache-2.0
// The load client: thousands of streamed HTTP requests from a few threads, each of them timed.
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

// The address of a server: "http://127.0.0.1:8000", "https://host/prefix".
struct Url {
  bool tls = false;
  std::string host;
  std::string port;
  std::string path;  // without a trailing slash
  std::string text() const;
};
Result<Url> parse_url(std::string_view text);

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  int status = 0;
  std::string reason;
  std::string body;
};

// The outcome of one request. Times are in seconds; `start` counts from the beginning of the run.
struct Outcome {
  bool success = false;
  bool sent = false;          // false: the run was stopped before or during this request
  std::string error;          // not empty: it failed
  int64_t prompt_len = 0;     // of the sample, replaced by the server's count
  int64_t output_tokens = 0;  // the server's count; 0: it sent none
  double queue_time = 0;      // time spent waiting because of max_concurrency
  double start = 0;
  double ttft = 0;
  double latency = 0;
  std::vector<double> itl;  // one fewer than the messages
  std::string text;
};

// The plan of a run. Its functions are called on the client's threads, several at once.
struct Load {
  std::string path;  // of the endpoint, after the path of the URL
  StreamApi api = StreamApi::kCompletions;
  size_t count = 0;
  std::vector<double> arrivals;  // [count], seconds from the start, ascending; empty: all at once
  int64_t max_concurrency = 0;   // 0: no limit
  std::function<std::string(size_t)> body;
  std::function<HeaderList(size_t)> headers;
  double probe_rate = 0;                                    // probe requests/s during the run; 0: none
  std::function<bool()> stopped;                            // called ten times per second; may be empty
  std::function<void(size_t done, size_t total)> progress;  // the same, and at the end; may be empty
};

struct LoadResult {
  std::vector<Outcome> outcomes;  // [count]
  std::vector<Outcome> probes;
  double duration = 0;  // from the first arrival to the last completion
  bool stopped = false;
  int64_t connections = 0;  // opened
  int64_t messages = 0;     // with choices
};

struct ClientOptions {
  Url url;
  bool insecure = false;  // accept any TLS certificate
  int threads = 0;        // 0: one per four cores, up to four
};

// Owns its threads and connections (kept alive and reused between requests and runs). One run or fetch at a time, from
// one thread. If a reused connection turns out to be closed before a byte was received, the request is sent once more
// on a new one; any other failure is the outcome of the request.
class LoadClient {
 public:
  // Resolves the host; nothing is sent yet.
  static Result<std::unique_ptr<LoadClient>> make(const ClientOptions& options);
  ~LoadClient();

  // One whole exchange. An Error is a network failure; any status is a reply. `timeout_s` limits the whole exchange.
  Result<HttpReply> fetch(std::string_view method, const std::string& path, const std::string& body,
                          const HeaderList& headers, double timeout_s = 60);
  LoadResult run(const Load& load);
  int threads() const;

 private:
  class Impl;
  explicit LoadClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Raises the limit on open files to the hard limit; returns the resulting limit.
int64_t raise_file_limit();

}  // namespace quire::bench
