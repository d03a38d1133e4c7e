// SPDX-License-Identifier: Apache-2.0
// TraceExporter: sends one span per request to a collector of OpenTelemetry, over OTLP with HTTP and protobuf.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "telemetry/span.h"

namespace quire::telemetry {

struct TraceOptions {
  std::string url;                   // of the collector: "http://127.0.0.1:4318/v1/traces"
  std::vector<std::string> headers;  // "name: value", for each request to it
  Attributes resource;
  std::string version;      // of this program
  size_t max_queue = 2048;  // spans that may wait; more are dropped
  size_t max_batch = 512;   // spans in one request to the collector
  double delay_s = 5;       // how long a span may wait for others
};

// The options for --otlp-traces-endpoint, and from the environment variables that OpenTelemetry's SDKs have for them:
// OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_[TRACES_]HEADERS, OTEL_BSP_*. The Error says what is
// wrong with the endpoint or a variable.
Result<TraceOptions> trace_options(const std::string& endpoint, const std::string& version);

// Owns a thread that sends batches. add() never blocks: if the queue is full, because the collector is away or slow,
// the span is dropped and counted. A batch that fails is tried again with growing pauses, a few times; the log has one
// line when the collector goes away and one when it is back. The destructor sends what waits, within two seconds.
class TraceExporter {
 public:
  explicit TraceExporter(TraceOptions options);
  ~TraceExporter();
  TraceExporter(const TraceExporter&) = delete;

  // Any thread.
  void add(const llm::RequestTrace& trace, const std::string& model);

  int64_t num_exported() const { return num_exported_; }
  int64_t num_dropped() const { return num_dropped_; }

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  bool export_batch(const std::vector<std::string>& spans);

  const TraceOptions options_;
  const std::string shown_;  // the URL as logs show it
  std::atomic<int64_t> num_exported_{0}, num_dropped_{0};

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::string> queue_;
  bool stopping_ = false;
  Clock::time_point stop_by_;

  bool away_ = false;  // the thread's own: the last request to the collector failed
  std::thread thread_;
};

}  // namespace quire::telemetry
